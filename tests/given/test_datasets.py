"""CaptionDataset: what its items hold, and which files it refuses."""

import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from datasets import CaptionDataset, content_digest, speaks_of_a_side
from lab.data.images import load_image
from lab.data.vocabulary import load_word_map


@pytest.fixture
def make(tiny_data):
    return lambda split='TRAIN', **options: CaptionDataset(**tiny_data, split=split, **options)


@pytest.fixture
def copied(tiny_data, tmp_path):
    """Folder and name of a copy of the files."""
    return shutil.copytree(tiny_data['data_folder'], tmp_path / 'data'), tiny_data['data_name']


@pytest.mark.parametrize(('split', 'images'), [('TRAIN', 24), ('VAL', 6), ('TEST', 6)])
def test_items(make, tiny_data, split, images):
    """Which captions a picture has is in test_create_input_files.py."""
    dataset, word_map = make(split), load_word_map(**tiny_data)
    assert dataset.cpi == 5 and len(dataset) == 5 * images == 5 * len(dataset.names)
    for i in range(len(dataset)):
        image, caption, caplen = dataset[i]
        assert caption.dtype == caplen.dtype == torch.long and caplen.shape == (1,)
        assert caption[caplen - 1] == word_map['<end>'] and not caption[caplen:].any()
        assert image.dtype == torch.uint8
        assert np.array_equal(image, load_image(Path(tiny_data['data_folder'], dataset.names[i // 5])))
        assert torch.equal(caption, dataset.captions[i])


def test_words_that_speak_of_a_side():
    assert all(map(speaks_of_a_side, ('left', 'Left', 'RIGHT', 'right-hand', 'far-left', '(right)', '"left"',
                                      'bottom_left', '2right', '左边', '右')))
    assert not any(map(speaks_of_a_side, ('bright', 'upright', 'cleft', 'lift', 'a', '上面')))


# --- Files that cannot be used ---


@pytest.mark.parametrize('kind', ['VAL_IMAGES', 'VAL_CAPTIONS', 'VAL_CAPLENS', 'WORDMAP'])
def test_missing_and_cut_files_are_named(copied, kind):
    path, = copied[0].glob(f'{kind}_*')
    os.truncate(path, 20)
    with pytest.raises(ValueError, match=path.name):
        CaptionDataset(*copied, 'VAL')
    path.unlink()
    with pytest.raises(ValueError, match=path.name):
        CaptionDataset(*copied, 'VAL')


@pytest.mark.parametrize('part', ['WORDMAP', 'CAPTIONS', 'CAPLENS', 'names', 'references', 'pixels'])
def test_the_fingerprint_of_what_a_split_holds(copied, part):
    folder, name = copied
    before = content_digest(folder, name, 'VAL')
    assert before != content_digest(folder, name, 'TEST')
    with h5py.File(folder / f'VAL_IMAGES_{name}.hdf5', 'r+') as file:
        file['images'][0] = 7
        if part in file:
            file[part][1] = '[["other"]]'
    for path in folder.glob(f'*{part}_{name}.json'):
        path.write_text(path.read_text().replace('1', '2', 1))
    assert (content_digest(folder, name, 'VAL') == before) == (part == 'pixels')
