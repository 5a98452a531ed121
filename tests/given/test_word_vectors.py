"""Word vectors from text files."""

import gzip
import tracemalloc

import pytest
import torch
from torch import nn

from lab.data.vocabulary import load_word_map
from lab.more.word_vectors import load
from lab.train.checkpoints import checkpoint_paths, load_model
from solver import DEFAULTS, train


@pytest.fixture
def vectors(tiny_cfg, tmp_path):
    """A file with two words of the vocabulary, one of them twice, and others."""
    path = tmp_path / 'vectors.txt'
    rows = dict(red=1.0, unheard=9.0, star=2.0)
    path.write_text('\n'.join([*(f"{word} {' '.join([str(value)] * 12)}" for word, value in rows.items()),
                               'star' + ' 7' * 12, 'New York' + ' 4' * 12]) + '\n')
    return path


def test_word_vectors_are_taken_and_the_others_stay(tiny_cfg, vectors, capsys):
    word_map = load_word_map(tiny_cfg['data_folder'], tiny_cfg['data_name'])
    embedding = nn.Embedding(len(word_map), 12)
    before = embedding.weight.detach().clone()
    assert load(embedding, vectors, word_map) == 2
    assert (embedding.weight[word_map['red']] == 1).all() and (embedding.weight[word_map['star']] == 2).all()
    rest = [index for word, index in word_map.items() if word not in ('red', 'star')]
    assert torch.equal(embedding.weight[rest], before[rest])
    train({**tiny_cfg, 'word_vectors': str(vectors), 'epochs': 1})
    words = len(word_map) - 4
    assert f'has 2 of the {words} words; the other {words - 2} start at random' in capsys.readouterr().out


def test_word_vectors_are_read_line_by_line(tmp_path):
    """Memory is for the vocabulary: a file of any length will do."""
    path = tmp_path / 'vectors.txt'
    with path.open('w') as file:
        for i in range(20_000):
            file.write(f'word{i}' + ' 0.12345' * 50 + '\n')
    embedding = nn.Embedding(3, 50)
    tracemalloc.start()
    assert load(embedding, path, {'<pad>': 0, 'word7': 1, 'word19999': 2}) == 2
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 8e6
    assert peak < 1e6


@pytest.mark.parametrize('fast', [True, False])
@pytest.mark.parametrize('tune', [True, False])
def test_frozen_or_tuned(tiny_cfg, vectors, tune, fast, capsys):
    cfg = {**tiny_cfg, 'word_vectors': vectors, 'tune_word_vectors': tune, 'fast': fast}
    train(cfg)
    assert 'as it is written' not in capsys.readouterr().out  # frozen ones do not hinder the fast path
    model = load_model(checkpoint_paths({**DEFAULTS, **cfg})[1], 'cpu')
    stays = (model.decoder.embedding.weight[model.word_map['red']] == 1).all()
    assert stays != tune


@pytest.mark.parametrize('between', [' ', '\t'])
def test_a_header_and_empty_lines_are_passed_over(tiny_cfg, vectors, between):
    word_map = load_word_map(tiny_cfg['data_folder'], tiny_cfg['data_name'])
    vectors.write_text(('5 12\n' + vectors.read_text().replace('\n', '\n\n')).replace(' ', between))
    assert load(nn.Embedding(len(word_map), 12), vectors, word_map) == 2


def test_words_that_are_blanks_of_unicode_and_a_byte_order_mark(tiny_cfg, vectors):
    """As the GloVe vectors of Twitter and of Common Crawl have them."""
    word_map = load_word_map(tiny_cfg['data_folder'], tiny_cfg['data_name'])
    blanks = ''.join(f'{blank}{" 3" * 12}\n' for blank in ('\x85', '\xa0', '\u2028', '. . .'))
    vectors.write_text('\ufeff' + vectors.read_text().replace('unheard', blanks + 'unheard', 1), encoding='utf-8')
    embedding = nn.Embedding(len(word_map), 12)
    assert load(embedding, vectors, word_map) == 2
    assert (embedding.weight[word_map['red']] == 1).all()
    assert (embedding.weight[word_map['star']] == 2).all()


def test_special_tokens_are_taken_but_not_counted(tiny_cfg, vectors):
    word_map = load_word_map(tiny_cfg['data_folder'], tiny_cfg['data_name'])
    vectors.write_text(vectors.read_text() + '<unk>' + ' 5' * 12 + '\n')
    embedding = nn.Embedding(len(word_map), 12)
    assert load(embedding, vectors, word_map) == 2
    assert (embedding.weight[word_map['<unk>']] == 5).all()


@pytest.mark.parametrize('ends', ['\r\n', '  \n'])
def test_ends_of_lines_double_blanks_and_words_with_blanks(tmp_path, ends):
    path = tmp_path / 'vectors.txt'
    lines = ['New York 1 2 3', 'red 4  5 6', '. . . 7 8 9', '', '10 7 7 7', 'star 1 0 1', '']
    path.write_text(ends.join(lines), newline='')
    embedding = nn.Embedding(5, 3)
    assert load(embedding, path, {'New York': 0, 'red': 1, '. . .': 2, '10': 3, 'star': 4}) == 5
    assert embedding.weight.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [7, 7, 7], [1, 0, 1]]


def test_a_line_like_a_header_further_down(tmp_path):
    path = tmp_path / 'vectors.txt'
    path.write_text('red 1\nstar 2\n10 3\n')  # the first line is one
    embedding = nn.Embedding(2, 1)
    assert load(embedding, path, {'star': 0, '10': 1}) == 2
    assert embedding.weight.tolist() == [[2], [3]]


def test_words_that_are_not_in_utf_8(tmp_path):
    path = tmp_path / 'vectors.txt'
    path.write_bytes('caf\u00e9 1 2\nred 3 4\n'.encode('latin-1'))
    embedding = nn.Embedding(2, 2)
    assert load(embedding, path, {'caf\u00e9': 0, 'red': 1}) == 1
    assert embedding.weight[1].tolist() == [3, 4]


@pytest.mark.parametrize('content', [gzip.compress(b'red 1', mtime=0), b'2 3\nred \x00\x80?', 'red 1'.encode('utf-16')])
def test_packed_and_binary_files(tmp_path, content):
    path = tmp_path / 'vectors'
    path.write_bytes(content)
    with pytest.raises(ValueError, match='vectors is packed or binary: unpack it, or save the vectors as text'):
        load(nn.Embedding(2, 3), path, {'red': 1})


def test_a_second_training_from_one_without(tiny_cfg, vectors, tmp_path):
    """It would have gone on with the first one's, and not said so."""
    train({**tiny_cfg, 'epochs': 1})
    start = str(checkpoint_paths({**DEFAULTS, **tiny_cfg})[1])
    with pytest.raises(ValueError, match="'word_vectors' is .*, from which this training starts, was trained without"):
        train({**tiny_cfg, 'start_from': start, 'word_vectors': str(vectors), 'output_folder': str(tmp_path)})


def test_later_trainings_do_not_read_them_again(tiny_cfg, vectors, tmp_path):
    """Frozen ones stay so, and are those of the checkpoint."""
    cfg = {**tiny_cfg, 'word_vectors': str(vectors), 'tune_word_vectors': False, 'epochs': 1}
    train(cfg)
    latest, best = map(str, checkpoint_paths({**DEFAULTS, **cfg}))
    vectors.write_text('red' + ' 8' * 12 + '\n')
    second = {**cfg, 'start_from': best, 'output_folder': str(tmp_path / 'second')}
    train(second)
    vectors.unlink()
    train({**cfg, 'epochs': 2, 'checkpoint': latest})
    for path in (latest, checkpoint_paths({**DEFAULTS, **second})[0]):
        model = load_model(path, 'cpu')
        assert (model.decoder.embedding.weight[model.word_map['red']] == 1).all(), path
    with pytest.raises(ValueError, match='was trained with tune_word_vectors=False, and the settings say True: set it'):
        train({**cfg, 'tune_word_vectors': True, 'epochs': 3, 'checkpoint': latest})


@pytest.mark.parametrize(('text', 'message'), [
    ('red 1 2 3\n', r'line 1: 3 numbers follow the word, but embed_dim is 12'),
    ('red' + ' 1' * 12 + '\nstar 1 2\n', r'line 2: 2 numbers follow'),
    ('red' + ' 1' * 11 + ' x\n', r"line 1: what follows 'red' is not 12 numbers"),
    ('red' + ' 1' * 11 + ' nan\n', r"line 1: what follows 'red' is not 12 numbers"),
    *[('red' + ' 1' * 12 + '\n\n' + line + '\n', f'line 3: {n} numbers follow the word, and 12 must: the file is cut')
      for line, n in (('star 1 2', 2), ('star,1,2,3', 0))],
    ('', 'vectors.txt has none of the words of the vocabulary'),
    ('unheard' + ' 1' * 12 + '\n', 'vectors.txt has none of the words of the vocabulary'),
    ('the' + ' 1' * 300 + '\n', r'line 1: 300 numbers follow the word, but embed_dim is 12: set embed_dim')])
def test_files_that_are_no_word_vectors(tiny_cfg, tmp_path, text, message):
    path = tmp_path / 'vectors.txt'
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        train({**tiny_cfg, 'word_vectors': path})
    with pytest.raises(ValueError, match='nowhere.txt cannot be read: No such file'):
        train({**tiny_cfg, 'word_vectors': tmp_path / 'nowhere.txt'})
