"""Several processes do what one does: two and four of them on CPUs, connected by gloo."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
import torch
from test_features import patches
from torch import nn

import processes
import solver
from checkpoints import checkpoint_paths, load_model, read_checkpoint
from evaluate import caption_split
from features import encode_images
from solver import DEFAULTS, train
from train import read_settings

FOLDER = Path(solver.__file__).parent
COMPARED = ('train_loss', 'train_top5', 'val_loss', 'val_top5', 'val_bleu4', 'val_greedy_bleu4')


def run_script(count, text, arguments=()):
    """Run a program by torchrun, as on a cluster; ``text``: its source, or the name of one of the lab's files."""
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', f'--nproc_per_node={count}']
    if text.endswith('.py'):
        command += [text, *arguments]
    else:
        command += ['--no-python', sys.executable, '-c', textwrap.dedent(text)]
    return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=300,
                          env={**os.environ, 'OMP_NUM_THREADS': '1'})


def weights(cfg):
    return read_checkpoint(checkpoint_paths({**DEFAULTS, **cfg})[0])['decoder']


def assert_alike(history, expected):
    assert len(history) == len(expected)
    for epoch, of_one in zip(history, expected, strict=True):
        for name in COMPARED:
            assert epoch[name] == pytest.approx(of_one[name], rel=1e-4, abs=1e-5), name


def whole(cfg):
    """What one process does, in a program of its own: the same threads, the same start."""
    return train({**cfg, 'output_folder': cfg['output_folder'] + '_whole'})


@pytest.mark.parametrize(('count', 'settings'), [
    (2, dict(attention=True, grad_clip=1e-3)),  # of the sum of all gradients
    (2, dict(attention=False)),  # batch norm sees the whole batch
    (4, dict(attention=True, by_picture=True, bucket=True)),
    (2, dict(attention=True, lean=False, accumulate=2)),
    (2, dict(attention=True, fine_tune_encoder=True, batch_size=60)),
], ids=['attention', 'rnn', 'four', 'own_forward_in_parts', 'fine_tuned'])
def test_the_same_curve_as_one_process_with_the_whole_batch(tiny_cfg, count, settings):
    cfg = {**tiny_cfg, **settings, 'dropout': 0.0}
    history = train({**cfg, 'processes': count})
    expected = whole({**cfg, 'accumulate': 1})
    assert_alike(history, expected)
    one = weights({**cfg, 'output_folder': cfg['output_folder'] + '_whole'})
    for name, value in weights(cfg).items():
        # softmax takes att's bias out again: its gradient is rounding
        if value.is_floating_point() and name != 'attention.att.bias':
            assert (value - one[name]).abs().max() < 5e-3 * one[name].abs().max() + 1e-3, name


def test_parts_of_a_batch_add_up_to_the_whole(tiny_cfg):
    cfg = {**tiny_cfg, 'dropout': 0.0}
    assert_alike(train({**cfg, 'accumulate': 3}), whole(cfg))


def test_with_dropout_each_process_drops_others_and_training_is_repeatable(tiny_cfg):
    cfg = {**tiny_cfg, 'epochs': 3, 'processes': 2}
    straight = train(cfg)
    stopped = {**cfg, 'output_folder': cfg['output_folder'] + '_stopped'}
    train({**stopped, 'epochs': 2})
    latest, _ = checkpoint_paths({**DEFAULTS, **stopped})
    resumed = train({**stopped, 'checkpoint': str(latest)})
    for epoch, again in zip(straight, resumed, strict=True):
        assert {**epoch, 'seconds': 0} == {**again, 'seconds': 0}
    for name, value in weights(cfg).items():
        assert torch.equal(value, weights(stopped)[name])


@pytest.mark.parametrize(('first', 'then'), [(2, 1), (1, 2), (4, 2)])
def test_resume_with_another_number_of_processes(tiny_cfg, first, then):
    cfg = {**tiny_cfg, 'dropout': 0.0, 'epochs': 3}
    train({**cfg, 'epochs': 2, 'processes': first})
    latest, _ = checkpoint_paths({**DEFAULTS, **cfg})
    history = train({**cfg, 'processes': then, 'checkpoint': str(latest)})
    assert_alike(history, whole(cfg))


def test_one_process_writes_checkpoints(tiny_cfg, tmp_path, monkeypatch):
    real, seen = solver.save_checkpoint, tmp_path / 'seen'
    seen.touch()

    def save(*args):
        with seen.open('a') as file:
            file.write(f'{processes.rank()}\n')
        real(*args)

    monkeypatch.setattr(solver, 'save_checkpoint', save)
    train({**tiny_cfg, 'processes': 2})
    assert seen.read_text() == '0\n' * tiny_cfg['epochs']


def _patience(folder):
    processes.connect('cpu')
    group = torch.distributed.distributed_c10d._get_default_group()
    (folder / f'{processes.rank()}').write_text(f'{group._timeout.total_seconds()}' if hasattr(
        group, '_timeout') else f'{group._get_backend(torch.device("cpu")).options._timeout.total_seconds()}')


def test_processes_wait_for_one_that_encodes_for_hours(tmp_path):
    """Or that waits for another training's features; torch's own limit is half an hour."""
    processes.launch(_patience, tmp_path, processes=2)
    assert [(tmp_path / f'{rank}').read_text() for rank in (0, 1)] == [f'{processes.PATIENCE.total_seconds()}'] * 2


def test_a_killed_process_ends_the_job_with_a_clear_message(tiny_cfg, monkeypatch):
    real = solver.validate

    def validate(*args):
        if processes.rank() == 1 and read_epochs() == 1:  # before the other one can get through the second epoch
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    def read_epochs():
        path = solver.history_path({**DEFAULTS, **tiny_cfg})
        return len(json.loads(path.read_text())) if path.exists() else 0

    monkeypatch.setattr(solver, 'validate', validate)
    latest, _ = checkpoint_paths({**DEFAULTS, **tiny_cfg})
    with pytest.raises(RuntimeError) as caught:
        train({**tiny_cfg, 'processes': 2})
    assert 'process 1 of 2 was ended by SIGKILL' in str(caught.value)
    assert f"go on after the last epoch with checkpoint='{latest}'" in str(caught.value)
    monkeypatch.undo()
    assert [epoch['epoch'] for epoch in train({**tiny_cfg, 'processes': 2, 'checkpoint': str(latest)})] == [1, 2]


def test_what_a_process_raises_is_said_once(tiny_cfg):
    with pytest.raises(RuntimeError, match='process . of 2 failed: ValueError: there is no checkpoint nowhere'):
        train({**tiny_cfg, 'processes': 2, 'checkpoint': 'nowhere'})


LEFT_BEHIND = """
import gc
from torch.distributed import TCPStore
import processes

def train():
    processes.connect('cpu')
    gc.collect()

gc.disable()
left = [TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)]
left.append(left)  # as in the traceback of a launch that failed: it ends only when garbage is collected
del left
processes.launch(train, processes=2)
print('ended')
"""


def test_a_launch_after_one_that_failed_does_not_hang():
    """A connection's server has a thread; freed in a fork, it waits for whatever thread has that place there."""
    with subprocess.Popen([sys.executable, '-c', LEFT_BEHIND], cwd=FOLDER, stdout=subprocess.PIPE, text=True,
                          start_new_session=True) as run:
        try:
            assert 'ended' in run.communicate(timeout=60)[0]
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)


def _together(folder):
    processes.connect('cpu')
    module = nn.BatchNorm1d(3)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(processes.rank() + 5)
    processes.same_weights(module)
    assert all((tensor == 5).all() for tensor in (*module.parameters(), *module.buffers()))
    others = [p for p in psutil.Process(os.getppid()).children() if p.cmdline() == psutil.Process().cmdline()]
    (folder / str(processes.rank())).write_text(str(len(others)))


def test_all_processes_are_there_before_the_first_connects_and_signals_are_given_back(tmp_path, monkeypatch):
    """A process that is forked while another connects can find a lock taken for ever."""
    seen, real = [], processes.connect
    monkeypatch.setattr(processes, 'connect', lambda device: (
        seen.append(len(processes._forks(os.getppid()))), (tmp_path / f'seen{os.getpid()}').write_text(str(seen[0])),
        real(device)))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    processes.launch(_together, tmp_path, processes=4)
    assert [int((tmp_path / str(rank)).read_text()) for rank in range(4)]
    assert [path.read_text() for path in tmp_path.glob('seen*')] == ['4'] * 4
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def _interrupt(folder):
    processes.connect('cpu')
    if processes.rank() == 0:
        os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)


def test_an_interrupted_launch_ends_all_processes(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        processes.launch(_interrupt, tmp_path, processes=2)
    assert not processes._forks(os.getpid())


def test_the_hint_names_no_other_training(tiny_cfg, monkeypatch):
    cfg = {**tiny_cfg, 'epochs': 1}
    train(cfg)
    latest, _ = checkpoint_paths({**DEFAULTS, **cfg})
    real = solver.train_epoch

    def killed(*args):
        if processes.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    monkeypatch.setattr(solver, 'train_epoch', killed)
    for changes, hint in (dict(seed=3), False), (dict(checkpoint=str(latest), epochs=2), True):
        with pytest.raises(RuntimeError) as caught:
            train({**cfg, **changes, 'processes': 2})
        assert (f'checkpoint={str(latest)!r}' in str(caught.value)) == hint


def test_settings_are_checked_before_anything_starts(tiny_cfg, monkeypatch):
    monkeypatch.setattr(processes, 'launch', lambda *_, **__: 1 / 0)
    with pytest.raises(ValueError, match="unknown setting 'batchsize'"):
        train({**tiny_cfg, 'processes': 2, 'batchsize': 3})
    with pytest.raises(ValueError, match="setting 'processes' is 0"):
        train({**tiny_cfg, 'processes': 0})
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    with pytest.raises(ValueError, match="setting 'processes' is 2, but this machine has 1 GPU: one process each"):
        train({**tiny_cfg, 'processes': 2, 'device': None})


def test_train_and_evaluate_from_the_command_line(tiny_cfg):
    """By torchrun: features in shards, captions gathered without gaps, each file written once."""
    cfg = {**tiny_cfg, 'dropout': 0.0}
    run = run_script(2, 'train.py', [f'{name}={value}' for name, value in cfg.items()])
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(' * LOSS') == 2  # two epochs, one voice
    history = json.loads(solver.history_path(cfg | {'attention': True}).read_text())
    assert_alike(history, whole(cfg))
    assert sorted(path.name for path in Path(cfg['output_folder']).iterdir()) == [
        'BEST_checkpoint_Attention.pth.tar', f"checkpoint_{cfg['data_name']}_Attention.pth.tar",
        'history_Attention.json']

    run = run_script(4, 'evaluate.py', [cfg['output_folder'], 'Attention', '--beam-sizes', '2', '--device', 'cpu'])
    assert run.returncode == 0, run.stderr
    result = json.loads((Path(cfg['output_folder']) / 'test_Attention.json').read_text())
    model = load_model(Path(cfg['output_folder']) / 'BEST_checkpoint_Attention.pth.tar', 'cpu')
    expected = caption_split(model, 'TEST', 2)  # 6 pictures among 4 processes
    assert [c['name'] for c in result['captions']] == [c['name'] for c in expected]
    assert [c['caption'] for c in result['captions']] == [c['caption'] for c in expected]
    scores = [c['score'] for c in expected]
    assert [c['score'] for c in result['captions']] == pytest.approx(scores, rel=1e-5) and len(set(scores)) > 1
    score, = result['scores']
    assert run.stdout.count(f"Attention, beam 2: BLEU-1 {score['BLEU-1']:.3f}, ") == 1
    assert f"CIDEr-D {score['CIDEr-D']:.3f}" in run.stdout


def test_a_wrong_setting_on_the_command_line(tiny_cfg):
    for words, message in (('epochs', "'epochs' is no setting: write name=value"),
                           ('data_folder=nowhere', 'nowhere/WORDMAP_shapes'),
                           ('data_folder=nowhere processes=2 device=cpu', ' of 2 failed: FileNotFoundError: nowhere'),
                           ('epohcs=3', "unknown setting 'epohcs'; did you mean 'epochs'")):
        run = subprocess.run([sys.executable, 'train.py', *words.split()], cwd=FOLDER, capture_output=True, text=True)
        assert run.returncode == 1 and message in run.stderr.splitlines()[-1], run.stderr


@pytest.mark.parametrize(('text', 'value'), [
    ('dict(heads=2)', {'heads': 2}), ("{'heads': 2}", {'heads': 2}), ('dict()', {}), (' (1.0, 0.7)', (1.0, 0.7)),
    ('3e-4', 3e-4), ('None', None), ('runs/a', 'runs/a'), ('dict(a=b)', 'dict(a=b)'), ('list(a=1)', 'list(a=1)'),
    ('dict(**{1: 2})', 'dict(**{1: 2})'), ('dict(2)', 'dict(2)'), ('extensions.CaptionNet', 'extensions.CaptionNet')])
def test_values_on_the_command_line(text, value):
    assert read_settings([f'a={text}']) == {'a': value}


def test_features_in_shards_equal_those_of_one_process(tmp_path, tiny_data):
    """Three processes, one of them killed on its way; then two go on: the same bytes as one process's."""
    script = f'''
        import os, signal, sys
        from pathlib import Path
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(FOLDER)!r}]
        import features, processes
        from test_features import patches
        processes.connect('cpu')
        features.SAFE_EVERY = 2
        encoder, calls = patches(), []
        real = encoder.native_grid
        def native_grid(images):
            calls.append(1)
            if DIES and processes.rank() == 1 and len(calls) == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(images)
        encoder.native_grid = native_grid
        path = features.encode_images(encoder, {str(tmp_path)!r}, {tiny_data['data_name']!r}, 'TRAIN', batch_size=2)
        Path({str(tmp_path)!r}, f'encoded.{{processes.rank()}}').write_text(str(sum(calls[1:])))
        processes.disconnect()
    '''
    for path in Path(tiny_data['data_folder']).glob(f"*{tiny_data['data_name']}*"):
        if 'FEATURES' not in path.name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    killed = run_script(3, script.replace('DIES', 'True'))
    assert killed.returncode != 0 and 'SIGKILL' in killed.stderr, killed.stderr
    assert not list(tmp_path.glob('*FEATURES*.hdf5')) and list(tmp_path.glob('*FEATURES*.part'))
    run = run_script(2, script.replace('DIES', 'False'))
    assert run.returncode == 0, run.stderr
    batches = sum(int(path.read_text()) for path in tmp_path.glob('encoded.?'))
    assert 2 <= batches < 12  # of 24 pictures, two at a time; those that had been noted were not encoded again
    path, = tmp_path.glob('*FEATURES*')
    written = path.read_bytes()
    path.unlink()
    assert encode_images(patches(), tmp_path, tiny_data['data_name'], 'TRAIN') == path
    assert path.read_bytes() == written


def _normalise(rows, folder):
    """In a process: batch norm over its share of the rows; what came out, and the gradients."""
    processes.connect('cpu')
    module = batch_norm()
    processes.share_batch_norm(module)
    assert type(module[0]) is processes.SharedBatchNorm1d
    own = rows.tensor_split(processes.count())[processes.rank()].clone().requires_grad_()
    out = module(own)
    (out * out.detach().cos()).sum().backward()
    processes.sum_gradients(list(module.parameters()))
    found = processes.gather([(out.detach(), own.grad)])
    if processes.rank() == 0:
        torch.save([torch.cat(part) for part in zip(*found, strict=True)] + [module[0].weight.grad, module[0].bias.grad]
                   + [module[0].running_mean, module[0].running_var], folder / 'found')


def batch_norm():
    module = nn.Sequential(nn.BatchNorm1d(3)).double()
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
    return module


def test_batch_norm_over_all_processes(tmp_path):
    rows = torch.linspace(-1, 2, 21, dtype=torch.float64).sin().mul(7).cos().view(7, 3)
    processes.launch(_normalise, rows, tmp_path, processes=3)  # shares of 3, 2 and 2 rows
    module, x = batch_norm(), rows.clone().requires_grad_()
    out = module(x)
    (out * out.detach().cos()).sum().backward()
    expected = [out, x.grad, module[0].weight.grad, module[0].bias.grad, module[0].running_mean, module[0].running_var]
    for one, other in zip(torch.load(tmp_path / 'found'), expected, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-10, atol=1e-12)
