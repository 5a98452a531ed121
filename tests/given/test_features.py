"""Cached features: what the encoder gives, computed once, and never taken for those of others."""

import copy
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from processes import run_in_processes
from torch import nn

from create_input_files import create_input_files
from datasets import CaptionDataset
from lab.decode.evaluate import evaluate
from lab.train import features
from lab.train.checkpoints import load_models
from lab.train.features import encode_images, encode_splits, encoder_digest, read_into_memory
from models import Encoder
from solver import train


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
    assert path.name == f'VAL_FEATURES_shapes_{encoder_digest(encoder)}.hdf5'
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


class Rectified(Patches):
    def forward(self, images):
        return super().forward(images).relu()


def test_other_code_has_features_of_its_own(data):
    """Layers and weights are the same, and so is the name; what a module of one's own does with them is not."""
    first, other = Rectified(), type('Rectified', (Patches,), dict(
        forward=lambda self, images: Patches.forward(self, images).tanh()))()
    assert repr(first) == repr(other)
    for module in (first, other, first):
        encoder = Encoder(module)
        path = encode_images(encoder, *data, 'VAL')
        with h5py.File(path) as file, torch.no_grad():
            expected = encoder.native_grid(CaptionDataset(*data, 'VAL').images(torch.arange(6)))
            assert torch.allclose(torch.from_numpy(file['features'][:]).float(), expected, atol=2e-3)
    assert left_behind(data[0]) == [path.name]


def test_another_encoder_in_models_py_has_features_of_its_own(data, monkeypatch, other_source):
    encoder, real = patches(), Encoder.native_grid
    first = encode_images(encoder, *data, 'VAL')
    with h5py.File(first) as file:
        before = file['features'][:]

    def halved(self, images):
        return real(self, images) / 2

    line = b'return self.stages(images).permute(0, 2, 3, 1)'
    with monkeypatch.context() as patch, other_source('models', lambda code: code.replace(line, line + b' / 2')):
        patch.setattr(Encoder, 'native_grid', halved)
        with h5py.File(encode_images(encoder, *data, 'VAL')) as file:
            assert abs(file['features'][:] - before / 2).max() < 1e-2
    with h5py.File(encode_images(encoder, *data, 'VAL')) as file:
        assert (file['features'][:] == before).all()


def test_other_captions_of_the_same_pictures(tiny_data, tmp_path, monkeypatch):
    """Neither another vocabulary nor another word in a caption makes the encoder look again."""
    folder = Path(tiny_data['data_folder'])
    karpathy = json.loads((folder / 'dataset_shapes.json').read_text())
    encoder, paths = patches(), set()
    for frequency, changed in ((1, False), (3, False), (1, True)):
        if changed:
            karpathy['images'][0]['sentences'][0]['tokens'][0] = 'another'
        (tmp_path / 'set.json').write_text(json.dumps(karpathy))
        name = create_input_files('set', tmp_path / 'set.json', folder, min_word_freq=frequency,
                                  output_folder=tmp_path, workers=1)['data_name']
        paths.add(encode_images(encoder, tmp_path, name, 'TRAIN'))
        monkeypatch.setattr(encoder, 'native_grid', lambda images: pytest.fail('encoded again'))
    assert len(paths) == 1


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


class Powered(Patches):
    def __init__(self, power):
        super().__init__()
        self.power = power


@pytest.mark.parametrize('power', [7, 1.5, 'x', (1, 2), {'a': None}, {1, 2}, [torch.ones(2)], np.ones(2)], ids=repr)
def test_digest_sees_plain_attributes(power):
    def digest(power):
        return encoder_digest(Encoder(Powered(power), None))

    assert digest(power) == digest(copy.deepcopy(power)) != digest(1)
    assert digest(object()) == digest(object())  # their repr has an address


def test_other_images_are_encoded_anew(data):
    encoder = patches()
    path = encode_images(encoder, *data, 'VAL')
    with h5py.File(path) as file:
        old = file['features'][:]
    with h5py.File(CaptionDataset(*data, 'VAL').images_path, 'r+') as file:
        file.attrs['pictures'] = 'others'
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


def test_a_run_that_was_stopped_leaves_nothing(data, monkeypatch):
    encoder = patches()
    with monkeypatch.context() as patch:
        stopping(encoder, patch, KeyboardInterrupt, at=4)
        encoder.train()
        with pytest.raises(KeyboardInterrupt):
            encode_images(encoder, *data, 'VAL', batch_size=2)
        assert encoder.training and left_behind(data[0]) == []
    calls = stopping(encoder, monkeypatch, KeyboardInterrupt, at=99)
    whole = encode_images(encoder, *data, 'VAL', batch_size=2)
    assert left_behind(data[0]) == [whole.name] and calls == [1, 2, 2, 2]


def test_a_killed_run_is_not_taken_for_a_whole_one(data):
    script = textwrap.dedent(f'''
        import os, signal, sys
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(features.__file__).parents[2])!r}]
        from lab.train import features
        from test_features import patches
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
    part, = left_behind(data[0])
    assert part.endswith('.part')
    path = encode_images(patches(), *data, 'TRAIN', batch_size=4)
    with h5py.File(path) as file, torch.no_grad():
        expected = patches().eval().native_grid(CaptionDataset(*data, 'TRAIN').images(torch.arange(24)))
        assert torch.allclose(torch.from_numpy(file['features'][:]).float(), expected, atol=2e-3)


def test_a_full_disk_leaves_nothing(data, monkeypatch):
    encoder = patches()
    stopping(encoder, monkeypatch, OSError(28, 'No space left on device'), at=3)
    with pytest.raises(OSError, match='VAL_.* cannot be written .No space left on device.: make room, .* or set cache'):
        encode_images(encoder, *data, 'VAL', batch_size=2)
    assert left_behind(data[0]) == []


def train_and_test_on_a_read_only_folder(cfg):
    folder = cfg['data_folder']
    if os.geteuid():
        os.chmod(folder, 0o555)
    else:  # root may write wherever nothing is mounted read-only; in this process alone it is
        assert ctypes.CDLL(None).unshare(0x20000) == 0  # CLONE_NEWNS
        for mount in ('--make-rprivate /', f'--bind {folder} {folder}', f'-o remount,ro,bind {folder}'):
            subprocess.run(['mount', *mount.split()], check=True)
    with pytest.raises(OSError):
        Path(folder, 'new').touch()
    train(cfg)
    evaluate(load_models(cfg['output_folder'], 'Attention')['Attention'], beam_sizes=1)


@pytest.mark.skipif(not os.geteuid() and subprocess.run(['unshare', '-m', 'true']).returncode,
                    reason='root may not mount a folder here')
def test_a_read_only_data_folder(tiny_cfg, tmp_path):
    """As every input of Kaggle is: features go to the output folder."""
    shutil.copytree(tiny_cfg['data_folder'], tmp_path / 'data', ignore=shutil.ignore_patterns('*FEATURES*'))
    before = sorted(path.name for path in (tmp_path / 'data').iterdir())
    run = run_in_processes(1, train_and_test_on_a_read_only_folder, {**tiny_cfg, 'data_folder': str(tmp_path / 'data')})
    assert run.returncode == 0, run.stderr
    assert run.stdout.count('cannot be written') == 2  # of TRAIN and VAL together, and of TEST
    assert before == sorted(path.name for path in (tmp_path / 'data').iterdir())
    assert len([*Path(tiny_cfg['output_folder']).glob('*_FEATURES_*')]) == 3


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
def test_features_in_memory_are_those_of_the_file(data, size):
    encoder = Encoder(Patches(), size)
    files = [encode_images(encoder, *data, 'VAL', mirror=mirror) for mirror in (False, True)]
    dataset, fast = (CaptionDataset(*data, 'VAL', features=files[0], mirrored=files[1]) for _ in range(2))
    fast.use_features(*files, in_memory=read_into_memory(files, encoder))
    numbers = torch.tensor([0, 3, 7, 11])
    assert fast.in_memory.shape[1] == min(size or 16, 16)
    assert torch.allclose(encoder.resize(fast.images(numbers).float()),
                          encoder.resize(dataset.images(numbers).float()), atol=2e-3)


def test_features_too_large_for_the_memory_stay_in_their_file(data, monkeypatch):
    encoder = patches()
    files = [encode_images(encoder, *data, 'VAL')]
    needed = 6 * 2 * 2 * 4 * 2
    for free, fits in ((2 * needed - 1, False), (2 * needed, True)):
        monkeypatch.setattr(features.psutil, 'virtual_memory', lambda free=free: SimpleNamespace(available=free))
        assert (read_into_memory(files, encoder) is not None) == fits
    with monkeypatch.context() as patch:  # they share this machine's memory
        patch.setattr(features.distributed, 'on_this_machine', lambda: 2)
        assert read_into_memory(files, encoder) is None
    assert read_into_memory(files, encoder) is not None


@pytest.mark.parametrize(('limit', 'fits'), [('1000', True), ('999', False), ('max', True)])
def test_a_container_may_have_less_memory_than_its_machine(data, tmp_path, monkeypatch, limit, fits):
    """1000 - (2000 - 1100 - 92) bytes are left, which the features need."""
    encoder = patches()
    files = [encode_images(encoder, *data, 'VAL')]
    monkeypatch.setattr(features, 'CGROUP', tmp_path)
    (tmp_path / 'memory.max').write_text(f'{limit}\n')
    (tmp_path / 'memory.current').write_text('2000\n')
    (tmp_path / 'memory.stat').write_text('anon 700\ninactive_file 1100\nactive_file 92\n')
    monkeypatch.setattr(features, 'MEMORY_SHARE', 1)
    monkeypatch.setattr(features.psutil, 'virtual_memory', lambda: SimpleNamespace(available=10 ** 6))
    assert (read_into_memory(files, encoder) is not None) == fits


def test_too_little_disk_space(data, monkeypatch):
    needed = 6 * 16 * 16 * 4 * 2
    monkeypatch.setattr(features.shutil, 'disk_usage', lambda _: SimpleNamespace(free=needed - 1))
    with pytest.raises(OSError, match='features need 0.0123 MB, but .* 0.0123 MB free: make room, or set cache'):
        encode_images(patches(), *data, 'VAL')
    assert left_behind(data[0]) == []
    monkeypatch.setattr(features.shutil, 'disk_usage', lambda _: SimpleNamespace(free=needed))
    encode_images(patches(), *data, 'VAL')


def test_disk_space_of_all_splits_is_seen_to_first(data, monkeypatch, capsys):
    wanted, picture = [('TRAIN', False), ('TRAIN', True), ('VAL', False)], 16 * 16 * 4 * 2
    monkeypatch.setattr(features.shutil, 'disk_usage', lambda _: SimpleNamespace(free=54 * picture - 1))
    with pytest.raises(OSError, match=f'need {54 * picture / 1e6:.3g} MB, but'):
        encode_splits(patches(), *data, wanted)
    assert left_behind(data[0]) == []
    monkeypatch.setattr(features.shutil, 'disk_usage', lambda _: SimpleNamespace(free=54 * picture))
    paths = encode_splits(patches(), *data, wanted)
    assert 'features need 0.111 MB of disk space; 0.111 MB are free.' in capsys.readouterr().out
    assert sorted(left_behind(data[0])) == sorted(path.name for path in paths) and len(set(paths)) == 3
    paths[1].unlink()
    encode_splits(patches(), *data, wanted)
    assert f'features need {24 * picture / 1e6:.3g} MB' in capsys.readouterr().out
    encode_splits(patches(), *data, wanted)
    assert 'need' not in capsys.readouterr().out


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
