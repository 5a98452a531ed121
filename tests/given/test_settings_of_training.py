"""Settings that regularise or start from elsewhere: label smoothing, dropout on embeddings, weight decay, and a second
phase that fine-tunes the encoder."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import solver
from lab.train.checkpoints import checkpoint_paths, load_model, read_checkpoint
from lab.train.forward import true_words
from solver import DEFAULTS, caption_loss, check_settings, train


def best(cfg):
    return checkpoint_paths({**DEFAULTS, **cfg})[1]


# --- Label smoothing, weight decay, dropout on embeddings ---


def test_label_smoothing_by_hand():
    scores = torch.linspace(-2, 3, 2 * 4 * 5, dtype=torch.float64).sin().view(2, 4, 5)
    captions, lengths = torch.tensor([[1, 2, 4, 3, 0], [1, 4, 3, 0, 0]]), [3, 2]
    decoded = true_words((scores[:, :3], captions, lengths, torch.arange(2)))
    loss = caption_loss(*decoded[:3], label_smoothing=0.3)
    total = 0
    for i, length in enumerate(lengths):
        for t in range(length):
            log_p = scores[i, t].log_softmax(dim=0)
            total -= 0.7 * log_p[captions[i, t + 1]] + 0.3 * log_p.mean()
    assert loss.item() == pytest.approx(total.item() / 5)


def test_smoothing_is_for_training_only(tiny_cfg, monkeypatch):
    seen = []
    real = solver.caption_loss
    monkeypatch.setattr(solver, 'caption_loss', lambda *args, label_smoothing=0.0, **rest: (
        seen.append((label_smoothing, torch.is_grad_enabled())),
        real(*args, label_smoothing=label_smoothing, **rest))[1])
    train({**tiny_cfg, 'label_smoothing': 0.2, 'epochs': 1})
    assert set(seen) == {(0.2, True), (0.0, False)}


def test_a_penalty_that_falls_over_the_epochs(tiny_cfg, monkeypatch):
    """In training; validation has the last value in all epochs, so that its losses can be compared."""
    seen = []
    real = solver.caption_loss
    monkeypatch.setattr(solver, 'caption_loss', lambda *args, alpha_c, **rest: (
        seen.append((round(alpha_c, 6), torch.is_grad_enabled())), real(*args, alpha_c=alpha_c, **rest))[1])
    monkeypatch.setattr(solver, 'doubly_stochastic_penalty', lambda alpha: torch.tensor(1.0))
    history = train({**tiny_cfg, 'alpha_c': [1.0, 0.2], 'epochs': 3})
    assert sorted({alpha_c for alpha_c, training in seen if training}) == [0.2, 0.6, 1.0]
    assert [epoch['val_loss'] - epoch['val_cross_entropy'] for epoch in history] == pytest.approx([0.2] * 3, abs=1e-5)


def test_weight_decay_makes_weights_smaller(tiny_cfg):
    norms = {}
    for decay in (0.0, 0.0, 1.0):
        cfg = {**tiny_cfg, 'weight_decay': decay, 'dropout': 0.0}
        train(cfg)
        norms.setdefault(decay, []).append(sum(value.square().sum().item() for name, value in
                                               read_checkpoint(best(cfg))['decoder'].items() if 'weight' in name))
    assert norms[0.0][0] == norms[0.0][1] > 1.02 * norms[1.0][0]


@pytest.mark.parametrize('fast', [True, False])
def test_dropout_on_embeddings_is_on_in_training_only(tiny_cfg, monkeypatch, fast):
    shares = {True: [], False: []}
    real = nn.functional.dropout

    def dropout(values, p=0.5, training=True, inplace=False):
        out = real(values, p, training, inplace)
        if p == 0.4:
            shares[training].append((out == 0).double().mean().item())
        return out

    monkeypatch.setattr(nn.functional, 'dropout', dropout)
    train({**tiny_cfg, 'embed_dropout': 0.4, 'dropout': 0.0, 'fast': fast, 'epochs': 1})
    assert sum(shares[True]) / len(shares[True]) == pytest.approx(0.4, abs=0.02)
    assert shares[False] and max(shares[False]) == 0


@pytest.mark.parametrize('how', [{}, {'fast': False}, {'cache_features': False}, {'fine_tune_encoder': True}])
def test_feature_dropout_takes_channels_from_whole_pictures_in_training_only(tiny_cfg, monkeypatch, how):
    shares, real = {True: [], False: []}, solver.encode

    def encode(model, images, are_features):
        out, training = real(model, images, are_features), model.encoder.training
        all_there = real(replace(model, settings={**model.settings, 'feature_dropout': 0.0}), images, are_features)
        gone = (out == 0).all(dim=2).all(dim=1)
        expected = torch.where(gone[:, None, None], 0.0, all_there / 0.75)
        assert torch.allclose(out, expected if training else all_there)
        says = all_there.any(dim=2).any(dim=1)  # some channels are 0 anyway
        shares[training].append((gone & says).sum().item() / says.sum().item())
        return out

    monkeypatch.setattr(solver, 'encode', encode)
    monkeypatch.setattr('lab.train.forward.encode', encode)
    train({**tiny_cfg, 'feature_dropout': 0.25, 'epochs': 2, **how})
    assert sum(shares[True]) / len(shares[True]) == pytest.approx(0.25, abs=0.03)
    assert shares[False] and max(shares[False]) == 0


@pytest.mark.parametrize(('name', 'value'), [
    ('embed_dropout', 1), ('feature_dropout', 1), ('feature_dropout', None),
    ('label_smoothing', -0.1), ('label_smoothing', None), ('weight_decay', -1),
    ('decoder_options', None), ('tune_word_vectors', 1), ('word_vectors', 3),
    ('start_from', 3)])
def test_impossible_values(name, value):
    with pytest.raises(ValueError, match=f"setting '{name}' is"):
        check_settings({name: value})


# --- A second phase ---


@pytest.mark.parametrize('attention', [False, True])
def test_fine_tuning_starts_from_a_frozen_checkpoint(tiny_cfg, attention, capsys):
    cfg = {**tiny_cfg, 'attention': attention, 'dropout': 0.0}
    frozen = train(cfg)
    ended = read_checkpoint(best(cfg))['history'][-1]
    second = {**cfg, 'output_folder': cfg['output_folder'] + '_tuned', 'start_from': str(best(cfg)),
              'fine_tune_encoder': True, 'encoder_lr': 1e-3, 'epochs': 1}
    statistics = []
    real = solver.validate

    def validate(model, *others):
        norms = [m for m in model.encoder.modules() if isinstance(m, nn.BatchNorm2d)]
        assert norms and not any(m.training for m in norms)
        statistics.append([m.running_mean.clone() for m in norms])
        return real(model, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, 'validate', validate)
        history = train(second)
    scores = f'greedy BLEU-4 {ended["val_greedy_bleu4"]:.3f}, CIDEr {ended["val_greedy_cider"]:.3f} on validation'
    said = capsys.readouterr().out
    assert scores in said and 'an untrained decoder' not in said
    assert len(history) == 1 and history[0]['epoch'] == 1  # a training of its own
    assert history[0]['train_loss'] < frozen[0]['train_loss'] * 0.98  # that starts where the other ended
    first, then = load_model(best(cfg), 'cpu'), load_model(best(second), 'cpu')
    before, after = first.encoder.stages.state_dict(), then.encoder.stages.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any('running' in name for name in changed)
    assert then.tuned and not first.tuned


@pytest.mark.parametrize('cosine', [False, True])
def test_fine_tuning_that_was_stopped_goes_on_the_same(tiny_cfg, tmp_path, monkeypatch, cosine):
    """Both optimizers with their states and learning rates, to the last bit; and another rate where one is set."""
    train(tiny_cfg)
    second = {**tiny_cfg, 'start_from': str(best(tiny_cfg)), 'fine_tune_encoder': True, 'flip': True, 'epochs': 3,
              'encoder_lr': 1e-3, 'decoder_lr': 2e-3, 'cosine': cosine}
    whole = {**second, 'output_folder': str(tmp_path / 'whole')}
    train(whole)
    parts = {**second, 'output_folder': str(tmp_path / 'parts')}
    with monkeypatch.context() as patch:
        real, calls = solver.validate, []
        patch.setattr(solver, 'validate', lambda *given: calls.append(1) or (real(*given) if len(calls) < 2 else 1 / 0))
        with pytest.raises(ZeroDivisionError):
            train(parts)
    again = {**parts, 'start_from': None, 'checkpoint': str(checkpoint_paths({**DEFAULTS, **parts})[0])}
    stopped = read_checkpoint(again['checkpoint'])
    train(again)
    one, other = (read_checkpoint(checkpoint_paths({**DEFAULTS, **cfg})[0]) for cfg in (whole, parts))
    assert set(one['fingerprints']) == {'TRAIN split', 'VAL split', 'start_from file', 'code'}
    assert one['fingerprints'] == other['fingerprints']
    for part in ('encoder', 'decoder'):
        for name, value in one[part].items():
            assert torch.equal(value, other[part][name]), name
        states = [state['optimizers'][part] for state in (one, other)]
        assert states[0]['param_groups'] == states[1]['param_groups']
        for number, kept in states[0]['state'].items():
            assert all(torch.equal(kept[key], states[1]['state'][number][key]) for key in kept)
        rate, = {group['lr'] for group in stopped['optimizers'][part]['param_groups']}
        steps = 1 if not cosine else (1 + math.cos(math.pi / 3)) / 2  # the first step of epoch 2
        assert rate == pytest.approx(second[f'{part}_lr'] * steps)

    train({**again, 'encoder_lr': 5e-4, 'epochs': 4, 'cosine': False})
    rates = [group['lr'] for part in ('encoder', 'decoder') for group in read_checkpoint(again['checkpoint'])[
        'optimizers'][part]['param_groups']]
    assert rates == pytest.approx([5e-4, 2e-3])


def test_fine_tuning_from_the_first_epoch_on(tiny_cfg, capsys):
    train({**tiny_cfg, 'fine_tune_encoder': True, 'epochs': 1})
    hint = 'better train with it frozen first, and go on from the best checkpoint'
    assert hint in capsys.readouterr().out
    train({**tiny_cfg, 'fine_tune_encoder': True, 'checkpoint': str(checkpoint_paths({**DEFAULTS, **tiny_cfg})[0])})
    assert hint not in capsys.readouterr().out


def test_a_start_that_there_is_not(tiny_cfg):
    with pytest.raises(ValueError, match="'self_critical' is 'mean', which goes on from a trained decoder"):
        train({**tiny_cfg, 'self_critical': 'mean'})
    train({**tiny_cfg, 'epochs': 1})
    for name, before, now in ('self_critical', None, 'greedy'), ('encoded_image_size', 4, 2):
        with pytest.raises(ValueError, match=f'with {name}={before}, and the settings say {now!r}'):
            train({**tiny_cfg, name: now, 'checkpoint': str(checkpoint_paths({**DEFAULTS, **tiny_cfg})[0])})


def test_a_start_from_something_else(tiny_cfg):
    train({**tiny_cfg, 'epochs': 1})
    with pytest.raises(ValueError, match='holds the decoder Attention, and the settings say NoAttention'):
        train({**tiny_cfg, 'attention': False, 'start_from': str(best(tiny_cfg)),
               'output_folder': tiny_cfg['output_folder'] + '_2'})
    with pytest.raises(ValueError, match='there is no checkpoint nowhere'):
        train({**tiny_cfg, 'start_from': 'nowhere'})
