"""The training loop: settings, what is measured and saved, and going on after a stop or a kill."""

import contextlib
import copy
import functools
import io
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import solver
from create_input_files import create_input_files
from datasets import CaptionDataset
from lab.data.vocabulary import load_word_map
from lab.decode.beam_search import Hypothesis
from lab.decode.evaluate import caption_split
from lab.decode.metrics import bleu
from lab.figures import read_histories
from lab.train import checkpoints, features, forward, inputs
from lab.train.checkpoints import (
    CaptionModel,
    checkpoint_paths,
    load_model,
    load_models,
    read_checkpoint,
    save_checkpoint,
)
from lab.train.forward import true_words
from lab.train.inputs import caption_dataset
from lab.train.settings import plain
from solver import DEFAULTS, caption_loss, check_settings, train, train_epoch, validate
from utils import atomic_path, best_epoch, read_json, topk_accuracy

KINDS = [pytest.param(False, id='rnn'), pytest.param(True, id='attention')]


SMALL = dict(encoder='shapes_cnn', encoded_image_size=4, embed_dim=12, decoder_dim=16, attention_dim=10,
             dropout=0.3, batch_size=20, decoder_lr=5e-3, device='cpu')


# --- Settings ---


def test_defaults_are_filled_in_and_the_device_decided():
    cfg = check_settings({'epochs': 3, 'data_folder': Path('a')})
    assert set(cfg) == set(DEFAULTS)
    assert cfg['epochs'] == 3 and cfg['batch_size'] == DEFAULTS['batch_size'] and cfg['data_folder'] == 'a'
    assert cfg['device'] == ('cuda' if torch.cuda.is_available() else 'cpu')


def test_unknown_setting_is_named_with_a_near_match():
    with pytest.raises(ValueError, match="unknown setting 'batchsize'; did you mean 'batch_size'"):
        check_settings({'batchsize': 4})
    with pytest.raises(ValueError, match="unknown setting 'zzz'; known are .*grad_clip"):
        check_settings({'zzz': 4})


@pytest.mark.parametrize(('name', 'value'), [
    *[(name, value) for name in ('embed_dim', 'attention_dim', 'decoder_dim', 'epochs', 'batch_size', 'print_freq',
                                    'accumulate')
      for value in (0, -1, 2.0, True, '4', None)],
    *[('seed', value) for value in (-1, 0.5, False, None)], ('epochs', np.float64(2)), ('epochs', np.array([2])),
    *[(name, value) for name in ('encoder_lr', 'decoder_lr') for value in (0, -1e-3, math.inf, math.nan, '1e-3')],
    ('grad_clip', 0), ('grad_clip', -1), ('grad_clip', math.nan), ('alpha_c', -0.1), ('alpha_c', math.inf),
    *[('alpha_c', value) for value in (None, (1.0,), (1.0, -0.1), (True, 1))],
    ('dropout', 1), ('dropout', -0.1), ('dropout', True),
    *[(name, 1) for name in ('attention', 'fine_tune_encoder', 'cache_features', 'cosine')],
    ('encoder_stride', 0), ('encoded_image_size', 0), ('encoded_image_size', 3.5), ('data_folder', None),
    ('output_folder', 3), ('data_name', 3), ('encoder', 5), ('decoder', 5), ('encoder_weights', 5),
    ('checkpoint', False)])
def test_impossible_values_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"setting '{name}' is {re.escape(repr(plain(value)))}"):
        check_settings({name: value})


def test_the_bounds_themselves_are_allowed():
    check_settings(dict(epochs=1, batch_size=1, seed=0, dropout=0, alpha_c=0, grad_clip=None,
                        encoder_stride=None, encoded_image_size=None, device='cpu'))


def test_values_of_numpy_become_pythons_own():
    given = dict(epochs=np.int64(3), dropout=np.float32(0.5), alpha_c=np.array([1.0, 0.0]), attention=np.bool_(True),
                 data_folder=Path('a'), decoder_options=dict(heads=np.int32(2)), device='cpu')
    cfg = check_settings(given)
    assert json.loads(json.dumps(cfg)) == cfg
    assert [cfg[name] for name in given] == [3, 0.5, [1.0, 0.0], True, 'a', dict(heads=2), 'cpu']


def test_a_tilde_is_the_home_folder(tiny_cfg, tmp_path, monkeypatch):
    for name in ('HOME', 'USERPROFILE'):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_cfg['data_folder'], tmp_path / 'data')
    train({**tiny_cfg, 'data_folder': '~/data', 'output_folder': Path('~/mine'), 'epochs': 1})
    model = load_models('~/mine', 'Attention')['Attention']
    assert read_histories('~/mine')['Attention'] == model.history
    with atomic_path('~/mine/note.json') as path:
        path.write_text('[1]')
    assert read_json('~/mine/note.json', '') == [1]
    assert len(CaptionDataset('~/data', tiny_cfg['data_name'], 'VAL')) == len(
        caption_split(model, 'VAL', 1, data_folder='~/data', data_name=tiny_cfg['data_name'])) * 5
    summary = create_input_files('copy', '~/data/dataset_shapes.json', '~/data', 5, 1, '~/prepared')
    assert (tmp_path / 'prepared' / f"WORDMAP_{summary['data_name']}.json").exists()
    assert not (tmp_path / '~').exists() and not [*(tmp_path / 'mine').glob('*_FEATURES_*')]


# --- The loss ---


@pytest.mark.parametrize('alpha_c', [0.0, 0.7])
def test_caption_loss_by_hand(alpha_c):
    rng = np.random.default_rng(0)
    lengths, words, pixels = [4, 2, 1], 9, 6
    scores = rng.normal(size=(3, 4, words))
    captions = np.array([[7, 1, 2, 3, 8, 0], [7, 4, 8, 0, 0, 0], [7, 8, 0, 0, 0, 0]])
    alphas = rng.dirichlet(np.ones(pixels), size=(3, 4))
    for row, length in enumerate(lengths):
        scores[row, length:], alphas[row, length:] = 0, 0

    log_p, right = [], []
    for row, length in enumerate(lengths):
        for t in range(length):
            target, s = captions[row, t + 1], scores[row, t]
            log_p.append(s[target] - np.log(np.exp(s).sum()))
            right.append((s > s[target]).sum() < 5)
    penalty = ((1 - alphas.sum(axis=1)) ** 2).mean()

    scores, captions, alphas = torch.tensor(scores), torch.tensor(captions), torch.tensor(alphas)
    decoded = true_words((scores, captions, lengths, alphas, torch.arange(3)))
    assert len(decoded.targets) == 7
    assert topk_accuracy(decoded.scores, decoded.targets, 5) == pytest.approx(100 * np.mean(right))
    loss = caption_loss(decoded.scores, decoded.targets, decoded.alphas, alpha_c)
    assert loss.item() == pytest.approx(-np.mean(log_p) + alpha_c * penalty)
    without_attention = true_words((scores, captions, lengths, torch.arange(3)))
    assert without_attention.alphas is None
    assert caption_loss(*without_attention[:3], alpha_c).item() == pytest.approx(-np.mean(log_p))


# --- Validation ---


class Perfect(nn.Module):
    """Foresees each true word, and sorts the batch as decoders do."""

    def __init__(self, vocab_size):
        super().__init__()
        self.vocab_size = vocab_size

    def forward(self, encoder_out, captions, caplens):
        caplens, order = caplens.flatten().sort(descending=True)
        captions, lengths = captions[order], (caplens - 1).tolist()
        scores = 10 * nn.functional.one_hot(captions[:, 1:max(lengths) + 1], self.vocab_size).float()
        return scores, captions, lengths, order


class NoEncoder(nn.Module):
    def resize(self, grid):
        return grid

    def forward(self, images):
        return images.float().mean(dim=(2, 3)).view(-1, 1, 1, 3)


def foreseeing_model(data, monkeypatch, **settings):
    word_map = load_word_map(data['data_folder'], data['data_name'])
    cfg = check_settings(dict(**data, attention=False, device='cpu', cache_features=False, **settings))
    monkeypatch.setattr(solver, 'greedy_search', lambda decoder, encoder_out, word_map, max_len=50: [
        Hypothesis([1], 0.0, True) for _ in encoder_out])
    return CaptionModel(NoEncoder(), Perfect(len(word_map)), word_map, cfg)


def known_words_only(dataset, word_map):
    dataset.references = [[[word for word in caption if word in word_map] for caption in captions]
                          for captions in dataset.references]
    return dataset


@pytest.mark.parametrize('batch_size', [7, 30])
def test_each_guess_is_compared_with_its_own_image(tiny_data, monkeypatch, batch_size):
    """A perfect guess scores 1 only beside the references of its own picture: the decoder has sorted the batch."""
    model = foreseeing_model(tiny_data, monkeypatch, batch_size=batch_size)
    dataset = known_words_only(caption_dataset(model, 'VAL'), model.word_map)
    assert dataset.caplens.flatten().tolist() != sorted(dataset.caplens.flatten().tolist(), reverse=True)
    scores = validate(model, dataset)
    assert scores['bleu4'] == pytest.approx(1)
    assert scores['top5'] == pytest.approx(100)
    dataset.references = dataset.references[1:] + dataset.references[:1]
    assert validate(model, dataset)['bleu4'] < 0.9


def test_rare_words_count_as_missed(tiny_data, tmp_path, monkeypatch):
    folder = Path(tiny_data['data_folder'])
    summary = create_input_files('shapes', folder / 'dataset_shapes.json', folder, min_word_freq=60,
                                 output_folder=tmp_path, workers=1)
    model = foreseeing_model(dict(data_folder=str(tmp_path), data_name=summary['data_name']), monkeypatch)
    dataset = caption_dataset(model, 'VAL')
    word_map = model.word_map
    assert (dataset.captions == word_map['<unk>']).any()

    said = {f"{image['filepath']}/{image['filename']}": [s['tokens'] for s in image['sentences']]
            for image in json.loads((folder / 'dataset_shapes.json').read_text())['images']}
    special = {word_map[word] for word in ('<pad>', '<start>', '<end>', '<unk>')}
    guesses = [model.words([w for w in row if w not in special]) for row in dataset.captions.tolist()]
    references = [said[name] for name in dataset.names for _ in range(dataset.cpi)]
    expected = bleu(references, guesses)['BLEU-4']
    assert validate(model, dataset)['bleu4'] == pytest.approx(expected)
    assert expected < 0.9


def test_greedy_bleu_takes_each_image_once(tiny_data, monkeypatch):
    model = foreseeing_model(tiny_data, monkeypatch, batch_size=4)
    dataset = known_words_only(caption_dataset(model, 'VAL'), model.word_map)
    seen = []

    def first_reference(decoder, encoder_out, word_map, max_len=50):
        found = [Hypothesis([word_map[w] for w in words[0]], 0.0, True)
                 for words in dataset.references[len(seen):len(seen) + len(encoder_out)]]
        seen.extend(found)
        return found

    monkeypatch.setattr(solver, 'greedy_search', first_reference)
    assert validate(model, dataset)['greedy_bleu4'] == pytest.approx(1)
    assert len(seen) == len(dataset.names) == 6


# --- One training ---


def progress_of(path):
    state = read_checkpoint(path)
    assert set(state['fingerprints']) == {'TRAIN split', 'VAL split', 'code'}
    history, best = state['history'], best_epoch(state['history'])
    return dict(epoch=len(history), best_score=best['val_greedy_bleu4'],
                epochs_since_improvement=len(history) - best['epoch'])


@pytest.fixture
def scripted(monkeypatch):
    """``scripted(scores)``: epochs that train nothing and reach the given greedy BLEU-4 one after another."""
    def script(scores, losses=()):
        scores, losses = iter(scores), iter(losses)
        monkeypatch.setattr(solver, 'train_epoch', lambda model, dataset, optimizers, *_: dict(
            loss=1.0, top5=50.0, decoder_lr=optimizers['decoder'].param_groups[0]['lr']))
        monkeypatch.setattr(solver, 'validate', lambda *_: dict(
            loss=next(losses, 2.0), top5=40.0, bleu4=0.9, greedy_bleu4=next(scores), greedy_cider=0.0))
    return script


@pytest.fixture(scope='module')
def whole(tiny_data, tmp_path_factory):
    """``whole(attention)``: folder, history and output of four epochs without a break.

    The folder also keeps ``epoch_1`` ... ``epoch_4``, the latest checkpoint after each.
    """
    @functools.cache
    def run(attention):
        folder, printed = tmp_path_factory.mktemp('whole'), io.StringIO()
        (folder / 'kept').mkdir()

        def save_and_keep(paths, model, *rest):
            save_checkpoint(paths, model, *rest)
            shutil.copy(paths[-1], folder / 'kept' / f'epoch_{len(model.history)}')

        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            patch.setattr(solver, 'save_checkpoint', save_and_keep)
            history = train(dict(**tiny_data, **SMALL, attention=attention, epochs=4,
                                 output_folder=str(folder / 'runs')))
        return folder, history, printed.getvalue()
    return run


@pytest.mark.parametrize('attention', KINDS)
def test_training_learns_and_leaves_its_files(whole, tiny_data, attention):
    folder, history, printed = whole(attention)
    assert [entry['epoch'] for entry in history] == [1, 2, 3, 4]
    assert history[-1]['train_loss'] < history[0]['train_loss'] - 0.2
    assert history[-1]['val_loss'] < history[0]['val_loss']

    lines = [line for line in printed.splitlines() if 'LOSS' in line or 'epoch' in line]  # one for each epoch
    assert len(lines) == 4
    last = history[-1]
    assert re.fullmatch(r' \* LOSS - \d\.\d{3}, TOP-5 ACCURACY - \d\d\.\d{3}, BLEU-4 - \d\.\d{3}, '
                        r'GREEDY BLEU-4 - \d\.\d{3}, CIDER - \d\.\d{3}   \(epoch 4, \d+ s\)', lines[-1])
    assert lines[-1].startswith(f" * LOSS - {last['val_loss']:.3f}, TOP-5 ACCURACY - {last['val_top5']:.3f}, "
                                f"BLEU-4 - {last['val_bleu4']:.3f}, GREEDY BLEU-4 - {last['val_greedy_bleu4']:.3f}")
    assert set(last) == {'epoch', 'train_loss', 'train_top5', 'val_loss', 'val_cross_entropy', 'val_top5', 'val_bleu4',
                         'val_greedy_bleu4', 'val_greedy_cider', 'decoder_lr', 'seconds'}
    penalty = last['val_loss'] - last['val_cross_entropy']
    assert 0.01 < penalty < 1 if attention else penalty == 0

    name = 'Attention' if attention else 'NoAttention'
    assert {path.name for path in (folder / 'runs').iterdir()} == {
        f'checkpoint_{tiny_data["data_name"]}_{name}.pth.tar', f'BEST_checkpoint_{name}.pth.tar',
        f'history_{name}.json'}
    assert json.loads((folder / 'runs' / f'history_{name}.json').read_text()) == history


def test_greedy_bleu_picks_the_best_checkpoint(tiny_cfg, scripted):
    """Teacher-forced BLEU-4 stays the same here: it must not decide."""
    scripted([0.1, 0.3, 0.3, 0.2])
    train({**tiny_cfg, 'epochs': 4})
    latest, best = checkpoint_paths({**DEFAULTS, **tiny_cfg})
    assert progress_of(best) == dict(epoch=2, best_score=0.3, epochs_since_improvement=0)
    assert progress_of(latest) == dict(epoch=4, best_score=0.3, epochs_since_improvement=2)


def test_of_epochs_with_the_same_score_the_loss_decides(tiny_cfg, scripted):
    """As at first, when no four words in a row are right."""
    scripted([0.0] * 4, [3.0, 2.5, 2.6, 2.5])
    history = train({**tiny_cfg, 'epochs': 4})
    latest, best = checkpoint_paths({**DEFAULTS, **tiny_cfg})
    assert progress_of(best) == dict(epoch=2, best_score=0.0, epochs_since_improvement=0)
    assert progress_of(latest) == dict(epoch=4, best_score=0.0, epochs_since_improvement=2)
    assert best_epoch(history)['epoch'] == 2


def test_learning_rate_falls_and_training_stops(tiny_cfg, scripted, capsys):
    scripted([0.1, 0.5] + [0.4] * 100)
    history = train({**tiny_cfg, 'epochs': 100, 'decoder_lr': 1e-3})
    assert len(history) == 22  # the best, then 20 without a better one
    rates = [entry['decoder_lr'] for entry in history]
    assert rates == pytest.approx([1e-3] * 10 + [0.8e-3] * 8 + [0.64e-3] * 4)
    assert 'No better BLEU-4 for 20 epochs: stop.' in capsys.readouterr().out


def test_learning_rate_falls_the_same_after_a_resume(tiny_cfg, scripted):
    scripted([0.5] + [0.4] * 8)
    train({**tiny_cfg, 'epochs': 9})
    latest, _ = checkpoint_paths({**DEFAULTS, **tiny_cfg})
    scripted([0.4] * 100)
    history = train({**tiny_cfg, 'epochs': 100, 'checkpoint': str(latest)})
    assert [entry['decoder_lr'] for entry in history] == pytest.approx([5e-3] * 9 + [4e-3] * 8 + [3.2e-3] * 4)


def test_cosine_ends_near_zero(tiny_cfg):
    history = train({**tiny_cfg, 'attention': False, 'epochs': 2, 'cosine': True})
    batch = lambda epoch, i: (epoch - 1 + i / 6) / 2  # noqa: E731
    expected = [5e-3 * (1 + math.cos(math.pi * batch(epoch, 5))) / 2 for epoch in (1, 2)]
    assert [entry['decoder_lr'] for entry in history] == pytest.approx(expected)


def test_a_second_run_moves_the_first_aside(tiny_cfg, capsys):
    first = train({**tiny_cfg, 'epochs': 1})
    runs = Path(tiny_cfg['output_folder'])
    (runs / 'test_Attention.json').write_text('{}')  # of the first model, not of the second
    (runs / 'history_NoAttention.json').write_text('[]')  # of the other decoder: it stays
    left = {path.name: path.read_bytes() for path in runs.glob('*_Attention*')}
    second = train({**tiny_cfg, 'epochs': 1})
    assert without_seconds(first) == without_seconds(second)  # and the same seed gives the same training
    assert f"held another training of Attention: it is in {runs / 'earlier_1'} now" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in (runs / 'earlier_1').iterdir()} == left and len(left) == 4
    other = train({**tiny_cfg, 'epochs': 1, 'seed': 1})
    assert without_seconds(other) != without_seconds(first)
    assert json.loads((runs / 'earlier_2' / 'history_Attention.json').read_text()) == second
    assert (runs / 'history_NoAttention.json').exists() and not (runs / 'test_Attention.json').exists()


def test_a_folder_that_cannot_be_written(tiny_cfg, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(OSError, match='Not a directory.*runs'):
        train({**tiny_cfg, 'output_folder': str(tmp_path / 'file' / 'runs')})


def test_code_that_was_edited_since_is_said(tiny_cfg, other_source, capsys):
    with other_source('models', lambda code: code + b'\nX = 1\n'):
        train({**tiny_cfg, 'epochs': 1})
    assert 'models.py changed after being read: what runs is the code from before. Restart' in capsys.readouterr().out
    load_model(checkpoint_paths({**DEFAULTS, **tiny_cfg})[1])
    assert 'changed' not in capsys.readouterr().out


def test_a_run_that_fails_leaves_the_one_before_alone(tiny_cfg, scripted, monkeypatch):
    scripted([0.4])
    train({**tiny_cfg, 'epochs': 1})
    before = {path.name: path.read_bytes() for path in Path(tiny_cfg['output_folder']).iterdir()}
    monkeypatch.setattr(solver, 'train_epoch', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(tiny_cfg)
    assert {path.name: path.read_bytes() for path in Path(tiny_cfg['output_folder']).iterdir()} == before


def test_the_seed_decides_whether_or_not_features_are_there(tiny_cfg, tmp_path):
    """Encoding the images first must not use up random numbers of the training."""
    folder = tmp_path / 'data'
    folder.mkdir()
    for path in Path(tiny_cfg['data_folder']).glob(f"*{tiny_cfg['data_name']}*"):
        if 'FEATURES' not in path.name:
            shutil.copy(path, folder)
    cfg = {**tiny_cfg, 'data_folder': str(folder), 'epochs': 1}
    first = train(cfg)
    assert len(list(folder.glob('*FEATURES*'))) == 2
    assert without_seconds(train(cfg)) == without_seconds(first)


# --- Going on ---


def without_seconds(history):
    return [{key: value for key, value in entry.items() if key != 'seconds'} for entry in history]


def assert_same(one, other):
    """Tensors, containers and numbers, bit for bit."""
    if torch.is_tensor(one):
        assert one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


def assert_same_training(one, other):
    one, other = read_checkpoint(one), read_checkpoint(other)
    for key in ('decoder', 'encoder', 'optimizers', 'schedulers', 'fingerprints', 'random_states', 'word_map'):
        assert_same(one[key], other[key])
    assert without_seconds(one['history']) == without_seconds(other['history'])


@pytest.mark.parametrize('attention', KINDS)
def test_two_and_two_epochs_are_four(whole, tiny_cfg, attention):
    folder, history, _ = whole(attention)
    cfg = {**tiny_cfg, **SMALL, 'attention': attention}
    train({**cfg, 'epochs': 2})
    latest, best = checkpoint_paths({**DEFAULTS, **cfg})
    random.seed(99), np.random.seed(99), torch.manual_seed(99)
    parts = train({**cfg, 'epochs': 4, 'checkpoint': str(latest)})
    assert without_seconds(parts) == without_seconds(history)
    assert_same_training(folder / 'kept' / 'epoch_4', latest)
    assert_same_training(folder / 'runs' / best.name, best)


@pytest.mark.parametrize('where', ['epoch', 'saving'])
def test_killed_training_goes_on_as_if_it_had_not_been(whole, tiny_cfg, where):
    cfg = {**tiny_cfg, **SMALL, 'attention': where == 'epoch', 'epochs': 2}
    folder, history, _ = whole(cfg['attention'])
    script = textwrap.dedent(f'''
        import os, signal
        import torch
        torch.set_num_threads({torch.get_num_threads()})
        import solver
        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        calls = 0
        loss, save = solver.caption_loss, solver.save_checkpoint

        def caption_loss(*args, **options):  # 6 batches, then 2 of validation: the second epoch's third batch
            global calls
            calls += 1
            return die() if calls == 11 else loss(*args, **options)

        def save_checkpoint(paths, model, *rest):
            def half(state, file):
                file.write(b'half a file')
                file.flush()
                die()
            if len(model.history) == 2:
                torch.save = half
            save(paths, model, *rest)

        if {where!r} == 'epoch':
            solver.caption_loss = caption_loss
        else:
            solver.save_checkpoint = save_checkpoint
        solver.train({cfg!r})
    ''')
    killed = subprocess.run([sys.executable, '-c', script], cwd=Path(solver.__file__).parent, capture_output=True,
                            text=True, env={**os.environ, 'OMP_WAIT_POLICY': 'PASSIVE'})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    latest, best = checkpoint_paths({**DEFAULTS, **cfg})
    assert len(read_checkpoint(latest)['history']) == 1

    parts = train({**cfg, 'checkpoint': str(latest)})
    assert without_seconds(parts) == without_seconds(history[:2])
    assert_same_training(folder / 'kept' / 'epoch_2', latest)


def test_best_score_is_kept_over_a_resume(tiny_cfg, scripted):
    scripted([0.2, 0.6])
    train({**tiny_cfg, 'epochs': 2})
    latest, best = checkpoint_paths({**DEFAULTS, **tiny_cfg})
    before = best.read_bytes()
    scripted([0.5])
    train({**tiny_cfg, 'epochs': 3, 'checkpoint': str(latest)})
    assert best.read_bytes() == before
    assert progress_of(latest) == dict(epoch=3, best_score=0.6, epochs_since_improvement=1)


def test_going_on_in_another_folder_keeps_all_apart(tiny_cfg, scripted, tmp_path):
    scripted([0.2, 0.6])
    train({**tiny_cfg, 'epochs': 2})
    latest, best = checkpoint_paths({**DEFAULTS, **tiny_cfg})
    before = {path.name: path.read_bytes() for path in best.parent.iterdir()}
    there = {**tiny_cfg, 'output_folder': str(tmp_path / 'other')}
    scripted([0.9])
    train({**there, 'epochs': 1})  # something else is there already
    scripted([0.5])
    history = train({**there, 'epochs': 3, 'checkpoint': str(latest)})
    assert {path.name: path.read_bytes() for path in best.parent.iterdir()} == before
    assert [entry['val_greedy_bleu4'] for entry in history] == [0.2, 0.6, 0.5]
    # its best model is that of its own history, not of what was there
    assert (tmp_path / 'other' / best.name).read_bytes() == best.read_bytes()
    assert json.loads((tmp_path / 'other' / 'earlier_1' / 'history_Attention.json').read_text())[0][
        'val_greedy_bleu4'] == 0.9


def test_going_on_says_where_it_is(tiny_cfg, scripted, capsys):
    scripted([0.2, 0.6])
    history = train({**tiny_cfg, 'epochs': 2, 'cosine': True})
    latest, _ = checkpoint_paths({**DEFAULTS, **tiny_cfg})
    again = {**tiny_cfg, 'cosine': True, 'checkpoint': str(latest)}
    assert train({**again, 'epochs': 2}) == history
    printed = capsys.readouterr().out
    assert f'Going on after epoch 2 of {latest}, best greedy BLEU-4 0.600.' in printed
    assert f'{latest} has trained 2 epochs already: raise epochs to go on.' in printed and 'jump' not in printed
    scripted([0.3])
    train({**again, 'epochs': 3})
    assert 'drawn over 2 epochs and is over 3 now: the learning rate makes a jump' in capsys.readouterr().out


@pytest.mark.parametrize('change', [dict(decoder_lr=1e-4), dict(cosine=False)])
def test_other_rates_than_the_checkpoints_hold(tiny_cfg, change):
    first = {**tiny_cfg, 'epochs': 1, 'cosine': True}
    latest, _ = checkpoint_paths({**DEFAULTS, **tiny_cfg})
    rate = train(first)[0]['decoder_lr']
    assert rate < 1e-3  # where the cosine has come to
    history = train({**first, 'cosine': False, 'epochs': 2, 'checkpoint': str(latest), **change})
    assert history[1]['decoder_lr'] == change.get('decoder_lr', tiny_cfg['decoder_lr'])


def test_resume_refuses_what_does_not_fit(tiny_cfg, tiny_data, scripted, tmp_path):
    scripted([0.1] * 9)
    train({**tiny_cfg, 'epochs': 1})
    latest, _ = checkpoint_paths({**DEFAULTS, **tiny_cfg})
    again = {**tiny_cfg, 'checkpoint': str(latest)}
    before = latest.read_bytes()
    with pytest.raises(ValueError, match='does not fit the decoder'):
        train({**again, 'decoder_dim': 8})
    with pytest.raises(ValueError, match='holds the decoder Attention, and the settings say NoAttention'):
        train({**again, 'attention': False})
    with pytest.raises(ValueError, match='other encoder weights'):
        train({**again, 'encoder_weights': None})
    with pytest.raises(ValueError, match='no checkpoint .*nowhere'):
        train({**again, 'checkpoint': str(tmp_path / 'nowhere')})
    folder = Path(tiny_data['data_folder'])
    summary = create_input_files('shapes', folder / 'dataset_shapes.json', folder, min_word_freq=60,
                                 output_folder=tmp_path, workers=1)
    with pytest.raises(ValueError, match='another vocabulary'):
        train({**again, 'data_folder': str(tmp_path), 'data_name': summary['data_name']})
    assert latest.read_bytes() == before


# --- A decoder of one's own ---

OWN_DECODER = '''
from torch import nn
from models import DecoderWithAttention, DecoderWithRNN

class Mine(DecoderWithAttention):
    """Half as much attention to the picture."""
    def one_step(self, embeddings, encoder_out, h, c, keys=None):
        return super().one_step(embeddings, encoder_out / 2, h, c, keys)

class Few(DecoderWithRNN):
    def __init__(self, vocab_size, encoder_dim, embed_dim, decoder_dim=7):
        super().__init__(embed_dim, decoder_dim, vocab_size, encoder_dim)

class Handing(DecoderWithAttention):
    """Takes whatever it is given, and has an option of its own."""
    def __init__(self, *args, share=0.5, **kwargs):
        super().__init__(*args, **kwargs)
        self.share = share

class OfAShare(Handing):
    def __init__(self, share, **kwargs):
        super().__init__(**kwargs, share=share)

class Given(OfAShare):
    """What its base asks for it gives itself."""
    def __init__(self, **kwargs):
        super().__init__(0.75, **kwargs)

class Nothing:
    pass

class Mixed(Nothing, DecoderWithAttention):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

class Stuck(DecoderWithAttention):
    def step(self, *arguments):
        raise LookupError('a mistake in step')

class Blind(DecoderWithAttention):
    def forward(self, *arguments):
        return super().forward(*arguments)[:3]

class Greedy(DecoderWithRNN):
    def __init__(self, vocab_size, layers):
        pass

def function():
    pass

class Silent(nn.Module):
    def start(self, encoder_out):
        pass
'''


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """my_decoder.py, as if it lay beside models.py."""
    (tmp_path / 'my_decoder.py').write_text(OWN_DECODER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(checkpoints, 'ROOT', tmp_path)
    yield
    sys.modules.pop('my_decoder', None)


@pytest.mark.parametrize('name', ['Mine', 'Few', 'Handing', 'Given', 'Mixed'])
def test_own_decoder_is_trained_saved_and_loaded(own_file, tiny_cfg, name, tiny_data):
    cfg = {**tiny_cfg, 'decoder': f'my_decoder.{name}'}
    history = train(cfg)
    assert history[1]['train_loss'] < history[0]['train_loss']
    runs = Path(cfg['output_folder'])
    assert json.loads((runs / f'history_{name}.json').read_text()) == history
    model = load_models(runs, name)[name]
    assert type(model.decoder).__name__ == name and model.name == name
    best = max(entry['val_greedy_bleu4'] for entry in history)
    assert validate(model, caption_dataset(model, 'VAL'))['greedy_bleu4'] == pytest.approx(best)
    with pytest.raises(ValueError, match=f'holds the decoder {name}, and the settings say Attention'):
        train({**tiny_cfg, 'checkpoint': str(runs / f'BEST_checkpoint_{name}.pth.tar')})


def test_options_of_a_decoder_that_hands_on_what_it_gets(own_file, tiny_cfg):
    cfg = {**tiny_cfg, 'decoder': 'my_decoder.Handing', 'decoder_options': dict(share=0.25), 'epochs': 1}
    train(cfg)
    assert load_models(Path(cfg['output_folder']), 'Handing')['Handing'].decoder.share == 0.25
    with pytest.raises(TypeError, match="unexpected keyword argument 'shares'"):
        train({**cfg, 'decoder_options': dict(shares=0.25)})


@pytest.mark.parametrize(('decoder', 'message'), [
    ('Mine', "it must be like 'my_decoder.MyDecoder', the file's name before a dot"),
    ('os.path', 'there is no file os.py beside models.py'),
    ('../my_decoder.Mine', 'it must be like .* and there is no file'),
    ('my_decoder.Other', 'my_decoder.py has no class Other'),
    ('my_decoder.function', 'my_decoder.py has no class function'),
    ('my_decoder.Silent', 'it has no forward and no step'),
    ('my_decoder.Blind', 'forward of Blind returns 3 things; it must return predictions, .*alphas')])
def test_own_decoder_that_cannot_be(own_file, tiny_cfg, decoder, message):
    with pytest.raises(ValueError, match=message):
        train({**tiny_cfg, 'decoder': decoder})


def test_a_mistake_in_step_shows_before_the_first_epoch(own_file, tiny_cfg, monkeypatch):
    monkeypatch.setattr(solver, 'train_epoch', lambda *_: pytest.fail('it trains'))
    with pytest.raises(LookupError, match='a mistake in step'):
        train({**tiny_cfg, 'decoder': 'my_decoder.Stuck'})


def test_a_decoder_that_asks_for_more_says_so_by_itself(own_file, tiny_cfg):
    with pytest.raises(TypeError, match="Greedy.* missing .* 'layers'"):
        train({**tiny_cfg, 'decoder': 'my_decoder.Greedy'})


def test_a_loss_of_ones_own_is_used_in_training_and_validation(tiny_cfg):
    seen = []

    def squared(scores, targets, alphas):
        seen.append((torch.is_grad_enabled(), alphas is not None))
        assert scores.dim() == 2 and targets.shape == scores.shape[:1]
        return (scores.softmax(dim=1).gather(1, targets.unsqueeze(1)) - 1).square().mean()

    history = train({**tiny_cfg, 'epochs': 2}, loss=squared)
    assert set(seen) == {(True, True), (False, True)}
    assert history[1]['train_loss'] < history[0]['train_loss'] < 1
    assert history[-1]['val_loss'] < 1 < history[-1]['val_cross_entropy']


@pytest.mark.parametrize('changes', [
    dict(by_picture=True), dict(by_picture=True, flip=True), dict(cache_features=False, flip=True),
    dict(fine_tune_encoder=True, flip=True), dict(bf16=True), dict(accumulate=3)], ids=str)
def test_every_way_to_train(tiny_cfg, changes):
    history = train({**tiny_cfg, **changes})
    assert history[1]['train_loss'] < history[0]['train_loss']


def test_no_processes_are_started(tiny_cfg, monkeypatch):
    """They would need a main guard, and shared memory, of which a container has little."""
    monkeypatch.setattr(multiprocessing.process.BaseProcess, 'start', lambda _: pytest.fail('a process was started'))
    train({**tiny_cfg, 'cache_features': False, 'flip': True, 'epochs': 1})


def test_settings_of_the_batches_are_heard(tiny_cfg, monkeypatch):
    seen, shuffled, mirrored = [], solver.batches.shuffled, solver.batches.Batches

    def watched(dataset, batch_size, generator, by_picture, processes):
        seen.append([by_picture])
        return shuffled(dataset, batch_size, generator, by_picture, processes)

    def watching(dataset, order, flip=None, *rest):
        if dataset.split == 'TRAIN':
            seen[-1].append(flip is not None and 0.2 < flip.double().mean() < 0.8)
        else:
            assert flip is None
        return mirrored(dataset, order, flip, *rest)

    monkeypatch.setattr(solver.batches, 'shuffled', watched)
    monkeypatch.setattr(solver.batches, 'Batches', watching)
    monkeypatch.setattr(solver, 'use_fast_forward', lambda *_: None)  # it takes a few captions in a batch of its own
    cfg = {**tiny_cfg, 'epochs': 1}
    for settings, expected in (
            ({}, [False, False]), (dict(flip=True), [False, True]), (dict(by_picture=True), [True, False]),
            (dict(cache_features=False), [True, False]),
            (dict(fine_tune_encoder=True, by_picture=False), [False, False])):
        seen.clear()
        train({**cfg, **settings})
        assert seen == [expected], settings
    best = checkpoint_paths({**DEFAULTS, **cfg})[1]
    seen.clear()
    train({**cfg, 'self_critical': 'mean', 'start_from': str(best), 'output_folder': cfg['output_folder'] + '_second'})
    assert seen == [[True, False]]


def test_what_is_the_default_on_a_gpu_only(monkeypatch):
    for able in (True, False):
        monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda including_emulation, able=able: able)
        assert forward.use_bf16(dict(bf16=None, device='cuda:0')) is able
        assert not forward.use_bf16(dict(bf16=None, device='cpu'))
        assert forward.use_bf16(dict(bf16=True, device='cpu')) and not forward.use_bf16(dict(bf16=False, device='cuda'))


def test_precision_that_accelerate_launch_was_told(monkeypatch):
    for told, found in (('no', False), ('bf16', True)):
        monkeypatch.setenv('ACCELERATE_MIXED_PRECISION', told)
        assert forward.use_bf16(dict(bf16=None, device='cpu')) is found
    monkeypatch.setenv('ACCELERATE_MIXED_PRECISION', 'fp16')
    assert forward.use_bf16(dict(bf16=True, device='cpu'))  # the setting counts first
    with pytest.raises(ValueError, match='told --mixed_precision fp16; it must be'):
        forward.use_bf16(dict(bf16=None, device='cpu'))


def test_one_kernel_for_all_parameters(tiny_cfg, monkeypatch):
    made = []
    for name in ('AdamW', 'Adam'):
        real = getattr(torch.optim, name)
        monkeypatch.setattr(torch.optim, name, lambda *given, real=real, **options: (
            made.append(options['fused']), real(*given, **options))[1])
    train({**tiny_cfg, 'epochs': 1, 'fine_tune_encoder': True})
    assert made == [True, True]


def test_a_split_without_pictures(tiny_data, tiny_cfg, tmp_path, monkeypatch):
    folder = Path(tiny_data['data_folder'])
    karpathy = json.loads((folder / 'dataset_shapes.json').read_text())
    for image in karpathy['images']:
        image['split'] = 'test' if image['split'] == 'val' else image['split']
    (tmp_path / 'set.json').write_text(json.dumps(karpathy))
    name = create_input_files('set', tmp_path / 'set.json', folder, output_folder=tmp_path, workers=1)['data_name']
    monkeypatch.setattr(inputs, 'encode_splits', lambda *_: pytest.fail('encoded before it was noticed'))
    with pytest.raises(ValueError, match=f"VAL_IMAGES_{name}.hdf5 has no pictures: give some of them the split 'val'"):
        train({**tiny_cfg, 'data_folder': str(tmp_path), 'data_name': name})


@pytest.mark.parametrize('attention', KINDS)
def test_half_precision_comes_close(tiny_cfg, tmp_path, attention):
    cfg = {**tiny_cfg, 'attention': attention, 'dropout': 0.0, 'epochs': 1}
    half, single = (train({**cfg, 'bf16': bf16, 'output_folder': str(tmp_path / str(bf16))})[0]
                    for bf16 in (True, False))
    assert half['train_loss'] != single['train_loss']
    for key in ('train_loss', 'val_loss'):
        assert half[key] == pytest.approx(single[key], rel=5e-3)


@pytest.mark.parametrize('attention', KINDS)
def test_features_in_memory_and_in_files_give_the_same_training(tiny_cfg, tmp_path, monkeypatch, attention):
    cfg, in_memory, real = {**tiny_cfg, 'attention': attention}, [], solver.use_fast_forward
    monkeypatch.setattr(solver, 'use_fast_forward', lambda model, dataset: (
        in_memory.append(dataset.in_memory is not None), real(model, dataset)))
    histories = []
    for share in (0.5, 0):
        monkeypatch.setattr(features, 'MEMORY_SHARE', share)
        histories.append(without_seconds(train({**cfg, 'output_folder': str(tmp_path / str(share))})))
    assert in_memory == [True, False]
    for one, other in zip(*histories, strict=True):
        for key in ('train_loss', 'val_loss'):  # they were pooled before or after rounding to half precision
            assert one[key] == pytest.approx(other[key], rel=1e-3)


@pytest.mark.parametrize('accumulate', [1, 3])
@pytest.mark.parametrize('attention', KINDS)
def test_the_encoder_runs_once_per_picture(tiny_cfg, monkeypatch, attention, accumulate):
    cfg = dict(attention=attention, fine_tune_encoder=True, accumulate=accumulate)
    model, dataset = small_training(tiny_cfg, **cfg)
    seen, real = [], model.encoder.forward
    monkeypatch.setattr(model.encoder, 'forward', lambda images: (seen.append(len(images)), real(images))[1])
    train_epoch(model, dataset, {'decoder': torch.optim.Adam(model.decoder.parameters())}, 1)
    assert sum(seen) == len(dataset.names) == 24
    seen.clear()
    validate(model, dataset)
    assert sum(seen) == 2 * 24  # once for the loss, once for greedy captions


@pytest.mark.parametrize(('attention', 'returned', 'came'), [
    (True, slice(4), '4 things'), (False, slice(3), '3 things'), (True, 0, 'a Tensor')])
def test_forward_must_return_all(tiny_cfg, monkeypatch, attention, returned, came):
    from models import DecoderWithAttention, DecoderWithRNN
    decoder = DecoderWithAttention if attention else DecoderWithRNN
    forward = decoder.forward
    monkeypatch.setattr(decoder, 'forward', lambda *arguments: forward(*arguments)[returned])
    wanted = 'decode lengths, ' + 'alphas, ' * attention + 'sort indices'
    with pytest.raises(ValueError, match=f'forward of {decoder.__name__} returns {came}; .*{wanted}'):
        train({**tiny_cfg, 'attention': attention})


# --- Encoders ---


class Own(nn.Module):
    """A caller's encoder: 256 x 256 pixels to 8 x 8 cells of 5 channels."""

    def __init__(self, seed=3):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.patches = nn.Conv2d(3, 5, 32, stride=32)

    def forward(self, images):
        return self.patches(images).relu()


@pytest.mark.parametrize('attention', KINDS)
@pytest.mark.parametrize('flip', [False, True])
def test_cached_features_give_the_same_training(tiny_cfg, tmp_path, monkeypatch, attention, flip):
    cfg = {**tiny_cfg, 'attention': attention, 'epochs': 3, 'decoder_lr': 2e-2, 'by_picture': True, 'flip': flip}
    cached = train(cfg)
    images = train({**cfg, 'cache_features': False, 'output_folder': str(tmp_path / 'images')})
    real = solver.encode
    half = lambda model, images, are_features: (
        grid := real(model, images, are_features)) * (torch.arange(grid.shape[-1]) % 2)
    monkeypatch.setattr(solver, 'encode', half)
    monkeypatch.setattr(forward, 'encode', half)
    others = train({**cfg, 'output_folder': str(tmp_path / 'others')})
    for score in ('train_loss', 'val_loss'):
        losses = [torch.tensor([epoch[score] for epoch in history]) for history in (cached, images, others)]
        assert (losses[0] - losses[1]).abs().max() < 5e-4
        assert (losses[0] - losses[2]).abs().max() > 2e-3


def test_own_encoder_is_trained_saved_and_loaded(tiny_cfg):
    cfg = {**tiny_cfg, 'epochs': 1, 'fine_tune_encoder': True, 'encoder_lr': 1e-2}
    own = Own()
    before = copy.deepcopy(own.state_dict())
    train(cfg, own)
    assert not any(torch.equal(before[name], value) for name, value in own.state_dict().items())
    latest, _ = checkpoint_paths({**DEFAULTS, **cfg})
    with pytest.raises(ValueError, match='encoder of your own: pass it'):
        load_model(latest, 'cpu')
    model = load_model(latest, 'cpu', Own(seed=4))  # the trained weights come from the checkpoint
    assert_same(list(model.encoder.stages.state_dict().values()), list(own.state_dict().values()))


def test_fine_tuning_trains_blocks_2_to_4(tiny_cfg):
    cfg = {**tiny_cfg, 'attention': False, 'epochs': 1, 'fine_tune_encoder': True, 'batch_size': 60}
    train(cfg)
    latest, _ = checkpoint_paths({**DEFAULTS, **cfg})
    tuned = load_model(latest, 'cpu')
    fresh = solver.build_model(check_settings(cfg), tuned.word_map).encoder
    stages = zip(tuned.encoder.stages, fresh.stages, fresh.strides, strict=True)
    for one, other, stride in stages:
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b) == (stride < 8)
        for a, b in zip(one.buffers(), other.buffers(), strict=True):
            assert torch.equal(a, b)  # batch norm's statistics never drift
    state = read_checkpoint(latest)
    assert set(state['optimizers']) == {'decoder', 'encoder'} and state['encoder'] is not None

    # frozen again: the checkpoint still holds the weights it was trained with
    train({**cfg, 'epochs': 2, 'fine_tune_encoder': False, 'checkpoint': str(latest)})
    again = load_model(latest, 'cpu')
    assert_same(again.encoder.stages.state_dict(), tuned.encoder.stages.state_dict())


# --- What can go wrong ---


def test_a_loss_that_is_no_number_stops_at_once(tiny_cfg, monkeypatch):
    real = solver.caption_loss

    monkeypatch.setattr(solver, 'caption_loss', lambda *args, **options: real(*args, **options) * math.nan)
    with pytest.raises(FloatingPointError, match='the loss is nan in epoch 1, batch 0'):
        train(tiny_cfg)
    assert list(Path(tiny_cfg['output_folder']).iterdir()) == []


def small_training(tiny_cfg, **settings):
    cfg = check_settings({**tiny_cfg, 'encoder': None, **settings})
    torch.manual_seed(0)
    model = solver.build_model(cfg, load_word_map(cfg['data_folder'], cfg['data_name']), Own())
    dataset = caption_dataset(model, 'TRAIN')
    return model, dataset


@pytest.mark.parametrize('attention', KINDS)
def test_a_last_batch_of_one_caption(tiny_cfg, attention):
    model, dataset = small_training(tiny_cfg, attention=attention, batch_size=17)  # 120 = 7 * 17 + 1
    assert len(dataset) % 17 == 1
    optimizers = {'decoder': torch.optim.Adam(model.decoder.parameters())}
    assert math.isfinite(train_epoch(model, dataset, optimizers, 1)['loss'])


def test_gradients_are_clipped(tiny_cfg):
    steps = {}
    for clip in (None, 1e-3):
        model, dataset = small_training(tiny_cfg, grad_clip=clip, batch_size=120)
        before = copy.deepcopy(model.decoder.state_dict())
        train_epoch(model, dataset, {'decoder': torch.optim.SGD(model.decoder.parameters(), lr=1.0)}, 1)
        steps[clip] = max((value - before[name]).abs().max().item()
                          for name, value in model.decoder.state_dict().items())
    assert steps[None] > 5e-3
    assert steps[1e-3] == pytest.approx(1e-3, rel=1e-2)


def test_each_caption_is_seen_once_in_an_order_of_its_own(tiny_cfg, monkeypatch):
    model, dataset = small_training(tiny_cfg, attention=False)
    seen, real = [], solver.decode
    monkeypatch.setattr(solver, 'decode', lambda model, batch, *rest: (
        seen[-1].extend(tuple(row) + (0,) * (52 - len(row)) for row in batch.captions.tolist()),
        real(model, batch, *rest))[1])
    optimizers = {'decoder': torch.optim.Adam(model.decoder.parameters())}
    for epoch in (1, 1, 2):
        seen.append([])
        train_epoch(model, dataset, optimizers, epoch)
    everything = sorted(map(tuple, dataset.captions.tolist()))
    assert all(sorted(epoch) == everything for epoch in seen)
    assert seen[0] == seen[1] != seen[2]


def test_cached_features_are_read_and_images_without_them(tiny_cfg):
    model, cached = small_training(tiny_cfg)
    assert cached.key == 'features' and cached.sources == [features.encode_images(
        model.encoder, tiny_cfg['data_folder'], tiny_cfg['data_name'], 'TRAIN'), None]
    _, images = small_training(tiny_cfg, cache_features=False)
    assert isinstance(images, CaptionDataset) and images.key == 'images'
    _, tuned = small_training(tiny_cfg, fine_tune_encoder=True)
    assert tuned.key == 'images'
