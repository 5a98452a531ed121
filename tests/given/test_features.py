"""Cached features: what the encoder gives, computed once, and never taken for those of others."""

import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import h5py
import pytest
import torch
from torch import nn

import features
from datasets import CaptionDataset
from features import encode_images, encoder_digest, hold
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


def stopping(encoder, monkeypatch, error, at):
    """The encoder's batches, until it stops at one of them; the first is for the shape."""
    real, calls = encoder.native_grid, []

    def native_grid(images):
        calls.append(len(images))
        if len(calls) == at:
            raise error
        return real(images)

    monkeypatch.setattr(encoder, 'native_grid', native_grid)
    return calls


def test_a_run_that_was_stopped_goes_on(data, monkeypatch):
    encoder = patches()
    whole = encode_images(encoder, *data, 'VAL', batch_size=2)
    expected = whole.read_bytes()
    whole.unlink()
    with monkeypatch.context() as patch:
        calls = stopping(encoder, patch, KeyboardInterrupt, at=4)
        encoder.train()
        with pytest.raises(KeyboardInterrupt):
            encode_images(encoder, *data, 'VAL', batch_size=2)
        assert encoder.training and calls == [1, 2, 2, 2] and not whole.exists()
    with monkeypatch.context() as patch:
        calls = stopping(encoder, patch, KeyboardInterrupt, at=99)
        assert encode_images(encoder, *data, 'VAL', batch_size=2) == whole
        assert calls == [1, 2]  # four of six were there
    assert whole.read_bytes() == expected and left_behind(data[0]) == [whole.name]


def test_a_killed_run_goes_on(data, monkeypatch):
    """Killed at any place: what was noted is used, what came after it is written again."""
    encoder = patches()
    whole = encode_images(encoder, *data, 'TRAIN', batch_size=4)
    expected = whole.read_bytes()
    whole.unlink()
    script = textwrap.dedent(f'''
        import os, signal, sys
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(features.__file__).parent)!r}]
        import features
        from test_features import patches
        features.SAFE_EVERY = 8
        encoder, calls = patches(), []
        real = encoder.native_grid
        def native_grid(images):
            calls.append(1)
            if len(calls) == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(images)
        encoder.native_grid = native_grid
        features.encode_images(encoder, {str(data[0])!r}, {data[1]!r}, 'TRAIN', batch_size=4)
    ''')
    killed = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not whole.exists()
    calls = stopping(encoder, monkeypatch, KeyboardInterrupt, at=99)
    assert encode_images(encoder, *data, 'TRAIN', batch_size=4) == whole
    assert calls == [1, 4, 4]  # 16 of 24 were noted
    assert whole.read_bytes() == expected and left_behind(data[0]) == [whole.name]


def test_what_another_encoder_left_is_not_gone_on_with(data, monkeypatch):
    encoder = patches()
    with monkeypatch.context() as patch:
        stopping(encoder, patch, KeyboardInterrupt, at=3)
        with pytest.raises(KeyboardInterrupt):
            encode_images(encoder, *data, 'VAL', batch_size=2)
    part, = data[0].glob('*.part')
    with h5py.File(part, 'r+') as file:
        file.attrs['images'] = 'others'
    calls = stopping(encoder, monkeypatch, KeyboardInterrupt, at=99)
    encode_images(encoder, *data, 'VAL', batch_size=2)
    assert calls == [1, 2, 2, 2]


def test_a_full_disk_leaves_nothing(data, monkeypatch):
    encoder = patches()
    stopping(encoder, monkeypatch, OSError('no space left'), at=3)
    with pytest.raises(OSError, match='no space left'):
        encode_images(encoder, *data, 'VAL', batch_size=2)
    assert left_behind(data[0]) == []


def test_features_beyond_half_precision(data):
    encoder = patches().eval()
    with torch.no_grad():
        encoder.stages[0].conv.bias += 1e5
    with pytest.raises(ValueError, match='for val images 0 to 3 that half precision .* set cache_features=False'):
        encode_images(encoder, *data, 'VAL', batch_size=4)
    assert left_behind(data[0]) == []


def test_mirror_images_have_a_file_of_their_own(data):
    encoder = patches()
    plain, mirrored = (encode_images(encoder, *data, 'VAL', mirror=mirror) for mirror in (False, True))
    dataset = CaptionDataset(*data, 'VAL', features=plain, mirrored=mirrored)
    pixels = CaptionDataset(*data, 'VAL')
    assert torch.equal(pixels.images(torch.tensor([2, 8])), torch.stack([pixels.image(2), pixels.image(2).flip(2)]))
    with torch.no_grad():
        expected = encoder.native_grid(pixels.images(torch.tensor([0, 2, 8, 11])))
    assert torch.allclose(dataset.images(torch.tensor([0, 2, 8, 11])).float(), expected, atol=2e-3)
    assert not torch.allclose(expected[1], expected[2], atol=2e-2)


@pytest.mark.parametrize('size', [4, 16, 20, None])
def test_held_features_are_those_of_the_file(data, size):
    encoder = Encoder(Patches(), size)
    files = [encode_images(encoder, *data, 'VAL', mirror=mirror) for mirror in (False, True)]
    dataset, held = (CaptionDataset(*data, 'VAL', features=files[0], mirrored=files[1]) for _ in range(2))
    assert hold(held, encoder)
    numbers = torch.tensor([0, 3, 7, 11])
    assert held.held.shape[1] == min(size or 16, 16)
    assert torch.allclose(encoder.resize(held.images(numbers).float()),
                          encoder.resize(dataset.images(numbers).float()), atol=2e-3)


def test_features_too_large_for_the_memory_stay_in_their_file(data, monkeypatch):
    encoder = patches()
    dataset = CaptionDataset(*data, 'VAL', features=encode_images(encoder, *data, 'VAL'))
    needed = 6 * 2 * 2 * 4 * 2
    for free, fits in ((2 * needed - 1, False), (2 * needed, True)):
        monkeypatch.setattr(features.psutil, 'virtual_memory', lambda free=free: SimpleNamespace(available=free))
        assert hold(dataset, encoder) == fits == (dataset.held is not None)


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
