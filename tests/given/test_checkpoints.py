"""Checkpoints: complete, readable without running code, and refused in clear words where they do not fit."""

import io
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from lab.train.checkpoints import checkpoint_paths, load_model, load_models, read_checkpoint, save_checkpoint
from solver import check_settings, make_optimizer, make_scheduler


@pytest.fixture
def latest(trained):
    """The latest checkpoint of a training; to be left as it is."""
    return checkpoint_paths(check_settings(trained('attention')[0]))[0]


class Evil:
    def __reduce__(self):
        return Path.touch, (Path('evil'),)


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.mark.parametrize('content', [
    pytest.param(lambda _: b'', id='empty'), pytest.param(lambda _: b'{"a": 1}', id='text'),
    pytest.param(lambda _: pickle.dumps({'format': 5}), id='pickle'),
    pytest.param(lambda _: pickle.dumps(Evil()), id='code'), pytest.param(lambda _: saved(Evil()), id='saved code'),
    pytest.param(lambda whole: whole[:-5000], id='cut'), pytest.param(lambda _: saved([1, 2]), id='list'),
    pytest.param(lambda _: saved({'format': 1}), id='old'), pytest.param(lambda _: saved({'model': {}}), id='other')])
def test_what_is_no_checkpoint_is_refused_without_running_code(latest, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / 'some.pth.tar'
    path.write_bytes(content(latest.read_bytes()))
    with pytest.raises(ValueError, match='some.pth.tar') as caught:
        load_model(path, 'cpu')
    assert 'weights_only' not in str(caught.value)  # torch's own advice is to read it all the same
    assert [file.name for file in tmp_path.iterdir()] == ['some.pth.tar']


def test_models_of_a_folder(trained, tmp_path):
    best = checkpoint_paths(check_settings(trained('attention')[0]))[1]
    shutil.copy(best, tmp_path)
    assert list(load_models(tmp_path, ['Attention'])) == ['Attention'] == list(load_models(tmp_path, 'Attention'))
    with pytest.raises(ValueError, match='BEST_checkpoint_NoAttention.pth.tar.*decoders'):
        load_models(tmp_path, ['NoAttention', 'Attention'])
    with pytest.raises(ValueError, match='nowhere.pth'):
        load_model(tmp_path / 'nowhere.pth')


@pytest.mark.parametrize(('changes', 'hint'), [
    (dict(encoder_weights=None), 'encoder_weights'), (dict(decoder_dim=17), 'decoder'),
    (dict(attention=False), 'decoder'), (dict(decoder='renamed.Mine'), 'renamed.py'), (dict(encoder=None), 'encoder=')])
def test_what_does_not_fit_is_refused(latest, tmp_path, changes, hint):
    state = read_checkpoint(latest)
    state['settings'].update(changes)
    torch.save(state, tmp_path / 'changed.pth')
    with pytest.raises(ValueError, match=f'changed.pth.*{hint}'):
        load_model(tmp_path / 'changed.pth', 'cpu')


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs /dev/full')
def test_a_full_disk_is_named_and_leaves_the_older_file(latest, tmp_path):
    model, path = load_model(latest, 'cpu'), tmp_path / 'kept.pth'
    optimizer = make_optimizer(model)
    shutil.copy(latest, path)
    (tmp_path / f'.kept.pth.{os.getpid()}.part').symlink_to('/dev/full')  # what is written goes there
    with pytest.raises(OSError, match='kept.pth.*No space left'):
        save_checkpoint([path], model, optimizer, make_scheduler(optimizer, model.settings, None))
    assert path.read_bytes() == latest.read_bytes() and [path] == [*tmp_path.iterdir()]
