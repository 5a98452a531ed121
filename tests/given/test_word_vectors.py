"""Word vectors from text files."""

import gzip

import pytest
import torch
from torch import nn

from lab.data.vocabulary import load_word_map
from lab.more.word_vectors import load
from lab.train.checkpoints import checkpoint_paths, load_model
from solver import DEFAULTS, train


def loaded(path, words, size):
    """:return: how many were found, and the vector of each word, or 'as before'"""
    embedding = nn.Embedding(len(words), size)
    before = embedding.weight.detach().clone()
    found = load(embedding, path, {word: index for index, word in enumerate(words)})
    return found, ['as before' if torch.equal(row, old) else row.tolist() for row, old in zip(
        embedding.weight, before, strict=True)]


@pytest.mark.parametrize(('text', 'expected'), [
    pytest.param('red 1 2\nunheard 9 9\nstar 3 4\nstar 7 7\n', [[1, 2], [3, 4]], id='the first of two'),
    pytest.param('<unk> 9 9\nred 1 2\n', [[1, 2], 'as before'], id='special tokens'),
    pytest.param('5 2\nred 1 2\n\nstar 3 4\n\n', [[1, 2], [3, 4]], id='header, empty lines'),
    pytest.param('star 1 1\n2 3 4\nred 5 6', [[5, 6], [1, 1]], id='a word of digits'),
    pytest.param('red\t1\t2\nstar\t3\t4', [[1, 2], [3, 4]], id='tabs'),
    pytest.param('red 1  2\r\nstar 3 4  \r\n', [[1, 2], [3, 4]], id='ends of lines'),
    pytest.param('New York 9 9\n. . . 8 8\nred 1 2\n', [[1, 2], 'as before'], id='words with blanks'),
    pytest.param('\ufeffred 1 2\n\x85 9 9\n\xa0 9 9\n\u2028 9 9\nstar 3 4', [[1, 2], [3, 4]], id='blanks of Unicode')])
def test_words_of_the_file_are_taken_and_the_others_stay(tmp_path, text, expected):
    """Of GloVe, word2vec and fastText, as they are."""
    path = tmp_path / 'vectors.txt'
    path.write_text(text, encoding='utf-8', newline='')
    found, vectors = loaded(path, ['red', 'star', '<unk>', 'moon'], 2)
    assert vectors[:2] == expected and vectors[3] == 'as before'
    assert (vectors[2] == [9, 9]) == ('<unk>' in text)  # taken, but not counted
    assert found == sum(vector != 'as before' for vector in expected)


def test_other_words_words_with_blanks_and_other_encodings(tmp_path):
    path = tmp_path / 'vectors.txt'
    path.write_text('New York 1 2 3\n. . . 7 8 9\n10 7 7 7\n')
    assert loaded(path, ['New York', '. . .', '10'], 3) == (3, [[1, 2, 3], [7, 8, 9], [7, 7, 7]])
    path.write_text('red 1\nstar 2\n10 3\n')  # the first line is a header
    assert loaded(path, ['star', '10'], 1) == (2, [[2], [3]])
    path.write_bytes('caf\u00e9 1 2\nred 3 4\n'.encode('latin-1'))
    assert loaded(path, ['caf\u00e9', 'red'], 2) == (1, ['as before', [3, 4]])


ROW = 'red' + ' 1' * 12 + '\n'


@pytest.mark.parametrize(('content', 'hint'), [
    ('red 1 2 3\n', 'line 1: 3 .*embed_dim'), ('the' + ' 1' * 300 + '\n', 'line 1: 300 .*embed_dim'),
    (ROW + 'star 1 2\n', 'line 2: 2 '), (ROW + '\nstar 1 2\n', 'line 3: 2 '), (ROW + '\nstar,1,2,3\n', 'line 3: 0 '),
    ('red' + ' 1' * 11 + ' x\n', "line 1.*'red'"), ('red' + ' 1' * 11 + ' nan\n', "line 1.*'red'"),
    ('', 'vocabulary'), ('unheard' + ' 1' * 12 + '\n', 'vocabulary'), (gzip.compress(b'red 1', mtime=0), 'packed'),
    (b'2 3\nred \x00\x80?', 'binary'), ('red 1'.encode('utf-16'), 'UTF-8'), (None, 'cannot be read')])
def test_files_that_are_no_word_vectors(tiny_cfg, tmp_path, content, hint):
    path = tmp_path / 'vectors.txt'
    if content is not None:
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


def test_a_second_training_from_one_without(trained, tmp_path):
    """It would have gone on with the first one's, and not said so."""
    cfg, _ = trained(True)
    start, path = str(checkpoint_paths({**DEFAULTS, **cfg})[1]), tmp_path / 'vectors.txt'
    path.write_text(ROW)
    with pytest.raises(ValueError, match='word_vectors.*start'):
        train({**cfg, 'start_from': start, 'word_vectors': str(path), 'output_folder': str(tmp_path)})
