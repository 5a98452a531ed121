"""Cached features: what the encoder gives, computed once, and never taken for those of others."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import h5py
import pytest
import torch
from torch import nn

import features
from datasets import CaptionDataset
from features import encode_images, encoder_digest
from models import Encoder


class Patches(nn.Module):
    """A small encoder: 16 x 16 cells of 4 channels."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(3, 4, 16, stride=16)

    def forward(self, images):
        return self.conv(images)


def patches(seed=0):
    return Encoder(Patches(seed), encoded_image_size=2)


@pytest.fixture
def data(tiny_data, tmp_path):
    """A copy of the data set without anybody's features."""
    for path in Path(tiny_data['data_folder']).glob(f"*{tiny_data['data_name']}*"):
        if 'FEATURES' not in path.name:
            shutil.copy(path, tmp_path)
    return tmp_path, tiny_data['data_name']


def left_behind(folder):
    return [path.name for path in folder.iterdir() if 'FEATURES' in path.name]


@pytest.mark.parametrize('make', [patches, lambda: Encoder('shapes_cnn', 4)], ids=['own', 'shapes_cnn'])
def test_features_are_the_native_grid(data, make):
    encoder = make().eval()
    path = encode_images(encoder, *data, 'VAL', batch_size=4)
    images = torch.stack([CaptionDataset(*data, 'VAL').image(i) for i in range(6)])
    with torch.no_grad():
        expected = encoder.native_grid(images)
    with h5py.File(path) as file:
        assert file['features'].dtype == 'float16'
        found = torch.from_numpy(file['features'][:]).float()
    assert found.shape == expected.shape == (6, 16, 16, encoder.encoder_dim)
    assert torch.allclose(found, expected, rtol=2e-3, atol=2e-3)
    assert path.name == f'VAL_FEATURES_{data[1]}_{encoder_digest(encoder)}.hdf5'
    assert left_behind(data[0]) == [path.name]


def test_dataset_reads_them(data):
    encoder = patches()
    path = encode_images(encoder, *data, 'TRAIN')
    cached, images = CaptionDataset(*data, 'TRAIN', features=path), CaptionDataset(*data, 'TRAIN')
    for i in (0, 61, 119):
        grid = encoder.native_grid(images[i][0].unsqueeze(0))[0]
        assert torch.allclose(cached[i][0].float(), grid, rtol=2e-3, atol=2e-3)


def test_a_second_call_computes_nothing(data, monkeypatch):
    encoder = patches()
    path = encode_images(encoder, *data, 'VAL')
    before = path.stat().st_mtime_ns
    monkeypatch.setattr(encoder, 'native_grid', lambda images: pytest.fail('encoded again'))
    assert encode_images(encoder, *data, 'VAL') == path
    assert path.stat().st_mtime_ns == before


def test_other_weights_or_layers_have_a_file_of_their_own(data):
    paths = {encode_images(encoder, *data, 'VAL') for encoder in (
        patches(), patches(seed=1), Encoder(nn.Conv2d(3, 4, 16, stride=16)))}
    paths.add(encode_images(patches(), *data, 'TEST'))
    assert len(paths) == 4


def test_pooling_is_not_part_of_them(data):
    """One file serves every ``encoded_image_size``."""
    small, native = Encoder(Patches(), 2), Encoder(Patches(), None)
    assert encode_images(small, *data, 'VAL') == encode_images(native, *data, 'VAL')


def test_digest_sees_normalisation_and_input_size():
    digests = {encoder_digest(patches())}
    for name, value in (('mean', torch.zeros(1, 3, 1, 1)), ('std', torch.ones(1, 3, 1, 1)), ('input_size', 224)):
        encoder = patches()
        setattr(encoder, name, value)
        digests.add(encoder_digest(encoder))
    assert len(digests) == 4
    assert encoder_digest(patches()) == encoder_digest(patches())


def test_other_images_are_encoded_anew(data):
    encoder = patches()
    path = encode_images(encoder, *data, 'VAL')
    with h5py.File(path) as file:
        old = file['features'][:]
    with h5py.File(CaptionDataset(*data, 'VAL').images_path, 'r+') as file:
        file.attrs['fingerprint'] = 'another'
        file['images'][0] = 255 - file['images'][0]
    assert encode_images(encoder, *data, 'VAL') == path
    with h5py.File(path) as file:
        assert abs(file['features'][0] - old[0]).max() > 0.1
        assert (file['features'][1:] == old[1:]).all()


def test_an_interrupted_run_leaves_nothing(data, monkeypatch):
    encoder = patches()
    real, calls = encoder.native_grid, []

    def interrupted(images):
        calls.append(len(images))
        if len(calls) == 3:  # the first is for the shape
            raise KeyboardInterrupt
        return real(images)

    monkeypatch.setattr(encoder, 'native_grid', interrupted)
    encoder.train()
    with pytest.raises(KeyboardInterrupt):
        encode_images(encoder, *data, 'VAL', batch_size=4)
    assert encoder.training
    assert calls == [1, 4, 2] and left_behind(data[0]) == []


def test_too_little_disk_space(data, monkeypatch):
    needed = 6 * 16 * 16 * 4 * 2
    monkeypatch.setattr(features.shutil, 'disk_usage', lambda _: SimpleNamespace(free=needed - 1))
    with pytest.raises(OSError, match='6 images need .* GB free: make room, or set cache_features=False'):
        encode_images(patches(), *data, 'VAL')
    assert left_behind(data[0]) == []
    monkeypatch.setattr(features.shutil, 'disk_usage', lambda _: SimpleNamespace(free=needed))
    encode_images(patches(), *data, 'VAL')


@pytest.mark.parametrize('training', [True, False])
def test_training_mode_is_as_before_and_off_meanwhile(data, training):
    class Watching(Patches):
        modes = set()

        def forward(self, images):
            self.modes.add(self.training)
            return super().forward(images)

    encoder = Encoder(Watching()).fine_tune(True).train(training)
    Watching.modes.clear()
    encode_images(encoder, *data, 'VAL')
    assert Watching.modes == {False}
    assert encoder.training == encoder.stages[0].training == training
