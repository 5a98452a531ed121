"""Checkpoints: complete, readable without running code, and refused in clear words where they do not fit."""

import io
import json
import os
import pickle
import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.data.vocabulary import load_word_map
from lab.decode.evaluate import caption_split
from lab.train.checkpoints import (
    checkpoint_paths,
    decoder_name,
    load_model,
    load_models,
    random_states,
    read_checkpoint,
    restore_random_states,
    save_checkpoint,
)
from lab.train.inputs import caption_dataset
from solver import DEFAULTS, train, validate


@pytest.fixture(scope='module')
def trained(tiny_data, tmp_path_factory):
    """(settings, history) of two epochs, for each decoder; do not write into their folder."""
    folder = tmp_path_factory.mktemp('trained')
    found = {}
    for attention in (False, True):
        cfg = dict(**tiny_data, encoder='shapes_cnn', encoded_image_size=4, embed_dim=12, decoder_dim=16,
                   attention_dim=10, attention=attention, epochs=2, batch_size=20, decoder_lr=1e-2, device='cpu',
                   output_folder=str(folder))
        found[attention] = {**DEFAULTS, **cfg}, train(cfg)
    return found


@pytest.fixture(params=[False, True], ids=['rnn', 'attention'])
def one(trained, request):
    return trained[request.param]


def only_plain(value):
    if isinstance(value, dict):
        return all(isinstance(key, (str, int)) and only_plain(v) for key, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(only_plain, value))
    return value is None or type(value) in (str, int, float, bool, torch.Tensor)


def test_contents(one, tiny_data):
    cfg, history = one
    latest, best = checkpoint_paths(cfg)
    assert latest.name == f"checkpoint_{cfg['data_name']}_{decoder_name(cfg)}.pth.tar"
    assert best.name == f'BEST_checkpoint_{decoder_name(cfg)}.pth.tar'
    for path in (latest, best):
        state = torch.load(path, map_location='cpu', weights_only=True)
        assert set(state) == {'format', 'settings', 'word_map', 'history', 'fingerprints', 'decoder', 'encoder',
                              'encoder_digest', 'optimizers', 'schedulers', 'random_states'}
        assert only_plain({**state, 'decoder': dict(state['decoder'])})
        assert state['settings'] == cfg
        assert state['word_map'] == load_word_map(**tiny_data)
        assert state['history'] == history[:len(state['history'])]
        assert state['encoder'] is None  # frozen: by name and digest only
        moments = state['optimizers']['decoder']['state']
        assert len(moments) == len(list(load_model(path, 'cpu').decoder.parameters()))
        assert set(state['random_states']) == {'python', 'numpy', 'torch', 'cuda'}
    assert torch.load(latest, weights_only=True)['history'] == history


def test_no_module_is_pickled(one):
    for path in checkpoint_paths(one[0]):
        with zipfile.ZipFile(path) as archive:
            code = archive.read(next(name for name in archive.namelist() if name.endswith('data.pkl')))
        assert b'cmodels' not in code and b'ctorch.nn' not in code and b'cnumpy' not in code


def test_random_states_round_trip():
    def draw():
        return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()]

    random.gauss(0, 1), np.random.randn()  # each keeps a second number back
    states = random_states()
    first = draw()
    assert draw() != first
    restore_random_states(states)
    assert draw() == first


def test_random_states_survive_the_file(tmp_path):
    torch.save(random_states(), tmp_path / 'states')
    first = [random.random(), np.random.rand(), torch.rand(1).item()]
    restore_random_states(torch.load(tmp_path / 'states', weights_only=True))
    assert [random.random(), np.random.rand(), torch.rand(1).item()] == first


class Evil:
    def __reduce__(self):
        return Path.touch, (Path('evil'),)


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.mark.parametrize('content', [
    pytest.param(b'', id='empty'), pytest.param(b'{"a": 1}', id='text'),
    pytest.param(pickle.dumps({'format': 2}), id='pickle'), pytest.param(pickle.dumps(Evil()), id='code'),
    pytest.param(saved(Evil()), id='saved code'), pytest.param(None, id='cut')])
def test_no_checkpoint(trained, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / 'some.pth.tar'
    if content is None:
        content = checkpoint_paths(trained[True][0])[0].read_bytes()[:-5000]
    path.write_bytes(content)
    with pytest.raises(ValueError, match='some.pth.tar is not a checkpoint of this lab .*train again') as caught:
        load_model(path, 'cpu')
    assert 'weights_only' not in str(caught.value) and '\n' not in str(caught.value)
    assert not (tmp_path / 'evil').exists()


@pytest.mark.parametrize('state', [{'a': 1}, [1, 2], {'format': 1}, torch.zeros(3), {'model': {}}])
def test_files_of_others(tmp_path, state):
    torch.save(state, tmp_path / 'other.pth')
    with pytest.raises(ValueError, match='other.pth is not a checkpoint of this lab'):
        read_checkpoint(tmp_path / 'other.pth')


def test_missing_checkpoint(tmp_path):
    with pytest.raises(ValueError, match='there is no checkpoint .*nowhere.pth: train first'):
        load_model(tmp_path / 'nowhere.pth')


def test_models_of_a_folder(trained, tmp_path):
    shutil.copy(checkpoint_paths(trained[True][0])[1], tmp_path)
    assert list(load_models(tmp_path, ['Attention'])) == ['Attention'] == list(load_models(tmp_path, 'Attention'))
    with pytest.raises(ValueError, match=r"NoAttention.pth.tar: train .*, or take 'NoAttention' out of decoders"):
        load_models(tmp_path, ['NoAttention', 'Attention'])


@pytest.mark.parametrize(('changes', 'message'), [
    (dict(encoder_weights=None), 'other encoder weights than those loaded now'),
    (dict(decoder_dim=17), 'does not fit the decoder or encoder of the settings'),
    (dict(attention=False), 'does not fit the decoder or encoder of the settings'),
    (dict(decoder='models.Renamed'), "does not fit this code: setting 'decoder' is 'models.Renamed'.* has no class")])
def test_what_does_not_fit(trained, tmp_path, changes, message):
    state = read_checkpoint(checkpoint_paths(trained[True][0])[0])
    state['settings'].update(changes)
    torch.save(state, tmp_path / 'changed.pth')
    with pytest.raises(ValueError, match=f'changed.pth.* {message}'):
        load_model(tmp_path / 'changed.pth', 'cpu')


def test_loaded_model_does_what_the_training_measured(one):
    cfg, history = one
    latest, best = checkpoint_paths(cfg)
    model = load_model(latest, 'cpu')
    assert not model.encoder.training and not model.decoder.training
    assert model.name == decoder_name(cfg) and model.history == history and model.settings == cfg
    scores = validate(model, caption_dataset(model, 'VAL'))
    for name, score in scores.items():
        assert score == pytest.approx(history[-1][f'val_{name}'], abs=1e-6), name
    of_best = read_checkpoint(best)['history'][-1]
    assert of_best['val_greedy_bleu4'] == max(epoch['val_greedy_bleu4'] for epoch in history)


def test_save_and_load_again(one, tmp_path):
    cfg, _ = one
    model = load_model(checkpoint_paths(cfg)[0], 'cpu')
    before = caption_split(model, 'VAL', beam_size=2)
    paths = [tmp_path / 'a' / 'one.pth', tmp_path / 'two.pth']
    save_checkpoint(paths, model, {}, {})
    for path in paths:
        after = caption_split(load_model(path, 'cpu'), 'VAL', beam_size=2)
        assert [c['caption'] for c in after] == [c['caption'] for c in before]
        assert [c['score'] for c in after] == [c['score'] for c in before]
    assert sorted(path.name for path in tmp_path.rglob('*')) == ['a', 'one.pth', 'two.pth']


def test_a_failed_save_leaves_the_old_file(trained, tmp_path, monkeypatch):
    model = load_model(checkpoint_paths(trained[True][0])[0], 'cpu')
    path = tmp_path / 'kept.pth'
    save_checkpoint([path], model, {}, {})
    before = path.read_bytes()

    def full(state, file):
        file.write(b'half')
        raise OSError('no space left on device')

    monkeypatch.setattr(torch, 'save', full)
    with pytest.raises(OSError, match='no space left'):
        save_checkpoint([path], model, {}, {})
    assert path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ['kept.pth']


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs /dev/full')
def test_a_full_disk_is_named(trained, tmp_path):
    model = load_model(checkpoint_paths(trained[True][0])[0], 'cpu')
    path = tmp_path / 'kept.pth'
    save_checkpoint([path], model, {}, {})
    before = path.read_bytes()
    (tmp_path / f'.kept.pth.{os.getpid()}.part').symlink_to('/dev/full')  # what is written goes there
    with pytest.raises(OSError, match='kept.pth cannot be written .No space left on device.: make room') as caught:
        save_checkpoint([path], model, {}, {})
    assert '\n' not in str(caught.value) and path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ['kept.pth']


def test_nothing_unfinished_is_left(trained):
    names = [path.name for path in Path(trained[True][0]['output_folder']).iterdir()]
    assert len(names) == 6 and not any('.part' in name for name in names)
    for name in ('NoAttention', 'Attention'):
        json.loads((Path(trained[True][0]['output_folder']) / f'history_{name}.json').read_text())
