"""Word vectors from text files."""

import gzip

import pytest
from torch import nn

from lab.data.vocabulary import load_word_map
from lab.more.word_vectors import load
from lab.train.checkpoints import checkpoint_paths, load_model
from solver import DEFAULTS, train

A, B = [1, 2], [3, 4]


@pytest.mark.parametrize(('text', 'words', 'expected', 'found'), [
    pytest.param('red 1 2\nunheard 9 9\nstar 3 4\nstar 7 7\n', ['red', 'star', 'moon'], [A, B, None], 2, id='first'),
    pytest.param('<unk> 9 9\nred 1 2\n', ['red', '<unk>'], [A, [9, 9]], 1, id='special tokens are not counted'),
    pytest.param('5 2\nred 1 2\n\nstar 3 4\n\n', ['red', 'star', '5'], [A, B, None], 2, id='header, empty lines'),
    pytest.param('red 1\nstar 2\n10 3\n', ['star', '10'], [[2], [3]], 2, id='one number'),
    pytest.param('star 1 1\n2 3 4\nred 5 6', ['red', 'star', '2'], [[5, 6], [1, 1], B], 3, id='a word of digits'),
    pytest.param('red 1 2\r\nstar 3 4  \r\n', ['red', 'star'], [A, B], 2, id='ends of lines'),
    pytest.param('New York 1 2\n. . . 3 4\n', ['New York', '. . .', 'New'], [A, B, None], 2, id='words with blanks'),
    pytest.param('\ufeffred 1 2\n\x85 9 9\n\xa0 9 9\n\u2028 9 9\nstar 3 4', ['red', 'star'], [A, B], 2,
                 id='blanks of Unicode'),
    pytest.param('caf\u00e9 9 9\nred 1 2\n'.encode('latin-1'), ['caf\u00e9', 'red'], [None, A], 1, id='latin-1')])
def test_words_of_the_file_are_taken_and_the_others_stay(tmp_path, text, words, expected, found):
    """Of GloVe, word2vec and fastText, as they are."""
    path = tmp_path / 'vectors.txt'
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    embedding = nn.Embedding(len(words), len(expected[0] or expected[1]))
    before = embedding.weight.tolist()
    assert load(embedding, path, {word: index for index, word in enumerate(words)}) == found
    assert embedding.weight.tolist() == [new or old for new, old in zip(expected, before, strict=True)]


ROW = 'red' + ' 1' * 12 + '\n'


@pytest.mark.parametrize(('content', 'hint'), [
    ('red 1 2 3\n', 'line 1: 3 .*embed_dim'), ('the' + ' 1' * 300 + '\n', '12 .*embed_dim'),
    (ROW + '\nstar 1 2\n', 'line 3: 2 '), (ROW + 'star,1,2,3\n', 'line 2: 0 '),
    ('red' + ' 1' * 11 + ' x\n', "line 1.*'red'"), ('red' + ' 1' * 11 + ' nan\n', "line 1.*'red'"),
    ('', 'vocabulary'), (gzip.compress(b'red 1', mtime=0), 'packed'), ('red 1'.encode('utf-16'), 'UTF-8')])
def test_files_that_are_no_word_vectors(tiny_cfg, tmp_path, content, hint):
    path = tmp_path / 'vectors.txt'
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError, match=f'(?s)vectors.txt.*{hint}'):
        train({**tiny_cfg, 'word_vectors': path})


def test_a_training_takes_them_once(tiny_cfg, tiny_data, tmp_path, capsys):
    """They are tuned with the rest; later trainings go on with what the checkpoint holds."""
    word_map, path = load_word_map(**tiny_data), tmp_path / 'vectors.txt'
    path.write_text(ROW.replace('1', '3') + 'star' + ' 2' * 12 + '\n')

    def rows(cfg):
        model = load_model(checkpoint_paths({**DEFAULTS, **cfg})[0], 'cpu')
        return model.decoder.embedding.weight[[word_map['red'], word_map['star']]].mean(dim=1).tolist()

    first = {**tiny_cfg, 'word_vectors': path, 'epochs': 1}
    train(first)
    latest, best = map(str, checkpoint_paths({**DEFAULTS, **first}))
    printed = capsys.readouterr().out
    assert f'2 of the {len(word_map) - 4} words' in printed and 'as it is written' not in printed  # so fast is on
    tuned = rows(first)
    assert tuned == pytest.approx([3, 2], abs=0.2) and tuned != [3, 2]
    path.unlink()
    second = {**first, 'start_from': best, 'output_folder': str(tmp_path / 'second')}
    train(second)
    train({**first, 'epochs': 2, 'checkpoint': latest})
    for cfg in (second, first):
        assert tuned != rows(cfg) == pytest.approx([3, 2], abs=0.3)
