"""CaptionDataset: which files it refuses, and its fingerprint. test_create_input_files.py has what it holds."""

import os

import h5py
import pytest

from datasets import CaptionDataset, content_digest, speaks_of_a_side


def test_words_that_speak_of_a_side():
    assert all(map(speaks_of_a_side, ('left', 'Left', 'RIGHT', 'right-hand', 'far-left', '(right)', '"left"',
                                      'bottom_left', '2right', '左边', '右')))
    assert not any(map(speaks_of_a_side, ('bright', 'upright', 'cleft', 'lift', 'a', '上面')))


# --- Files that cannot be used ---


@pytest.mark.parametrize('kind', ['VAL_IMAGES', 'VAL_CAPTIONS', 'VAL_CAPLENS', 'WORDMAP'])
def test_missing_and_cut_files_are_named(data, kind):
    path, = data[0].glob(f'{kind}_*')
    for damage in (lambda: os.truncate(path, 20), path.unlink):
        damage()
        with pytest.raises(ValueError, match=path.name):
            CaptionDataset(*data, 'VAL')


@pytest.mark.parametrize('part', ['WORDMAP', 'CAPTIONS', 'CAPLENS', 'names', 'references', 'pixels'])
def test_the_fingerprint_of_what_a_split_holds(data, part):
    folder, name = data
    before = content_digest(folder, name, 'VAL')
    assert before != content_digest(folder, name, 'TEST')
    with h5py.File(folder / f'VAL_IMAGES_{name}.hdf5', 'r+') as file:
        file['images'][0] = 7
        if part in file:
            file[part][1] = '[["other"]]'
    for path in folder.glob(f'*{part}_{name}.json'):
        path.write_text(path.read_text().replace('1', '2', 1))
    assert (content_digest(folder, name, 'VAL') == before) == (part == 'pixels')
