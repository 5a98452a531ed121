"""Training and validation: settings, batches, the loss, the loop, checkpoints of it, and going on."""

import contextlib
import copy
import json
import math
import sys
from functools import partial
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest
import torch
from test_features import Patches

import solver
from datasets import CaptionDataset
from lab.decode.evaluate import evaluate
from lab.decode.metrics import METRICS
from lab.train import batches, model
from lab.train.checkpoints import checkpoint_paths, load_model, load_models, read_checkpoint
from lab.train.model import true_words
from solver import DEFAULTS, caption_loss, check_settings, make_run, train, train_epoch
from utils import best_epoch, topk_accuracy


def files_of(cfg):
    """:return: latest and best checkpoint"""
    return checkpoint_paths({**DEFAULTS, **cfg})


def without_seconds(history):
    return [{key: value for key, value in entry.items() if key != 'seconds'} for entry in history]


assert_exactly = partial(torch.testing.assert_close, rtol=0, atol=0)


def assert_same_training(one, other):
    """Of two checkpoints, to the last bit."""
    one, other = read_checkpoint(one), read_checkpoint(other)
    for part in ('decoder', 'encoder', 'random_states'):
        assert_exactly(one[part], other[part])
    assert_exactly(one['optimizer']['state'], other['optimizer']['state'])
    assert one['optimizer']['param_groups'] == other['optimizer']['param_groups']
    assert (one['fingerprints'], one['word_map']) == (other['fingerprints'], other['word_map'])
    assert without_seconds(one['history']) == without_seconds(other['history'])


# --- Settings ---


@pytest.mark.parametrize(('name', 'value', 'hint'), [
    ('batchsize', 4, 'batch_size'), ('zzz', 4, 'grad_clip'), ('epochs', 2.0, 'int'), ('epochs', True, 'int'),
    ('batch_size', '4', 'int'), ('decoder_lr', '1e-3', 'float'), ('attention', 1, 'bool'), ('checkpoint', False, 'str'),
    ('data_folder', None, 'str'), ('alpha_c', None, 'tuple'), ('decoder_options', None, 'dict'),
    ('accumulate', 0, '1'), ('decoder_lr', -0.1, '0'), ('alpha_c', (1.0, 0.5, 0.0), 'two'), ('alpha_c', 'ab', 'tuple'),
    ('self_critical', 'best', 'greedy'), ('self_critical', 'mean', 'start_from')])
def test_a_wrong_setting_is_named_with_a_hint(name, value, hint):
    with pytest.raises(ValueError, match=f'{name}.*{hint}'):
        check_settings({name: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason='a GPU is here')
def test_a_device_that_is_not_here(tiny_cfg):
    with pytest.raises(ValueError, match='device.*cuda'):
        train({**tiny_cfg, 'device': 'cuda'})


def test_settings_are_complete_and_of_plain_values():
    """Numbers of numpy are Python's own, a tilde is the home folder, and the device is decided."""
    given = dict(epochs=np.int64(3), dropout=np.float32(0.5), alpha_c=np.array([1.0, 0.0]), attention=np.bool_(True),
                 data_folder=Path('~/a'), decoder_options=dict(heads=np.int32(2)))
    plain = dict(epochs=3, dropout=0.5, alpha_c=(1.0, 0.0), attention=True, data_folder=str(Path.home() / 'a'),
                 decoder_options=dict(heads=2))
    cfg = check_settings(given)
    json.dumps(cfg)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    assert cfg == {**DEFAULTS, **plain, 'device': device, 'monitor': 'greedy_bleu4'}


# --- The loss ---


@pytest.mark.parametrize('alpha_c', [0.0, 0.7])
def test_caption_loss_by_hand(alpha_c):
    rng = np.random.default_rng(0)
    lengths, pixels = [4, 2, 1], 6
    scores = rng.normal(size=(3, 4, 9))
    captions = np.array([[7, 1, 2, 3, 8, 0], [7, 4, 8, 0, 0, 0], [7, 8, 0, 0, 0, 0]])
    alphas = rng.dirichlet(np.ones(pixels), size=(3, 4))
    for row, length in enumerate(lengths):
        scores[row, length:], alphas[row, length:] = 0, 0

    words = [(scores[row, t] - np.log(np.exp(scores[row, t]).sum()), captions[row, t + 1])
             for row, length in enumerate(lengths) for t in range(length)]
    log_p, smooth = [log_p[target] for log_p, target in words], [log_p.mean() for log_p, _ in words]
    right = [(log_p > log_p[target]).sum() < 5 for log_p, target in words]
    penalty = ((1 - alphas.sum(axis=1)) ** 2).mean()

    scores, captions, alphas = torch.tensor(scores), torch.tensor(captions), torch.tensor(alphas)
    decoded = true_words((scores, captions, lengths, alphas, torch.tensor([2, 0, 1])))
    assert topk_accuracy(decoded.scores, decoded.targets, 5) == pytest.approx(100 * np.mean(right))
    loss = caption_loss(decoded.scores, decoded.targets, decoded.alphas, alpha_c)
    assert loss.item() == pytest.approx(-np.mean(log_p) + alpha_c * penalty)
    smoothed = caption_loss(decoded.scores, decoded.targets, label_smoothing=0.3)
    assert smoothed.item() == pytest.approx(-0.7 * np.mean(log_p) - 0.3 * np.mean(smooth))
    # each row's caption, by its place in the batch before the decoder sorted it, and its step
    assert decoded.positions().tolist() == [[2, 0], [0, 0], [1, 0], [2, 1], [0, 1], [2, 2], [2, 3]]


def test_smoothing_and_the_penalty_are_those_of_the_epoch(tiny_cfg, monkeypatch):
    """In training; validation has no smoothing and the last penalty, so that its losses can be compared."""
    seen = []

    def loss(scores, targets, alphas, alpha_c, label_smoothing=0.0):
        seen.append((torch.is_grad_enabled(), round(alpha_c, 6), label_smoothing))
        return scores.square().mean()

    monkeypatch.setattr(solver, 'caption_loss', loss)
    train({**tiny_cfg, 'alpha_c': [1.0, 0.2], 'label_smoothing': 0.1, 'epochs': 3})
    assert set(seen) == {(True, 1.0, 0.1), (True, 0.6, 0.1), (True, 0.2, 0.1), (False, 0.2, 0.0)}


def test_a_loss_of_ones_own_sees_each_word(tiny_cfg):
    dataset, seen = CaptionDataset(tiny_cfg['data_folder'], tiny_cfg['data_name'], 'TRAIN'), []

    class Squared(torch.nn.Module):
        def forward(self, scores, targets, alphas, positions):
            if torch.is_grad_enabled():
                seen.append(positions)
                captions, steps = positions.T
                assert torch.equal(dataset.captions[captions, steps + 1], targets)
            return (scores.softmax(dim=1).gather(1, targets.unsqueeze(1)) - 1).square().mean()

    history = train({**tiny_cfg, 'epochs': 1}, loss=Squared())
    assert without_seconds(train({**tiny_cfg, 'epochs': 1}, loss=Squared().forward)) == without_seconds(history)
    assert 0 < history[0]['train_top5'] <= 100
    assert history[0]['train_loss'] < 1 and history[0]['val_loss'] < 1 < history[0]['val_cross_entropy']
    assert len(torch.cat(seen).unique(dim=0)) == int((dataset.caplens - 1).sum())


# --- Batches ---


def test_a_batch_holds_each_picture_once(tiny_data):
    dataset = CaptionDataset(**tiny_data, split='TRAIN')
    numbers = torch.tensor([7, 50, 5, 119, 51, 8])
    batch = batches.collate(dataset, numbers)
    assert len(batch.images) == 3 and torch.equal(batch.numbers, numbers)
    for i, number in enumerate(numbers.tolist()):
        image, caption, caplen = dataset[number]
        assert torch.equal(batch.images[batch.image_of[i]], image) and batch.caplens[i] == caplen
        assert torch.equal(batch.captions[i], caption[:batch.caplens.max()])


@pytest.mark.parametrize('features', [(), ('a file',)], ids=['pictures', 'features'])
@pytest.mark.parametrize('batch_size', [1, 7, 20, 200])
def test_an_epoch_has_each_caption_once_in_an_order_of_its_own(tiny_data, monkeypatch, batch_size, features):
    """Captions of a picture stay together where the picture goes through the encoder."""
    dataset = CaptionDataset(**tiny_data, split='TRAIN', features=features)
    monkeypatch.setattr(dataset, 'images', lambda numbers, mirrored: numbers)
    cfg = check_settings(dict(batch_size=batch_size))
    one, again, other = ([batch.numbers for batch in batches.training_loader(dataset, cfg, epoch)]
                         for epoch in (1, 1, 2))
    single = bool(features) and batch_size == 7  # 120 = 17 * 7 + 1, and batch norm cannot take one
    assert all(map(torch.equal, one, again)) and not all(map(torch.equal, one, other))
    assert len(torch.cat(one).unique()) == len(torch.cat(one)) == len(dataset) - single
    sizes = {len(batch) for batch in one[:-1]}
    assert sizes <= {batch_size if features else max(round(batch_size / 5), 1) * 5}
    if not features:
        assert all(len(batch) == 5 * len((batch // 5).unique()) for batch in one)


def test_every_other_epoch_is_mirrored_but_for_what_has_a_side(tiny_data):
    dataset = CaptionDataset(**tiny_data, split='TRAIN')
    dataset.references[3] = [['on', 'the', 'left']]
    cfg = check_settings(dict(flip=True))
    for epoch in (1, 2):
        for batch in batches.training_loader(dataset, cfg, epoch):
            for i, number in enumerate((batch.numbers // 5).tolist()):
                image = dataset.image(number)
                turned = epoch == 2 and number != 3 and not any(
                    word in ('left', 'right') for caption in dataset.references[number] for word in caption)
                assert torch.equal(batch.images[batch.image_of[i]], image.flip(2) if turned else image)


def test_parts_of_a_step_weigh_as_many_words_as_they_have(tiny_cfg):
    """The same curve as one batch, but for rounding, with an optimizer that feels how large a gradient is."""
    # the penalty is per caption, not per word
    cfg = {**tiny_cfg, 'dropout': 0.0, 'alpha_c': 0.0, 'batch_size': 24, 'decoder_lr': 0.5, 'grad_clip': 0.01}
    whole, parts = (train({**cfg, 'accumulate': n}, optimizer=torch.optim.SGD)[-1]['val_loss'] for n in (1, 3))
    assert parts == pytest.approx(whole, rel=1e-5)
    assert read_checkpoint(files_of(cfg)[0])['fingerprints']['optimizer'].startswith('SGD')  # the report tells


# --- Validation ---


def test_a_monitor_that_there_is_not_or_twice(tiny_cfg, monkeypatch):
    with pytest.raises(ValueError, match="'greedy_blue4'.*greedy_bleu4"):
        train({**tiny_cfg, 'monitor': 'greedy_blue4'})
    monkeypatch.setattr('lab.decode.metrics.METRICS', [*METRICS, lambda references, captions: {'CIDEr': 0}])
    with pytest.raises(ValueError, match='CIDEr-D.*CIDEr'):
        train(tiny_cfg)


def test_a_metric_of_ones_own_may_choose_the_model(tiny_cfg, monkeypatch, capsys):
    values = iter([0, 0.1, 0.9, 0.5])  # the first one only says what the score is called
    monkeypatch.setattr('lab.decode.metrics.METRICS', [*METRICS, lambda references, captions: {
        'MY-3': next(values), 'spread': stdev(map(len, captions))}])
    monkeypatch.setattr(solver, 'same_caption', lambda captions: 'all are alike')
    history = train({**tiny_cfg, 'epochs': 3, 'monitor': 'greedy_my3'})
    assert [entry['val_greedy_my3'] for entry in history] == [0.1, 0.9, 0.5]
    assert best_epoch(history)['epoch'] == len(read_checkpoint(files_of(tiny_cfg)[1])['history']) == 2
    assert capsys.readouterr().out.count('all are alike') == 1


# --- One training ---


@pytest.fixture
def scripted(monkeypatch):
    """``scripted(scores)``: epochs that train nothing and reach the given greedy BLEU-4 one after another."""
    def script(scores, losses=()):
        scores, losses = iter(scores), iter(losses)
        monkeypatch.setattr(solver, 'train_epoch', lambda *_: dict(loss=1.0, top5=50.0))
        monkeypatch.setattr(solver, 'validate', lambda *_: dict(
            **dict.fromkeys(['loss', 'cross_entropy'], next(losses, 2.0)), top5=40.0, bleu4=0.9,
            greedy_bleu4=next(scores), greedy_cider=0.0))
    return script


@pytest.mark.parametrize(('monitor', 'scores', 'losses', 'best'), [
    (None, [0.1, 0.3, 0.3, 0.2], [], 2), (None, [0.0] * 4, [3.0, 2.5, 2.6, 2.5], 2),
    *[(lower, [0.1, 0.3, 0.3, 0.2], [3.0, 2.5, 2.4, 2.5], 3) for lower in ('loss', 'cross_entropy')]])
def test_the_best_score_picks_the_checkpoint_then_the_loss(tiny_cfg, scripted, monitor, scores, losses, best):
    scripted(scores, losses)
    train({**tiny_cfg, 'epochs': 4, 'monitor': monitor})
    latest, kept = (read_checkpoint(path)['history'] for path in files_of(tiny_cfg))
    assert len(latest) == 4 and len(kept) == best == best_epoch(latest)['epoch']


def test_learning_rate_falls_and_training_stops_also_over_a_resume(tiny_cfg, scripted):
    scripted([0.45, 0.5] + [0.4] * 100)
    history = train({**tiny_cfg, 'epochs': 100, 'decoder_lr': 1e-3})
    assert len(history) == 22  # the best, then 20 without a better one
    assert [e['decoder_lr'] for e in history] == pytest.approx([1e-3] * 10 + [0.8e-3] * 8 + [0.64e-3] * 4)
    train({**tiny_cfg, 'epochs': 9})
    scripted([0.4] * 100)
    history = train({**tiny_cfg, 'epochs': 100, 'checkpoint': str(files_of(tiny_cfg)[0])})
    assert [e['decoder_lr'] for e in history] == pytest.approx([5e-3] * 9 + [4e-3] * 8 + [3.2e-3] * 4)


def test_a_second_run_moves_the_first_aside(tiny_cfg, capsys, monkeypatch):
    first, runs = train({**tiny_cfg, 'epochs': 1}), Path(tiny_cfg['output_folder'])
    for language in ('', '_zh'):
        (runs / f'test_Attention{language}.json').write_text('{}')  # of the first model, not of the second
    (runs / 'history_NoAttention.json').write_text('[]')  # of the other decoder: it stays
    before = {path.name: path.read_bytes() for path in runs.glob('*_Attention*')}
    second = train({**tiny_cfg, 'epochs': 1})
    assert without_seconds(first) == without_seconds(second)  # and the same seed gives the same training
    assert str(runs / 'earlier_1') in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in (runs / 'earlier_1').iterdir()} == before and len(before) == 5
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):  # a run that fails moves nothing
        patch.setattr(solver, 'train_epoch', lambda *_: 1 / 0)
        train(tiny_cfg)
    assert without_seconds(train({**tiny_cfg, 'epochs': 1, 'seed': 1})) != without_seconds(first)
    assert json.loads((runs / 'earlier_2' / 'history_Attention.json').read_text()) == second
    assert (runs / 'history_NoAttention.json').exists() and not (runs / 'test_Attention.json').exists()


def test_code_that_was_edited_since_is_named(tiny_cfg, other_source, capsys):
    with other_source('models', lambda code: code + b'\nX = 1\n'):
        train({**tiny_cfg, 'epochs': 1})
    assert 'models.py changed' in capsys.readouterr().out


# --- Going on ---


@pytest.mark.parametrize('name', ['plain', 'attention'])
def test_two_and_two_epochs_are_four(trained, tmp_path, name):
    cfg, history = trained(name)
    again = {**cfg, 'output_folder': str(tmp_path)}
    train({**again, 'epochs': 2})
    torch.manual_seed(99)
    parts = train({**again, 'checkpoint': str(files_of(again)[0])})
    assert without_seconds(parts) == without_seconds(history)
    for one, other in zip(files_of(cfg), files_of(again), strict=True):
        assert_same_training(one, other)


def test_best_score_is_kept_over_a_resume_and_in_another_folder(tiny_cfg, scripted, tmp_path):
    scripted([0.2, 0.6])
    train({**tiny_cfg, 'epochs': 2})
    latest, best = files_of(tiny_cfg)
    before = {path.name: path.read_bytes() for path in best.parent.iterdir()}
    there = {**tiny_cfg, 'output_folder': str(tmp_path / 'other')}
    scripted([0.9])
    train({**there, 'epochs': 1})  # something else is there already
    scripted([0.5])
    history = train({**there, 'epochs': 3, 'checkpoint': str(latest)})
    assert [entry['val_greedy_bleu4'] for entry in history] == [0.2, 0.6, 0.5]
    # its best model is that of its own history, not of what was there
    assert (tmp_path / 'other' / best.name).read_bytes() == best.read_bytes()
    assert {path.name: path.read_bytes() for path in best.parent.iterdir()} == before
    assert json.loads((tmp_path / 'other/earlier_1/history_Attention.json').read_text())[0]['val_greedy_bleu4'] == 0.9
    scripted([0.5])
    train({**tiny_cfg, 'epochs': 3, 'checkpoint': str(latest)})
    assert best.read_bytes() == before[best.name]


def test_other_rates_than_the_checkpoints_hold(tiny_cfg, scripted, tmp_path, capsys):
    first = {**tiny_cfg, 'epochs': 1, 'cosine': True}
    train(first)
    scripted([0.2] * 9)
    again = {**first, 'checkpoint': str(files_of(tiny_cfg)[0])}
    for changes, rate in ((dict(cosine=False), 5e-3), (dict(decoder_lr=1e-3), 5e-4),  # half of it, along the cosine
                          (dict(cosine=False, decoder_lr=1e-4), 1e-4)):
        there = dict(epochs=2, output_folder=str(tmp_path / str(rate)))
        assert train({**again, **there, **changes})[1]['decoder_lr'] == pytest.approx(rate)
    capsys.readouterr()
    train(again)
    assert 'epochs' in capsys.readouterr().out  # it has trained them already


def test_resume_refuses_what_does_not_fit(trained, tmp_path):
    cfg, _ = trained('attention')
    latest, _ = files_of(cfg)
    again = {**cfg, 'checkpoint': str(latest), 'output_folder': str(tmp_path / 'runs')}
    state, old, words = read_checkpoint(latest), tmp_path / 'old.pth.tar', tmp_path / 'words.pth.tar'
    settings = {key: value for key, value in state['settings'].items() if key not in ('feature_dropout', 'monitor')}
    torch.save({**state, 'format': 4, 'settings': settings}, old)
    torch.save({**state, 'word_map': {**state['word_map'], 'more': 99}}, words)
    for change, hint in (
            (dict(decoder_dim=8), 'decoder'), (dict(attention=False), 'NoAttention'),
            (dict(encoder_weights=None), 'encoder'), (dict(checkpoint='nowhere'), 'nowhere'),
            (dict(fine_tune_encoder=True), 'fine_tune_encoder'), (dict(monitor='loss'), 'monitor'),
            (dict(encoded_image_size=2), 'encoded_image_size'), (dict(checkpoint=str(old)), 'start_from'),
            (dict(checkpoint=str(words)), 'vocabulary')):
        with pytest.raises(ValueError, match=hint):
            train({**again, **change})
    with pytest.raises(ValueError, match='optimizer'):
        train(again, optimizer=torch.optim.SGD)
    assert evaluate(load_model(old, 'cpu'), 'VAL', [1])['captions']  # it still captions


def test_an_optimizer_with_groups_of_its_own_goes_on(tiny_cfg):
    def without_decay(groups):
        weights = groups[0]['params']
        return torch.optim.AdamW([dict(params=weights[:5], weight_decay=0.0), dict(params=weights[5:])], lr=1e-2)

    whole = train(tiny_cfg, optimizer=without_decay)
    train({**tiny_cfg, 'epochs': 1}, optimizer=without_decay)
    parts = train({**tiny_cfg, 'checkpoint': str(files_of(tiny_cfg)[0])}, optimizer=without_decay)
    assert without_seconds(parts) == without_seconds(whole)


# --- A decoder of one's own ---

OWN_DECODER = '''
from models import DecoderWithAttention, DecoderWithRNN

class Mine(DecoderWithAttention):
    """Half as much attention to the picture, and an option."""
    def __init__(self, *args, part=0.5, **kwargs):
        super().__init__(*args, **kwargs)
        self.part = part

    def one_step(self, embeddings, encoder_out, h, c, keys=None):
        return super().one_step(embeddings, encoder_out * self.part, h, c, keys)

class Few(DecoderWithRNN):
    """Takes some of the sizes only."""
    def __init__(self, vocab_size, encoder_dim, embed_dim, decoder_dim=7):
        super().__init__(embed_dim, decoder_dim, vocab_size, encoder_dim)

class Stuck(DecoderWithAttention):
    def step(self, *arguments):
        raise LookupError('a mistake in step')
'''


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """my_decoder.py, as if it lay beside models.py."""
    (tmp_path / 'my_decoder.py').write_text(OWN_DECODER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(model, 'ROOT', tmp_path)
    yield
    sys.modules.pop('my_decoder', None)


@pytest.mark.parametrize(('name', 'options'), [('Mine', dict(part=0.25)), ('Few', {})])
def test_own_decoder_is_trained_saved_and_loaded(own_file, tiny_cfg, name, options):
    history = train({**tiny_cfg, 'decoder': f'my_decoder.{name}', 'decoder_options': options})
    assert history[1]['train_loss'] < history[0]['train_loss']
    runs = Path(tiny_cfg['output_folder'])
    assert json.loads((runs / f'history_{name}.json').read_text()) == history
    decoder = load_models(runs, name)[name].decoder
    assert type(decoder).__name__ == name and getattr(decoder, 'part', 0.25) == 0.25
    with pytest.raises(ValueError, match='Attention'):
        train({**tiny_cfg, 'checkpoint': str(runs / f'BEST_checkpoint_{name}.pth.tar')})


@pytest.mark.parametrize(('decoder', 'error', 'hint'), [
    ('Mine', ValueError, 'my_decoder.MyDecoder'), ('os.path', ValueError, 'os.py'),
    ('../my_decoder.Mine', ValueError, 'no file'), ('my_decoder.Other', AttributeError, 'Other'),
    ('my_decoder.Stuck', LookupError, 'a mistake in step')])
def test_own_decoder_that_cannot_be_is_refused_before_the_first_epoch(own_file, tiny_cfg, decoder, error, hint):
    with pytest.raises(error, match=hint):
        train({**tiny_cfg, 'decoder': decoder}, loss=lambda *_: 1 / 0)  # no batch comes so far
    assert not list(Path(tiny_cfg['output_folder']).glob('*.json'))


# --- Ways to train ---


def test_optimizer_of_ones_own_has_a_group_for_each_part_and_all_are_clipped(tiny_cfg):
    """SGD of rate 1, its own, moves each weight by its clipped gradient, the encoder's as well."""
    made, steps = [], {}
    for clip in (None, 1e-3):
        run = make_run({**tiny_cfg, 'fine_tune_encoder': True, 'grad_clip': clip, 'batch_size': 120, 'cosine': True},
                     optimizer=lambda groups: made.append(groups) or torch.optim.SGD([g | {'lr': 1.0} for g in groups]))
        before = copy.deepcopy(run.model.state_dict())
        train_epoch(run, 1)
        moved = {name: (value - before[name]).abs().max().item()
                 for name, value in run.model.state_dict().items() if 'bn' not in name and 'running' not in name}
        for part in ('encoder', 'decoder'):
            steps[part, clip] = max(step for name, step in moved.items() if name.startswith(part))
    assert [group['name'] for group in made[0]] == ['decoder', 'encoder']
    for part in ('encoder', 'decoder'):
        assert steps[part, None] > 5e-3 and steps[part, 1e-3] == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize(('setting', 'how'), [
    ('embed_dropout', {}), ('embed_dropout', {'fast': False}), ('feature_dropout', {}),
    ('feature_dropout', {'cache_features': False}), ('feature_dropout', {'fine_tune_encoder': True})])
def test_dropout_on_what_goes_in_is_for_training_only(tiny_cfg, setting, how):
    """Entries of word vectors; channels of whole pictures. What stays grows."""
    run = make_run({**tiny_cfg, setting: 0.25, 'dropout': 0.0, **how})
    batch = batches.collate(run.train_data, torch.arange(120))

    @torch.no_grad()
    def values():
        if setting == 'embed_dropout':
            return run.model.decoder.embedding(batch.captions)
        return run.model.encode(batch.images)

    run.model.eval()
    whole = values()
    assert torch.equal(values(), whole)
    run.model.train()
    gone = []
    for _ in range(10):
        found = values()
        off = (found == 0) if setting == 'embed_dropout' else (found == 0).all(dim=2).all(dim=1)[:, None, None]
        torch.testing.assert_close(found, torch.where(off, 0.0, whole / 0.75))
        gone.append((off & (whole != 0)).sum() / (whole != 0).sum())
    assert torch.stack(gone).mean().item() == pytest.approx(0.25, abs=0.02)


def test_a_loss_that_is_no_number_stops_at_once(tiny_cfg):
    with pytest.raises(FloatingPointError, match='nan.*decoder_lr'):
        train(tiny_cfg, loss=lambda scores, targets, alphas: scores.mean() * math.nan)
    assert list(Path(tiny_cfg['output_folder']).iterdir()) == []


# --- Encoders ---


def test_own_encoder_is_trained_saved_and_loaded(tiny_cfg):
    cfg = {**tiny_cfg, 'epochs': 1, 'fine_tune_encoder': True, 'encoder_lr': 1e-2}
    own = Patches()
    before = copy.deepcopy(own.state_dict())
    train(cfg, own)
    assert not any(torch.equal(before[name], value) for name, value in own.state_dict().items())
    latest, _ = files_of(cfg)
    with pytest.raises(ValueError, match='encoder'):
        load_model(latest, 'cpu')
    loaded = load_model(latest, 'cpu', Patches())  # the trained weights come from the checkpoint
    assert_exactly(list(loaded.encoder.stages.state_dict().values()), list(own.state_dict().values()))


@pytest.mark.parametrize('cosine', [False, True])
def test_a_second_phase_trains_blocks_2_to_4_and_may_be_stopped(trained, tmp_path, cosine):
    """It starts where the first ended; in two parts it is the same to the last bit, both groups with their rates."""
    cfg, frozen = trained('attention')
    second = {**cfg, 'dropout': 0.0, 'start_from': str(files_of(cfg)[1]), 'fine_tune_encoder': True, 'epochs': 2,
              'encoder_lr': 1e-3, 'cosine': cosine, 'accumulate': 2, 'output_folder': str(tmp_path / 'whole')}
    history = train(second)
    assert history[0]['train_loss'] < frozen[0]['train_loss'] * 0.98
    tuned, first = load_model(files_of(second)[0], 'cpu'), load_model(files_of(cfg)[0], 'cpu')
    assert tuned.tuned and not first.tuned
    for one, other, stride in zip(tuned.encoder.stages, first.encoder.stages, first.encoder.strides, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b) == (stride < 8)
        assert_exactly(list(one.buffers()), list(other.buffers()))  # batch norm's statistics never drift

    parts, validated = {**second, 'output_folder': str(tmp_path / 'parts')}, []
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ZeroDivisionError):
        real = solver.validate
        patch.setattr(solver, 'validate', lambda run: validated.append(1) or real(run) if not validated else 1 / 0)
        train(parts)
    stopped = read_checkpoint(files_of(parts)[0])
    factor = 0.5 if cosine else 1
    assert [group['lr'] for group in stopped['optimizer']['param_groups']] == pytest.approx(
        [5e-3 * factor, 1e-3 * factor])
    train({**parts, 'start_from': None, 'checkpoint': str(files_of(parts)[0])})
    assert_same_training(files_of(second)[0], files_of(parts)[0])
    third = {**second, 'fine_tune_encoder': False, 'epochs': 1, 'start_from': str(files_of(second)[0])}
    train(third)  # frozen now, and its weights are kept all the same
    assert_exactly(load_model(files_of(third)[0], 'cpu').encoder.state_dict(), tuned.encoder.state_dict())
