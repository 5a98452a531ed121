"""Cached features: what the encoder gives, computed once, and never taken for those of others."""

import inspect
import linecache
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from datasets import CaptionDataset
from lab.train import features
from lab.train.features import encode_images
from models import Encoder


class Patches(nn.Module):
    """A small encoder: 16 x 16 cells of 4 channels."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 4, 16, stride=16)
        self.scale = 1.0

    def forward(self, images):
        return self.conv(images) * self.scale


def patches(size=2):
    return Encoder(Patches(), encoded_image_size=size)


def features_in(folder):
    """Finished or not."""
    return [path for path in folder.iterdir() if 'FEATURES' in path.name]


@pytest.mark.parametrize(('make', 'side'), [
    (lambda: patches(2), 2), (lambda: patches(16), 16), (lambda: patches(20), 16), (lambda: patches(None), 16),
    (lambda: Encoder('shapes_cnn', 4), 4)], ids=['pooled', 'native', 'enlarged', 'no size', 'shapes_cnn'])
def test_they_are_what_the_encoder_gives_mirrored_or_not(data, make, side):
    """But for half precision; the smaller of the backbone's own grid and the pooled one is kept."""
    encoder, pixels = make(), CaptionDataset(*data, 'TRAIN')
    files = [encode_images(encoder, pixels, mirrored=mirrored, batch_size=7) for mirrored in (False, True)]
    assert sorted(files) == sorted(features_in(data[0]))
    stored = np.load(files[0])
    assert stored.dtype == np.float16 and stored.shape == (24, side, side, encoder.encoder_dim)
    dataset, numbers, seen = CaptionDataset(*data, 'TRAIN', features=files), torch.tensor([0, 3, 9, 22, 23]), []
    for mirrored in (False, True):
        with torch.no_grad():
            expected = encoder(pixels.images(numbers, mirrored))
        seen.append(encoder.resize(dataset.images(numbers, mirrored).float()))
        torch.testing.assert_close(seen[-1], expected, rtol=2e-3, atol=2e-3)
    assert not torch.allclose(*seen, atol=2e-2)
    assert torch.equal(dataset[9 * 5 + 2][0], dataset.images(numbers)[2])


@pytest.mark.parametrize('change', [
    pytest.param(lambda encoder: encoder.stages[0].conv.bias.add_(1), id='weights'),
    pytest.param(lambda encoder: encoder.stages.append(nn.ReLU()), id='layers'),
    pytest.param(lambda encoder: setattr(encoder.stages[0], 'scale', 2.0), id='attribute'),
    pytest.param(lambda encoder: encoder.mean.zero_(), id='mean'),
    pytest.param(lambda encoder: encoder.std.fill_(1), id='std'),
    pytest.param(lambda encoder: setattr(encoder, 'input_size', 224), id='input_size'),
    pytest.param(lambda encoder: setattr(encoder, 'encoded_image_size', 3), id='size')])
def test_another_encoder_has_features_of_its_own(data, change):
    dataset, other = CaptionDataset(*data, 'VAL'), patches()
    first = encode_images(patches(), dataset)
    before = first.read_bytes()
    change(other)
    path = encode_images(other, dataset)
    with torch.no_grad():
        expected = other(dataset.images(torch.arange(6)))
    assert path != first and first.read_bytes() == before
    torch.testing.assert_close(torch.from_numpy(np.load(path)).float(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(('module', 'before', 'after', 'matters'), [
    ('models', b'self.stages(images).permute(0, 2, 3, 1)', b'self.stages(images).permute(0, 3, 2, 1)', True),
    ('models', b'class DecoderWithRNN', b'X = 1\n\n\nclass DecoderWithRNN', False),
    (Patches.__module__, b'def patches', b'def squash(x):\n    return x.tanh()\n\n\ndef patches', True)])
def test_other_code_of_the_encoder_has_features_of_its_own(data, other_source, module, before, after, matters):
    """But not other decoders: a student edits models.py all the time. What stands in its own file it may call."""
    dataset = CaptionDataset(*data, 'VAL')
    first = encode_images(patches(), dataset)
    with other_source(module, lambda code: code.replace(before, after, 1)):
        assert (encode_images(patches(), dataset) != first) == matters


def test_an_encoder_of_a_notebook_has_features_of_its_own(data):
    """Where a class has no file, but each cell is known to linecache."""
    paths = set()
    for number, step in enumerate(('', '.relu()')):
        code, space = inspect.getsource(Patches).replace('conv(images)', f'conv(images){step}'), {**globals()}
        space['__name__'] = '__main__'
        linecache.cache[f'cell {number}'] = len(code), None, code.splitlines(True), f'cell {number}'
        exec(compile(code, f'cell {number}', 'exec'), space)
        paths.add(encode_images(Encoder(space['Patches'](), 2), CaptionDataset(*data, 'VAL')))
    assert len(paths) == 2


def test_other_pictures_have_features_of_their_own(data):
    encoder, dataset = patches(), CaptionDataset(*data, 'VAL')
    paths = {encode_images(encoder, dataset), encode_images(encoder, CaptionDataset(*data, 'TEST'))}
    with h5py.File(dataset.images_path, 'r+') as file:
        file.attrs['pictures'] = 'others'
    assert len({*paths, encode_images(encoder, CaptionDataset(*data, 'VAL'))}) == 3


def test_a_run_that_stops_is_never_taken_for_a_whole_one(data):
    """And whatever happens, the encoder is in eval() meanwhile, and as before after that."""
    encoder, dataset, batches = patches().fine_tune(True).train(), CaptionDataset(*data, 'VAL'), []

    def look(module, inputs, output):
        batches.append(output)
        assert not encoder.training and not module.training
        assert not [*data[0].glob('*FEATURES*.npy')]  # under this name only when it is whole
        if len(batches) == 3:
            raise KeyboardInterrupt

    hook = encoder.stages[0].register_forward_hook(look)
    with pytest.raises(KeyboardInterrupt):
        encode_images(encoder, dataset, batch_size=2)
    assert encoder.training and encoder.stages[0].training and not features_in(data[0])
    hook.remove()
    assert [encode_images(encoder, dataset)] == features_in(data[0])


def test_features_beyond_half_precision(data):
    encoder = patches()
    encoder.stages[0].conv.bias += 1e5
    with pytest.raises(ValueError, match='val.*cache_features=False'):
        encode_images(encoder, CaptionDataset(*data, 'VAL'))
    assert not features_in(data[0])


def test_disk_space_is_seen_to_first_and_a_second_call_computes_nothing(data, monkeypatch, capsys):
    """But one picture, for the shape of the grid. Files that an older version has left are named."""
    (data[0] / 'VAL_FEATURES_old.hdf5').write_bytes(bytes(2_000_000))
    encoder, dataset, needed, seen = patches(None), CaptionDataset(*data, 'VAL'), 6 * 16 * 16 * 4 * 2, []
    monkeypatch.setattr(shutil, 'disk_usage', lambda _: SimpleNamespace(free=needed - 1))
    with pytest.raises(OSError, match='disk space.*cache_features=False'):
        encode_images(encoder, dataset)
    assert [path.name for path in features_in(data[0])] == ['VAL_FEATURES_old.hdf5']
    monkeypatch.setattr(shutil, 'disk_usage', lambda _: SimpleNamespace(free=needed))
    path = encode_images(encoder, dataset)
    assert 'VAL_FEATURES_old.hdf5 (2 MB)' in capsys.readouterr().out
    before = path.stat()
    encoder.stages.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    assert encode_images(encoder, dataset) == path and sum(seen) <= 1
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


@pytest.mark.skipif(not os.geteuid() and bool(subprocess.run(['unshare', '-m', 'true']).returncode),
                    reason='root may not mount a folder here')
def test_features_of_a_read_only_folder_go_to_the_output_folder(tiny_cfg, data):
    """As every input of Kaggle is."""
    folder, read_only = data[0], []
    before = sorted(folder.iterdir())
    folder.chmod(0o555)
    if not os.geteuid():  # root may write all the same
        mounts = f'mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && exec "$@"'
        read_only = ['unshare', '-m', 'sh', '-c', mounts, 'sh']
    settings = [f'{name}={value}' for name, value in {**tiny_cfg, 'data_folder': folder, 'epochs': 1}.items()]
    run = subprocess.run([*read_only, sys.executable, '-m', 'lab.experiments.train', *settings],
                         cwd=Path(features.__file__).parents[2], capture_output=True, text=True,
                         env={**os.environ, 'TQDM_DISABLE': '1'})
    assert run.returncode == 0, run.stderr
    assert len(features_in(Path(tiny_cfg['output_folder']))) == 2 and sorted(folder.iterdir()) == before
    assert 'images:' not in run.stderr  # no progress bar either
