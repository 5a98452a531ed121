"""Word vectors from text files."""

import bz2
import gzip
import lzma
import re
import tracemalloc

import pytest
import torch
from torch import nn
from verdicts import check, same

from lab.data.vocabulary import load_word_map
from lab.more import word_vectors
from lab.train.checkpoints import checkpoint_paths, load_model
from solver import DEFAULTS, train


def load(embedding, path, word_map, expected):
    """``word_vectors.load``, which must find so many words."""
    cause = 'each word of the vocabulary goes into found, whatever it is made of; others do not'
    try:
        found = word_vectors.load(embedding, path, word_map)
    except ValueError as error:
        found = f'ValueError: {error}'
        if 'numbers follow' in found:
            cause = 'lines(path, size) wants as size the length of a word vector, embed_dim'
    check(found == expected, 'TODO 14, load', f'{expected} words found', found, cause)


def row(embedding, index, expected, of):
    same(embedding.weight[index], torch.full_like(embedding.weight[index], expected), f'TODO 14, load: the row of {of}',
         'embed_dim', 'its numbers become its row')


def refused(function, message, cause):
    """The function must raise ValueError with this message."""
    try:
        function()
    except (ValueError, ArithmeticError) as error:
        came = f'{type(error).__name__}: {error}'
        if isinstance(error, ValueError) and re.search(message, str(error)):
            return
    else:
        came = 'none'
    check(False, 'TODO 14, load', f'ValueError, {message!r}', came, cause)


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
    load(embedding, vectors, word_map, 2)
    where = 'TODO 14, load: the row of'
    same(embedding.weight[word_map['red']], torch.ones(12), f'{where} a word of the file', 'embed_dim',
         'its numbers become its row', {'the row is as it was': before[word_map['red']]})
    same(embedding.weight[word_map['star']], torch.full((12,), 2.0), f'{where} a word that the file has twice',
         'embed_dim', 'the first time counts', {'the last time counts, not the first': torch.full((12,), 7.0)})
    rest = [index for word, index in word_map.items() if word not in ('red', 'star')]
    same(embedding.weight[rest], before[rest], f'{where} words that the file lacks', 'words, embed_dim',
         'they stay as they were', {'they are set to zero': torch.zeros_like(before[rest])})
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
    load(embedding, path, {'<pad>': 0, 'word7': 1, 'word19999': 2}, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = path.stat().st_size
    assert size > 8e6
    check(peak <= 1e6, 'TODO 14, load', f'less than 1 MB of memory for {size / 1e6:.0f} MB of text',
          f'{peak / 1e6:.0f} MB', 'all lines are collected before the first is used')


@pytest.mark.parametrize('fast', [True, False])
@pytest.mark.parametrize('tune', [True, False])
def test_frozen_or_tuned(tiny_cfg, vectors, tune, fast, capsys):
    cfg = {**tiny_cfg, 'word_vectors': vectors, 'tune_word_vectors': tune, 'fast': fast}
    train(cfg)
    assert 'as it is written' not in capsys.readouterr().out  # frozen ones do not hinder the fast path
    model = load_model(checkpoint_paths({**DEFAULTS, **cfg})[1], 'cpu')
    stays = (model.decoder.embedding.weight[model.word_map['red']] == 1).all()
    check(stays != tune, 'TODO 14, load', f'a row of the file that training {"changes" if tune else "leaves as it is"}',
          'it does not' if tune else 'another', 'the numbers do not become the row, or the embedding is replaced')


@pytest.mark.parametrize('between', [' ', '\t'])
def test_a_header_and_empty_lines_are_passed_over(tiny_cfg, vectors, between):
    word_map = load_word_map(tiny_cfg['data_folder'], tiny_cfg['data_name'])
    vectors.write_text(('5 12\n' + vectors.read_text().replace('\n', '\n\n')).replace(' ', between))
    load(nn.Embedding(len(word_map), 12), vectors, word_map, 2)


def test_words_that_are_blanks_of_unicode_and_a_byte_order_mark(tiny_cfg, vectors):
    """As the GloVe vectors of Twitter and of Common Crawl have them."""
    word_map = load_word_map(tiny_cfg['data_folder'], tiny_cfg['data_name'])
    blanks = ''.join(f'{blank}{" 3" * 12}\n' for blank in ('\x85', '\xa0', '\u2028', '. . .'))
    vectors.write_text('\ufeff' + vectors.read_text().replace('unheard', blanks + 'unheard', 1), encoding='utf-8')
    embedding = nn.Embedding(len(word_map), 12)
    load(embedding, vectors, word_map, 2)
    row(embedding, word_map['red'], 1, 'red')
    row(embedding, word_map['star'], 2, 'star')


def test_special_tokens_are_taken_but_not_counted(tiny_cfg, vectors):
    word_map = load_word_map(tiny_cfg['data_folder'], tiny_cfg['data_name'])
    vectors.write_text(vectors.read_text() + '<unk>' + ' 5' * 12 + '\n')
    embedding = nn.Embedding(len(word_map), 12)
    load(embedding, vectors, word_map, 2)
    row(embedding, word_map['<unk>'], 5, '<unk>')


@pytest.mark.parametrize('ends', ['\r\n', '  \n'])
def test_ends_of_lines_double_blanks_and_words_with_blanks(tmp_path, ends):
    path = tmp_path / 'vectors.txt'
    lines = ['New York 1 2 3', 'red 4  5 6', '. . . 7 8 9', '', '10 7 7 7', 'star 1 0 1', '']
    path.write_text(ends.join(lines), newline='')
    embedding = nn.Embedding(5, 3)
    load(embedding, path, {'New York': 0, 'red': 1, '. . .': 2, '10': 3, 'star': 4}, 5)
    same(embedding.weight, [[1, 2, 3], [4, 5, 6], [7, 8, 9], [7, 7, 7], [1, 0, 1]], 'TODO 14, load: the rows',
         'words, embed_dim', 'word and numbers as lines(...) gives them')


def test_a_line_like_a_header_further_down(tmp_path):
    path = tmp_path / 'vectors.txt'
    path.write_text('red 1\nstar 2\n10 3\n')  # the first line is one
    embedding = nn.Embedding(2, 1)
    load(embedding, path, {'star': 0, '10': 1}, 2)
    same(embedding.weight, [[2], [3]], 'TODO 14, load: the rows', 'words, embed_dim', 'the lines of lines(...)')


def test_words_that_are_not_in_utf_8(tmp_path, capsys):
    path = tmp_path / 'vectors.txt'
    path.write_bytes('caf\u00e9 1 2\nred 3 4\n'.encode('latin-1'))
    embedding = nn.Embedding(2, 2)
    load(embedding, path, {'caf\u00e9': 0, 'red': 1}, 1)
    same(embedding.weight[1], [3, 4], 'TODO 14, load: the row of red', 'embed_dim', 'its numbers become its row')
    assert 'vectors.txt: words that are not in UTF-8 are not found (1 here)' in capsys.readouterr().out


@pytest.mark.parametrize('content', [
    gzip.compress(b'red 1 2 3\n'), bz2.compress(b'red 1 2 3\n'), lzma.compress(b'red 1 2 3\n'), b'PK\x03\x04red 1 2 3',
    b'\x28\xb5\x2f\xfdred 1 2 3', b'7z\xbc\xaf\x27\x1cred 1 2 3', b'2 3\nred \x00\x00\x80?\x00\x00\x00@',
    'red 1 2 3\n'.encode('utf-16')], ids=['gzip', 'bzip2', 'xz', 'zip', 'zstd', '7z', 'word2vec', 'utf-16'])
def test_packed_and_binary_files(tmp_path, content):
    path = tmp_path / 'vectors'
    path.write_bytes(content)
    refused(lambda: word_vectors.load(nn.Embedding(2, 3), path, {'red': 1}),
            'vectors is packed or binary: unpack it, or save the vectors as text', 'the file is not read by lines(...)')


def test_words_that_begin_as_packed_files_do(tmp_path):
    path = tmp_path / 'vectors'
    path.write_text('PKW 1 2 3\nBZhang 4 5 6\nred 7 8 9\n')
    load(nn.Embedding(2, 3), path, {'red': 1, 'PKW': 0}, 2)


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
    refused(lambda: train({**tiny_cfg, 'word_vectors': path}), message, 'the numbers go through vector(word, numbers, '
            'place) of this file, of which lines(...) gives each' if 'what follows' in message else
            'all lines of lines(...) are read, to the last')
    refused(lambda: train({**tiny_cfg, 'word_vectors': tmp_path / 'nowhere.txt'}),
            'nowhere.txt cannot be read: No such file', 'the file is not read by lines(...)')
