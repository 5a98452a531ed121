"""Several processes do what one does: two and four of them on CPUs, connected by gloo."""

import json
import os
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from processes import run_in_processes
from test_features import patches

import solver
from lab.decode.evaluate import caption_split
from lab.experiments.train import read_settings
from lab.train.checkpoints import checkpoint_paths, load_model, read_checkpoint
from lab.train.features import encode_images
from solver import DEFAULTS, train

FOLDER = Path(solver.__file__).parent
COMPARED = ('train_loss', 'train_top5', 'val_loss', 'val_top5', 'val_bleu4', 'val_greedy_bleu4')


def run_script(count, text, arguments=()):
    """Run a program: one of the lab's modules by torchrun, as on a cluster; or ``text``, its source."""
    if '\n' in text:
        return run_in_processes(count, textwrap.dedent(text))
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', f'--nproc_per_node={count}',
               '-m', text, *arguments]
    return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=300,
                          env={**os.environ, 'OMP_NUM_THREADS': '1'})


def train_in(count, cfg):
    """Train in several processes; :return: the history"""
    if count == 1:
        return train(cfg)
    run = run_in_processes(count, train, cfg)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(solver.history_path({**DEFAULTS, **cfg}).read_text())


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
    (2, dict(attention=True, alpha_c=0.0, grad_clip=1e-3)),  # of the sum of all gradients
    (4, dict(attention=True, alpha_c=0.0, by_picture=True)),
    (2, dict(attention=True, alpha_c=0.0, fast=False, accumulate=2)),
    (2, dict(attention=True, alpha_c=0.0, fine_tune_encoder=True, batch_size=60)),
], ids=['attention', 'four', 'own_forward_in_parts', 'fine_tuned'])
def test_the_same_curve_as_one_process_with_the_whole_batch(tiny_cfg, count, settings):
    cfg = {**tiny_cfg, **settings, 'dropout': 0.0}
    history = train_in(count, cfg)
    expected = whole({**cfg, 'accumulate': 1})
    assert_alike(history, expected)
    one = weights({**cfg, 'output_folder': cfg['output_folder'] + '_whole'})
    for name, value in weights(cfg).items():
        # softmax takes att's bias out again: its gradient is rounding
        if value.is_floating_point() and name != 'attention.att.bias':
            assert (value - one[name]).abs().max() < 5e-3 * one[name].abs().max() + 1e-3, name


def test_parts_of_a_batch_add_up_to_the_whole(tiny_cfg):
    cfg = {**tiny_cfg, 'dropout': 0.0, 'alpha_c': 0.0}  # the penalty is weighted by the words of a part
    assert_alike(train({**cfg, 'accumulate': 3}), whole(cfg))


def test_with_dropout_training_is_repeatable_and_resumes(tiny_cfg):
    cfg = {**tiny_cfg, 'epochs': 3}
    straight = train_in(2, cfg)
    stopped = {**cfg, 'output_folder': cfg['output_folder'] + '_stopped'}
    train_in(2, {**stopped, 'epochs': 2})
    latest, _ = checkpoint_paths({**DEFAULTS, **stopped})
    resumed = train_in(2, {**stopped, 'checkpoint': str(latest)})
    for epoch, again in zip(straight, resumed, strict=True):
        assert {**epoch, 'seconds': 0} == {**again, 'seconds': 0}
    for name, value in weights(cfg).items():
        assert torch.equal(value, weights(stopped)[name])


@pytest.mark.parametrize(('first', 'then'), [(2, 1), (1, 2), (4, 2)])
def test_resume_with_another_number_of_processes(tiny_cfg, first, then):
    cfg = {**tiny_cfg, 'dropout': 0.0, 'alpha_c': 0.0, 'epochs': 3}
    train_in(first, {**cfg, 'epochs': 2})
    latest, _ = checkpoint_paths({**DEFAULTS, **cfg})
    assert_alike(train_in(then, {**cfg, 'checkpoint': str(latest)}), whole(cfg))


def test_self_critical_training_in_two_processes(tiny_cfg):
    cfg = {**tiny_cfg, 'decoder_lr': 2e-2, 'epochs': 7}
    train(cfg)
    best = checkpoint_paths({**DEFAULTS, **cfg})[1]
    again = {**cfg, 'output_folder': cfg['output_folder'] + '_again', 'start_from': str(best), 'epochs': 1}
    assert train_in(2, {**again, 'self_critical': 'mean', 'decoder_lr': 3e-3})[0]['train_loss'] < 0


def test_one_process_writes_checkpoints_and_the_others_wait_for_hours(tiny_cfg):
    """Torch's own limit for those that wait is half an hour; encoding a large data set takes longer."""
    script = f"""
        import sys, torch
        sys.path.insert(0, {str(FOLDER)!r})
        from lab.train import distributed
        import solver
        writers, real = [], solver.save_checkpoint
        def save_checkpoint(*args):
            writers.append(distributed.rank())
            real(*args)
        solver.save_checkpoint = save_checkpoint
        solver.train({tiny_cfg!r})
        group = torch.distributed.distributed_c10d._get_default_group()
        patience = group._get_backend(torch.device('cpu')).options._timeout
        found = distributed.gather([(writers, patience == distributed.PATIENCE)])
        distributed.log(found)
        distributed.disconnect()
    """
    run = run_script(2, script)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.splitlines()[-1] == str([([0] * tiny_cfg['epochs'], True), ([], True)])


def test_batch_norm_of_the_plain_decoder_is_the_same_in_all_processes(tiny_cfg):
    """On CPUs each process normalises its own rows; they all go on with the main one's statistics."""
    cfg = {**tiny_cfg, 'attention': False}
    script = f"""
        import json, sys
        sys.path.insert(0, {str(FOLDER)!r})
        from lab.train import distributed
        import solver
        import torch
        seen, real = [], solver.validate
        def validate(model, *others):
            seen.append(distributed.gather([model.decoder.bn.running_mean.tolist()]))
            return real(model, *others)
        solver.validate = validate
        solver.train({cfg!r})
        if distributed.rank() == 0:
            print(json.dumps(seen))
        distributed.disconnect()
    """
    run = run_script(2, script)
    assert run.returncode == 0, run.stderr[-3000:]
    seen = json.loads(run.stdout.splitlines()[-1])
    assert len(seen) == cfg['epochs'] and all(first == second != [0.0] * len(first) for first, second in seen)


def test_a_killed_process_leaves_a_whole_checkpoint(tiny_cfg):
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {str(FOLDER)!r})
        from lab.train import distributed
        import solver
        real = solver.train_epoch
        def train_epoch(model, dataset, optimizers, epoch, *rest):
            if distributed.rank() == 1 and epoch == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(model, dataset, optimizers, epoch, *rest)
        solver.train_epoch = train_epoch
        solver.train({tiny_cfg!r})
    """
    run = run_script(2, script)
    assert run.returncode != 0 and 'SIGKILL' in run.stderr
    latest, _ = checkpoint_paths({**DEFAULTS, **tiny_cfg})
    assert [epoch['epoch'] for epoch in train_in(2, {**tiny_cfg, 'checkpoint': str(latest)})] == [1, 2]


def test_train_and_evaluate_from_the_command_line(tiny_cfg):
    """By torchrun: features in shards, captions gathered without gaps, each file written once."""
    cfg = {**tiny_cfg, 'dropout': 0.0, 'alpha_c': 0.0}
    run = run_script(2, 'lab.experiments.train', [f'{name}={value}' for name, value in cfg.items()])
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(' * LOSS') == 2  # two epochs, one voice
    history = json.loads(solver.history_path(cfg | {'attention': True}).read_text())
    assert_alike(history, whole(cfg))
    assert sorted(path.name for path in Path(cfg['output_folder']).iterdir()) == [
        'BEST_checkpoint_Attention.pth.tar', f"checkpoint_{cfg['data_name']}_Attention.pth.tar",
        'history_Attention.json']

    arguments = [cfg['output_folder'], 'Attention', '--beam-sizes', '2', '--device', 'cpu']
    run = run_in_processes(4, f"""
import runpy, sys
sys.argv = ['evaluate', *{arguments!r}]
runpy.run_module('lab.decode.evaluate', run_name='__main__')
""")
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


@pytest.mark.filterwarnings('ignore:.*found in sys.modules')
def test_a_wrong_setting_on_the_command_line(tiny_cfg, monkeypatch):
    for words, message in (('epochs', "'epochs' is no setting: write name=value"),
                           ('data_folder=nowhere', 'nowhere/WORDMAP_shapes'),
                           ('epohcs=3', "unknown setting 'epohcs'; did you mean 'epochs'")):
        monkeypatch.setattr(sys, 'argv', ['train', *words.split()])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_module('lab.experiments.train', run_name='__main__')
        assert message in stopped.value.code and '\n' not in stopped.value.code


@pytest.mark.parametrize(('text', 'value'), [
    ("{'heads': 2}", {'heads': 2}), (' (1.0, 0.7)', (1.0, 0.7)), ('3e-4', 3e-4), ('None', None), ('runs/a', 'runs/a'),
    ('lab.more.cells.DecoderWithCell', 'lab.more.cells.DecoderWithCell')])
def test_values_on_the_command_line(text, value):
    assert read_settings([f'a={text}']) == {'a': value}


def test_features_in_shards_equal_those_of_one_process(tmp_path, tiny_data):
    """Three processes, one of them killed on its way; then two: the same bytes as one process's."""
    script = f'''
        import os, signal, sys
        from pathlib import Path
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(FOLDER)!r}]
        from lab.train import features
        from lab.train import distributed
        from test_features import patches
        distributed.connect('cpu')
        encoder, calls = patches(), []
        real = encoder.native_grid
        def native_grid(images):
            calls.append(1)
            if DIES and distributed.rank() == 1 and len(calls) == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(images)
        encoder.native_grid = native_grid
        path = features.encode_images(encoder, {str(tmp_path)!r}, {tiny_data['data_name']!r}, 'TRAIN', batch_size=2)
        distributed.disconnect()
    '''
    for path in Path(tiny_data['data_folder']).glob(f"*{tiny_data['data_name']}*"):
        if 'FEATURES' not in path.name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    killed = run_script(3, script.replace('DIES', 'True'))
    assert killed.returncode != 0 and 'SIGKILL' in killed.stderr, killed.stderr
    assert not list(tmp_path.glob('*FEATURES*.hdf5'))
    run = run_script(2, script.replace('DIES', 'False'))
    assert run.returncode == 0, run.stderr
    path, = tmp_path.glob('TRAIN_FEATURES*.hdf5')
    written = path.read_bytes()
    path.unlink()
    assert encode_images(patches(), tmp_path, tiny_data['data_name'], 'TRAIN') == path
    assert path.read_bytes() == written


