"""CaptionDataset: what its items hold, and which files it refuses."""

import json
import os
import pickle
import shutil
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from datasets import CaptionDataset, content_digest, speaks_of_a_side
from lab.data import row_file
from lab.data.images import load_image
from lab.data.vocabulary import load_word_map
from lab.figures import load_images


@pytest.fixture
def make(tiny_data):
    return lambda split='TRAIN', **options: CaptionDataset(
        tiny_data['data_folder'], tiny_data['data_name'], split, **options)


@pytest.fixture(scope='module')
def karpathy(tiny_data):
    """name of an image -> its captions, lists of tokens"""
    data = json.loads((Path(tiny_data['data_folder']) / 'dataset_shapes.json').read_text())
    return {f"{image['filepath']}/{image['filename']}": [s['tokens'] for s in image['sentences']]
            for image in data['images']}


@pytest.mark.parametrize(('split', 'images'), [('TRAIN', 24), ('VAL', 6), ('TEST', 6)])
def test_items(make, tiny_data, karpathy, split, images):
    dataset = make(split)
    assert dataset.cpi == 5 and len(dataset) == 5 * images
    assert len(dataset.names) == len(dataset.references) == images
    assert list(dataset.first_captions) == list(range(0, 5 * images, 5))
    words = {index: word for word, index in load_word_map(**tiny_data).items()}
    for i in (0, 4, 5, 5 * images - 1):
        image, caption, caplen, *every = dataset[i]
        name = dataset.names[i // 5]
        assert image.dtype == torch.uint8 and image.shape == (3, 256, 256)
        assert torch.equal(image, torch.from_numpy(load_image(Path(tiny_data['data_folder']) / name)))
        assert caption.dtype == caplen.dtype == torch.long
        assert caption.shape == (52,) and caplen.shape == (1,)
        tokens = [words[w] for w in caption.tolist()]
        assert tokens[0] == '<start>' and tokens[caplen - 1] == '<end>'
        assert set(tokens[caplen:]) <= {'<pad>'}
        known = [[w if w in words.values() else '<unk>' for w in said] for said in karpathy[name]]
        assert tokens[1:caplen - 1] in known
        if split == 'TRAIN':
            assert every == []
        else:
            assert len(every) == 1 and every[0].dtype == torch.long
            assert torch.equal(every[0], dataset.captions[i // 5 * 5:i // 5 * 5 + 5])
            assert any(torch.equal(caption, one) for one in every[0])


def test_captions_of_one_image_are_adjacent_and_references_as_people_wrote_them(make, tiny_data, karpathy):
    dataset = make()
    words = {index: word for word, index in load_word_map(**tiny_data).items()}
    assert len(set(dataset.names)) == 24
    for number, (name, references) in enumerate(zip(dataset.names, dataset.references, strict=True)):
        assert references == karpathy[name]
        rows = range(5 * number, 5 * number + 5)
        captions = [[words[w] for w in dataset.captions[i, 1:int(dataset.caplens[i]) - 1].tolist()] for i in rows]
        assert sorted(captions) == sorted(references)


def test_transform_gets_the_uint8_image(make):
    plain = make()[7][0]
    image = make(transform=lambda pixels: pixels.float() / 255)[7][0]
    assert image.dtype == torch.float32
    assert torch.equal(image, plain.float() / 255)


def test_features_take_the_images_place(make, tmp_path):
    path = tmp_path / 'features.hdf5'
    grids = torch.arange(24 * 2 * 3 * 4, dtype=torch.float16).view(24, 2, 3, 4)
    with h5py.File(path, 'w') as file:
        file['features'] = grids.numpy()
    dataset = make(features=path, transform=lambda _: pytest.fail('a transform is for pixels'))
    for i in (0, 4, 5, 119):
        assert dataset[i][0].dtype == torch.float16
        assert torch.equal(dataset[i][0], grids[i // 5])


def test_pickles_before_and_after_the_first_item(make):
    dataset = make('VAL')
    fresh = pickle.loads(pickle.dumps(dataset))
    first = dataset[3]
    used = pickle.loads(pickle.dumps(dataset))
    for other in (fresh, used):
        assert all(torch.equal(a, b) for a, b in zip(other[3], first, strict=True))
    assert len(pickle.dumps(dataset)) < 1e6  # no images in it


def test_rows_are_read_where_they_lie(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 3, 4, 4), dtype=np.uint8)
    row_file.create(tmp_path / 'rows.hdf5', 'images', pixels.shape, 'uint8', {}, dict(names=['a'] * 7))
    with row_file.open_rows(tmp_path / 'rows.hdf5', 'images') as file:
        file.write(pixels.tobytes())
    rows = row_file.Rows(tmp_path / 'rows.hdf5', 'images')
    rows.expect(2, 99)
    rows.expect(7, 9)
    assert np.array_equal(rows[[0, 3, 6]], pixels[[0, 3, 6]]) and not rows.array.flags.writeable
    with h5py.File(tmp_path / 'rows.hdf5') as file:
        assert np.array_equal(file['images'][:], pixels)
    row_file.create(tmp_path / 'none.hdf5', 'images', (0, 3, 4, 4), 'uint8', {})
    none = row_file.Rows(tmp_path / 'none.hdf5', 'images')
    none.expect(0, 4)
    assert none.array.shape == (0, 3, 4, 4)
    with h5py.File(tmp_path / 'others.hdf5', 'w') as file:
        file.create_dataset('images', data=pixels, chunks=(2, 3, 4, 4))
    with pytest.raises(OSError, match='others.hdf5: its images are not in one piece; make the file again'):
        row_file.Rows(tmp_path / 'others.hdf5', 'images')


@pytest.mark.parametrize(('word', 'sided'), [
    *[(word, True) for word in ('left', 'Left', 'RIGHT', 'right-hand', 'far-left', '(right)', '"left"', 'bottom_left',
                                '2right', '左边', '右')],
    *[(word, False) for word in ('bright', 'upright', 'cleft', 'lift', 'a', '上面')]])
def test_words_that_speak_of_a_side(word, sided):
    assert speaks_of_a_side(word) == sided


def test_pictures_whose_captions_speak_of_a_side(make):
    dataset = make()
    dataset.references = [[['a', 'dog']], [['a', 'dog'], ['the', 'Left', 'dog']], [[]]]
    assert dataset.sided.tolist() == [False, True, False]


@pytest.mark.parametrize('split', ['train', 'DEV', '', None])
def test_wrong_split(make, split):
    with pytest.raises(ValueError, match="it must be 'TRAIN', 'VAL' or 'TEST'"):
        make(split)


@pytest.mark.parametrize('content', [b'', b'version https://git-lfs.github.com/spec/v1\n', None])
def test_an_hdf5_file_that_cannot_be_read_is_named(tiny_data, tmp_path, content):
    shutil.copytree(tiny_data['data_folder'], tmp_path / 'data')
    path = CaptionDataset.path_of_images(tmp_path / 'data', tiny_data['data_name'], 'VAL')
    path.write_bytes(path.read_bytes()[:5000] if content is None else content)
    for read in (partial(CaptionDataset, split='VAL'), partial(content_digest, split='VAL'),
                 lambda *_: load_images(path, [0])):
        with pytest.raises(ValueError, match=f'{path.name} cannot be read: .*cut'):
            read(tmp_path / 'data', tiny_data['data_name'])


def test_a_drive_without_locks(monkeypatch):
    def without_locks(*_, **__):
        raise OSError("unable to lock file, errno = 37, error message = 'No locks available'")
    monkeypatch.setattr(h5py, 'File', without_locks)
    with pytest.raises(ValueError, match='rows.hdf5 .*HDF5_USE_FILE_LOCKING=FALSE'):
        row_file.open_hdf5('rows.hdf5')


@pytest.mark.parametrize(('kind', 'change'), [
    ('WORDMAP', lambda words: dict(zip(words, [0, *range(2, len(words)), 1], strict=True))),  # as of another count
    ('WORDMAP', lambda words: dict(list(words.items())[:9])), ('VAL_CAPTIONS', lambda captions: captions[:5]),
    ('VAL_CAPTIONS', lambda captions: captions[5:] + captions[:5]), ('VAL_CAPLENS', lambda lengths: lengths[::-1])])
def test_files_of_different_runs_are_refused(tiny_data, tmp_path, kind, change):
    shutil.copytree(tiny_data['data_folder'], tmp_path / 'data')
    path = tmp_path / 'data' / f"{kind}_{tiny_data['data_name']}.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match='different runs of create_input_files: delete'):
        CaptionDataset(tmp_path / 'data', tiny_data['data_name'], 'VAL')


@pytest.mark.parametrize('kind', ['IMAGES', 'CAPTIONS', 'CAPLENS'])
def test_missing_files_are_named(tiny_data, tmp_path, kind):
    name = tiny_data['data_name']
    for path in Path(tiny_data['data_folder']).glob(f'VAL_*_{name}.*'):
        if kind not in path.name:
            shutil.copy(path, tmp_path)
    with pytest.raises(FileNotFoundError, match=f'VAL_{kind}_{name}.* run create_input_files first'):
        CaptionDataset(tmp_path, name, 'VAL')


@pytest.mark.parametrize('left', [0, 20], ids=['empty', 'cut'])
@pytest.mark.parametrize('kind', ['WORDMAP', 'VAL_CAPTIONS', 'VAL_CAPLENS'])
def test_cut_files_are_named(tiny_data, tmp_path, kind, left):
    shutil.copytree(tiny_data['data_folder'], tmp_path / 'data')
    name = f"{kind}_{tiny_data['data_name']}.json"
    os.truncate(tmp_path / 'data' / name, left)
    read = load_word_map if kind == 'WORDMAP' else partial(CaptionDataset, split='VAL')
    with pytest.raises(ValueError, match=f'{name} is .*cut.*: delete it and run create_input_files again$'):
        read(tmp_path / 'data', tiny_data['data_name'])


@pytest.mark.parametrize('part', ['WORDMAP', 'CAPTIONS', 'CAPLENS', 'names', 'references', 'pixels'])
def test_the_fingerprint_of_what_a_split_holds(tiny_data, tmp_path, part):
    name = tiny_data['data_name']
    before = content_digest(tiny_data['data_folder'], name, 'VAL')
    assert before != content_digest(tiny_data['data_folder'], name, 'TEST')
    shutil.copytree(tiny_data['data_folder'], tmp_path / 'data')
    with h5py.File(tmp_path / 'data' / f'VAL_IMAGES_{name}.hdf5', 'r+') as file:
        file['images'][0] = 7
        if part in file:
            file[part][1] = '[["other"]]'
    for path in (tmp_path / 'data').glob(f'*{part}_{name}.json'):
        path.write_text(path.read_text().replace('1', '2', 1))
    assert (content_digest(tmp_path / 'data', name, 'VAL') == before) == (part == 'pixels')


def test_missing_vocabulary(tmp_path):
    with pytest.raises(FileNotFoundError, match='WORDMAP_no_such.json is not there: run create_input_files'):
        load_word_map(tmp_path, 'no_such')
