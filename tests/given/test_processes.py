"""Several processes on CPUs do what one does, by torchrun and by ``accelerate launch``."""

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from accelerate import debug_launcher
from test_solver import without_seconds

import solver
from datasets import CaptionDataset
from lab.data.vocabulary import encode_caption
from lab.train.checkpoints import checkpoint_paths
from solver import DEFAULTS, train
from utils import write_json

LAUNCHERS = {
    'torchrun': ['torch.distributed.run', '--standalone', '--nproc_per_node=2'],
    'accelerate': ['accelerate.commands.launch', '--multi_gpu', '--num_processes=2', '--num_machines=1',
                   '--main_process_port=0', '--mixed_precision=no', '--dynamo_backend=no']}


def run_in_processes(count, function, *arguments):
    """Run a function in processes that accelerate forks; torchrun takes seconds to start them.

    :return: what it returns, and what it prints: two tuples, by the number of the process
    """
    with tempfile.TemporaryDirectory() as folder:
        debug_launcher(one_process, (folder, function, arguments), count)
        return zip(*(torch.load(f'{folder}/{rank}', weights_only=False) for rank in range(count)), strict=True)


def one_process(folder, function, arguments):
    os.environ['LOCAL_RANK'] = str(torch.distributed.get_rank())  # as torchrun says it
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        result = function(*arguments)
    torch.save((result, printed.getvalue()), f'{folder}/{torch.distributed.get_rank()}')


def training(cfg):
    """Train in a folder of this process.

    :return: history, weights, path of the latest checkpoint, names of the files
    """
    folder, runs, real = Path(cfg['output_folder'], os.environ.get('LOCAL_RANK', '0')), [], solver.make_run
    cfg = {**DEFAULTS, **cfg, 'output_folder': str(folder)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, 'make_run', lambda *options: runs.append(real(*options)) or runs[-1])
        history = train(cfg)
    latest, _ = checkpoint_paths(cfg)
    return history, runs[-1].model.state_dict(), latest, sorted(path.name for path in folder.iterdir())


def train_in(count, cfg):
    """:return: history, weights, path of the latest checkpoint of the main process"""
    if count == 1:
        return training(cfg)[:3]
    results, printed = run_in_processes(count, training, cfg)
    (history, weights, latest, files), *others = results
    assert len(files) == 3 and all(other[3] == [] for other in others)  # one writes
    assert printed[0] and not any(printed[1:])  # one prints
    for other_history, other_weights, *_ in others:
        assert without_seconds(other_history) == without_seconds(history)
        assert all(torch.equal(value, weights[name]) for name, value in other_weights.items())
    return history, weights, latest


def assert_alike(history, expected):
    """But for rounding. The loss of validation is left out: its penalty is weighted by the words of a share."""
    for epoch, of_one in zip(without_seconds(history), without_seconds(expected), strict=True):
        del epoch['val_loss'], epoch['monitor']
        assert epoch == pytest.approx({name: of_one[name] for name in epoch}, rel=1e-4, abs=1e-5)


@pytest.fixture
def equal_cfg(tiny_cfg, data):
    """All shares of a batch weigh the same: each caption to learn from has seven words. And no dropout."""
    (folder, name), dataset = data, CaptionDataset(*data, 'TRAIN')
    captions = [encode_caption((words * 7)[:7], dataset.word_map, 7) for those in dataset.references for words in those]
    write_json(folder / f'TRAIN_CAPTIONS_{name}.json', captions)
    write_json(folder / f'TRAIN_CAPLENS_{name}.json', [9] * len(captions))
    return {**tiny_cfg, 'data_folder': str(folder), 'dropout': 0.0, 'batch_size': 10, 'decoder_lr': 1e-2}


def folder_of(cfg, name):
    return {**cfg, 'output_folder': f"{cfg['output_folder']}_{name}"}


@pytest.mark.parametrize('settings', [
    dict(grad_clip=1e-3, batch_size=11), dict(fast=False, batch_size=30, accumulate=3),
    dict(fine_tune_encoder=True, batch_size=30)],
    ids=['attention', 'own forward in parts', 'fine-tuned'])
def test_two_processes_do_what_one_does_with_the_whole_batch(equal_cfg, settings):
    history, weights, _ = train_in(2, {**equal_cfg, **settings})
    even = settings['batch_size'] // 2 * 2
    alone = {**folder_of(equal_cfg, 'one'), **settings, 'accumulate': 1, 'batch_size': even}
    expected, weights_of_one, _ = train_in(1, alone)
    assert_alike(history, expected)
    for name, value in weights.items():
        if not name.endswith('attention.att.bias'):  # softmax takes it out again: its gradient is rounding
            one = weights_of_one[name]
            assert (value - one).abs().max() < 5e-3 * one.abs().max() + 1e-3, name


@pytest.mark.parametrize(('name', 'settings'), [('plain', {}), ('attention', dict(self_critical='mean'))])
def test_one_and_one_epoch_are_two(trained, tmp_path, name, settings):
    """To the last bit, in spite of dropout and drawn captions; statistics of batch norm as well."""
    cfg = trained(name)[0]
    if 'self_critical' in settings:
        settings = {**settings, 'start_from': str(checkpoint_paths({**DEFAULTS, **cfg})[1])}
    cfg = {**cfg, **settings, 'epochs': 2, 'output_folder': str(tmp_path / 'runs')}
    history, weights, _ = train_in(2, cfg)
    assert history[1]['train_loss'] < history[0]['train_loss']
    _, _, latest = train_in(2, {**folder_of(cfg, 'parts'), 'epochs': 1})
    again, weights_again, _ = train_in(2, {**folder_of(cfg, 'parts'), 'checkpoint': str(latest)})
    assert without_seconds(again) == without_seconds(history)
    assert all(torch.equal(value, weights_again[name]) for name, value in weights.items())


def launch_training(by, cfg):
    """:return: the history"""
    settings = [f'{name}={value}' for name, value in cfg.items()]
    run = subprocess.run([sys.executable, '-m', *LAUNCHERS[by], '-m', 'lab.experiments.train', *settings],
                         capture_output=True, text=True, timeout=300, cwd=Path(solver.__file__).parent,
                         env={**os.environ, 'OMP_NUM_THREADS': '1'})
    if run.returncode:
        raise RuntimeError(run.stderr)
    history = json.loads(Path(cfg['output_folder'], 'history_Attention.json').read_text(encoding='utf-8'))
    assert run.stdout.count('TOP-5') == 1  # one epoch, one voice
    return history


def test_train_and_go_on_from_the_command_line(equal_cfg):
    launch_training('torchrun', {**equal_cfg, 'epochs': 1})
    latest, _ = checkpoint_paths({**DEFAULTS, **equal_cfg})
    history = launch_training('accelerate', {**equal_cfg, 'checkpoint': str(latest)})
    assert_alike(history, train_in(1, folder_of(equal_cfg, 'one'))[0])


@pytest.mark.filterwarnings('ignore:.*found in sys.modules')
@pytest.mark.parametrize(('words', 'hint'), [
    ('epochs', "'epochs'.*name=value"), ('data_folder=nowhere', 'nowhere/WORDMAP_shapes'),
    ('epohcs=3', "'epohcs'.*'epochs'")])
def test_a_wrong_setting_on_the_command_line(monkeypatch, words, hint):
    monkeypatch.setattr(sys, 'argv', ['train', *words.split()])
    with pytest.raises(SystemExit, match=hint):
        runpy.run_module('lab.experiments.train', run_name='__main__')
