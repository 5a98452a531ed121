"""Settings that regularise or start from elsewhere: label smoothing, dropout on embeddings, weight decay, word vectors,
a second phase that fine-tunes the encoder; and ensembles of what was trained."""

import math
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import solver
import word_vectors
from beam_search import beam_search
from checkpoints import checkpoint_paths, load_model, read_checkpoint
from ensembles import Ensemble, load_ensemble
from evaluate import caption_image, caption_split, evaluate
from solver import DEFAULTS, caption_dataset, caption_loss, check_settings, train
from vocabulary import load_word_map

ATTENTION = dict(embed_dim=12, decoder_dim=16, attention_dim=10)


def best(cfg):
    return checkpoint_paths({**DEFAULTS, **cfg})[1]


# --- Label smoothing, weight decay, dropout on embeddings ---


def test_label_smoothing_by_hand():
    scores = torch.linspace(-2, 3, 2 * 4 * 5, dtype=torch.float64).sin().view(2, 4, 5)
    captions, lengths = torch.tensor([[1, 2, 4, 3, 0], [1, 4, 3, 0, 0]]), [3, 2]
    loss, *_ = caption_loss((scores[:, :3], captions, lengths, torch.arange(2)), 0.0, label_smoothing=0.3)
    total = 0
    for i, length in enumerate(lengths):
        for t in range(length):
            log_p = scores[i, t].log_softmax(dim=0)
            total -= 0.7 * log_p[captions[i, t + 1]] + 0.3 * log_p.mean()
    assert loss.item() == pytest.approx(total.item() / 5)


def test_smoothing_is_for_training_only(tiny_cfg, monkeypatch):
    seen = []
    real = solver.caption_loss
    monkeypatch.setattr(solver, 'caption_loss', lambda *args: (
        seen.append((args[4] if len(args) > 4 else 0.0, torch.is_grad_enabled())), real(*args))[1])
    train({**tiny_cfg, 'label_smoothing': 0.2, 'epochs': 1})
    assert set(seen) == {(0.2, True), (0.0, False)}


def test_a_penalty_that_falls_over_the_epochs(tiny_cfg, monkeypatch):
    """In training; validation has the last value in all epochs, so that its losses can be compared."""
    seen = []
    real = solver.caption_loss
    monkeypatch.setattr(solver, 'caption_loss', lambda *args: (
        seen.append((round(args[1], 6), torch.is_grad_enabled())), real(*args))[1])
    train({**tiny_cfg, 'alpha_c': [1.0, 0.2], 'epochs': 3})
    assert sorted(set(seen)) == [(0.2, False), (0.2, True), (0.6, True), (1.0, True)]
    assert check_settings({'alpha_c': [1.0, 0.2]})['alpha_c'] == (1.0, 0.2)


def test_weight_decay_makes_weights_smaller(tiny_cfg):
    norms = {}
    for decay in (0.0, 0.0, 1.0):
        cfg = {**tiny_cfg, 'weight_decay': decay, 'dropout': 0.0}
        train(cfg)
        norms.setdefault(decay, []).append(sum(value.square().sum().item() for name, value in
                                               read_checkpoint(best(cfg))['decoder'].items() if 'weight' in name))
    assert norms[0.0][0] == norms[0.0][1] > 1.02 * norms[1.0][0]


@pytest.mark.parametrize('lean', [True, False])
def test_dropout_on_embeddings_is_on_in_training_only(tiny_cfg, monkeypatch, lean):
    shares = {True: [], False: []}
    real = nn.functional.dropout

    def dropout(values, p=0.5, training=True, inplace=False):
        out = real(values, p, training, inplace)
        if p == 0.4:
            shares[training].append((out == 0).double().mean().item())
        return out

    monkeypatch.setattr(nn.functional, 'dropout', dropout)
    train({**tiny_cfg, 'embed_dropout': 0.4, 'dropout': 0.0, 'lean': lean, 'epochs': 1})
    assert sum(shares[True]) / len(shares[True]) == pytest.approx(0.4, abs=0.02)
    assert shares[False] and max(shares[False]) == 0


@pytest.mark.parametrize('how', [{}, {'lean': False}, {'cache_features': False}, {'fine_tune_encoder': True}])
def test_feature_dropout_takes_channels_from_whole_pictures_in_training_only(tiny_cfg, monkeypatch, how):
    shares, real = {True: [], False: []}, solver.encode

    def encode(model, images):
        out, training = real(model, images), model.encoder.training
        all_there = real(replace(model, settings={**model.settings, 'feature_dropout': 0.0}), images)
        gone = (out == 0).all(dim=2).all(dim=1)
        expected = torch.where(gone[:, None, None], 0.0, all_there / 0.75)
        assert torch.allclose(out, expected if training else all_there)
        says = all_there.any(dim=2).any(dim=1)  # some channels are 0 anyway
        shares[training].append((gone & says).sum().item() / says.sum().item())
        return out

    monkeypatch.setattr(solver, 'encode', encode)
    train({**tiny_cfg, 'feature_dropout': 0.25, 'epochs': 2, **how})
    assert sum(shares[True]) / len(shares[True]) == pytest.approx(0.25, abs=0.03)
    assert shares[False] and max(shares[False]) == 0


@pytest.mark.parametrize(('name', 'value'), [
    ('embed_dropout', 1), ('feature_dropout', 1), ('feature_dropout', None),
    ('label_smoothing', -0.1), ('label_smoothing', None), ('weight_decay', -1),
    ('decoder_options', None), ('decoder_options', {1: 2}), ('tune_word_vectors', 1), ('word_vectors', 3),
    ('start_from', 3)])
def test_impossible_values(name, value):
    with pytest.raises(ValueError, match=f"setting '{name}' is"):
        check_settings({name: value})


# --- Word vectors ---


@pytest.fixture
def vectors(tiny_cfg, tmp_path):
    """A file with two words of the vocabulary, one of them twice, and others."""
    path = tmp_path / 'vectors.txt'
    rows = dict(red=1.0, unheard=9.0, star=2.0)
    path.write_text('\n'.join([*(f"{word} {' '.join([str(value)] * 12)}" for word, value in rows.items()),
                               'star' + ' 7' * 12, 'New York' + ' 4' * 12]) + '\n')
    return path


def test_word_vectors_are_taken_and_the_others_stay(tiny_cfg, vectors, capsys):
    word_map = load_word_map(tiny_cfg['data_folder'], tiny_cfg['data_name'])
    embedding = nn.Embedding(len(word_map), 12)
    before = embedding.weight.detach().clone()
    assert word_vectors.load(embedding, vectors, word_map) == 2
    for word, index in word_map.items():
        expected = dict(red=torch.ones(12), star=torch.full((12,), 2.0)).get(word, before[index])
        assert torch.equal(embedding.weight[index], expected)
    train({**tiny_cfg, 'word_vectors': str(vectors), 'epochs': 1})
    words = len(word_map) - 4
    assert f'has 2 of the {words} words; the other {words - 2} start at random' in capsys.readouterr().out


def test_word_vectors_are_read_line_by_line(tmp_path):
    """Memory is for the vocabulary: a file of any length will do."""
    path = tmp_path / 'vectors.txt'
    with path.open('w') as file:
        for i in range(20_000):
            file.write(f'word{i}' + ' 0.12345' * 50 + '\n')
    embedding = nn.Embedding(3, 50)
    tracemalloc.start()
    found = word_vectors.load(embedding, path, {'<pad>': 0, 'word7': 1, 'word19999': 2})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == 2 and peak < 1e6 < path.stat().st_size / 8


@pytest.mark.parametrize('lean', [True, False])
@pytest.mark.parametrize('tune', [True, False])
def test_frozen_or_tuned(tiny_cfg, vectors, tune, lean, capsys):
    cfg = {**tiny_cfg, 'word_vectors': vectors, 'tune_word_vectors': tune, 'lean': lean}
    train(cfg)
    assert 'as it is written' not in capsys.readouterr().out  # frozen ones do not hinder lean.py
    model = load_model(best(cfg), 'cpu')
    assert (model.decoder.embedding.weight[model.word_map['red']] == 1).all() != tune


@pytest.mark.parametrize('between', [' ', '\t'])
def test_a_header_and_empty_lines_are_passed_over(tiny_cfg, vectors, between):
    word_map = load_word_map(tiny_cfg['data_folder'], tiny_cfg['data_name'])
    vectors.write_text(('5 12\n' + vectors.read_text().replace('\n', '\n\n')).replace(' ', between))
    assert word_vectors.load(nn.Embedding(len(word_map), 12), vectors, word_map) == 2


@pytest.mark.parametrize(('text', 'message'), [
    ('red 1 2 3\n', r'line 1: 3 numbers follow the word, but embed_dim is 12'),
    ('red' + ' 1' * 12 + '\nstar 1 2\n', r'line 2: 2 numbers follow'),
    ('red' + ' 1' * 11 + ' x\n', r"line 1: what follows 'red' is not 12 numbers"),
    ('red' + ' 1' * 11 + ' nan\n', r"line 1: what follows 'red' is not 12 numbers"),
    ('', 'vectors.txt has none of the words of the vocabulary'),
    ('unheard' + ' 1' * 12 + '\n', 'vectors.txt has none of the words of the vocabulary'),
    ('the' + ' 1' * 300 + '\n', r'line 1: 300 numbers follow the word, but embed_dim is 12: set embed_dim')])
def test_files_that_are_no_word_vectors(tiny_cfg, tmp_path, text, message):
    path = tmp_path / 'vectors.txt'
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        train({**tiny_cfg, 'word_vectors': path})
    with pytest.raises(ValueError, match='nowhere.txt cannot be read: No such file'):
        train({**tiny_cfg, 'word_vectors': tmp_path / 'nowhere.txt'})


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

    def validate(model, dataset):
        norms = [m for m in model.encoder.modules() if isinstance(m, nn.BatchNorm2d)]
        assert norms and not any(m.training for m in norms)
        statistics.append([m.running_mean.clone() for m in norms])
        return real(model, dataset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, 'validate', validate)
        history = train(second)
    scores = f'greedy BLEU-4 {ended["val_greedy_bleu4"]:.3f}, CIDEr {ended["val_greedy_cider"]:.3f} on validation'
    assert scores in capsys.readouterr().out
    assert len(history) == 1 and history[0]['epoch'] == 1  # a training of its own
    assert history[0]['train_loss'] < frozen[0]['train_loss'] * 0.98  # that starts where the other ended
    first, then = load_model(best(cfg), 'cpu'), load_model(best(second), 'cpu')
    before, after = first.encoder.stages.state_dict(), then.encoder.stages.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any('running' in name for name in changed)
    assert then.tuned and not first.tuned


def test_a_start_that_there_is_not(tiny_cfg):
    with pytest.raises(ValueError, match="'self_critical' is 'mean', which goes on from a trained decoder"):
        train({**tiny_cfg, 'self_critical': 'mean'})
    with pytest.raises(ValueError, match="'tune_word_vectors' is False, but there are no trained word vectors"):
        train({**tiny_cfg, 'tune_word_vectors': False})
    train({**tiny_cfg, 'epochs': 1})
    with pytest.raises(ValueError, match="with self_critical=None, and the settings say 'greedy'"):
        train({**tiny_cfg, 'self_critical': 'greedy', 'checkpoint': str(checkpoint_paths({**DEFAULTS, **tiny_cfg})[0])})


def test_batch_norm_needs_two_captions(tiny_cfg):
    with pytest.raises(ValueError, match="'batch_size' is 1; it must be at least 2: DecoderWithCell has a batch norm"):
        train({**tiny_cfg, 'decoder': 'extensions.DecoderWithCell', 'batch_size': 1})


def test_a_start_from_something_else(tiny_cfg):
    train({**tiny_cfg, 'epochs': 1})
    with pytest.raises(ValueError, match='holds the decoder Attention, and the settings say NoAttention'):
        train({**tiny_cfg, 'attention': False, 'start_from': str(best(tiny_cfg)),
               'output_folder': tiny_cfg['output_folder'] + '_2'})
    with pytest.raises(ValueError, match='whose place in output_folder this training would take'):
        train({**tiny_cfg, 'start_from': str(best(tiny_cfg))})
    with pytest.raises(ValueError, match='there is no checkpoint nowhere'):
        train({**tiny_cfg, 'start_from': 'nowhere'})


# --- Ensembles ---


@pytest.fixture(scope='module')
def three(tiny_data, tmp_path_factory):
    """Two seeds of one decoder and another decoder."""
    folder, paths = tmp_path_factory.mktemp('three'), []
    for seed, decoder in ((0, None), (1, None), (2, 'extensions.DecoderWithAdaptiveAttention')):
        cfg = dict(**tiny_data, **ATTENTION, encoder='shapes_cnn', encoded_image_size=4, epochs=4, batch_size=20,
                   decoder_lr=2e-2, device='cpu', seed=seed, decoder=decoder, output_folder=str(folder / str(seed)))
        train(cfg)
        paths.append(best(cfg))
    return paths


def test_the_mean_of_the_probabilities(three):
    models = [load_model(path, 'cpu') for path in three]
    ensemble = load_ensemble(three, 'cpu')
    dataset = caption_dataset(ensemble, 'TEST')
    encoder_out = solver.encode(ensemble, dataset.images(torch.arange(4)))
    state, memory = ensemble.decoder.start(encoder_out)
    states = [list(model.decoder.start(encoder_out)) for model in models]
    words = torch.full((4,), ensemble.word_map['<start>'])
    with torch.no_grad():
        for _ in range(3):
            scores, state, alpha = ensemble.decoder.step(words, state, memory)
            steps = [model.decoder.step(words, *own) for model, own in zip(models, states, strict=True)]
            mean = sum(own.softmax(dim=1) for own, *_ in steps) / 3
            torch.testing.assert_close(scores.softmax(dim=1), mean)
            torch.testing.assert_close(alpha, sum(own for *_, own in steps) / 3)
            for own, (_, new, _) in zip(states, steps, strict=True):
                own[0] = new
            words = mean.argmax(dim=1)


def test_an_ensemble_of_one_is_the_model(three):
    model, alone = load_model(three[2], 'cpu'), load_ensemble(three[2:], 'cpu')
    for one, other in zip(caption_split(alone, 'TEST', 3), caption_split(model, 'TEST', 3), strict=True):
        assert one['caption'] == other['caption'] and one['score'] == pytest.approx(other['score'], abs=1e-4)


def test_an_ensemble_is_evaluated_as_a_model_is(three):
    ensemble = load_ensemble(three, 'cpu')
    result = evaluate(ensemble, 'TEST', (1, 3))
    assert result['model'] == 'Ensemble' and len(result['captions']) == 6
    decoders = [load_model(path, 'cpu').decoder for path in three]
    assert result['parameters'] == sum(p.numel() for decoder in decoders for p in decoder.parameters())
    assert math.isfinite(result['scores'][1]['BLEU-4'])
    dataset = caption_dataset(load_model(three[0], 'cpu'), 'TEST')
    solo = caption_image(ensemble, torch.zeros(3, 256, 256, dtype=torch.uint8))
    assert solo['alphas'].shape == (len(solo['caption']), 4, 4) and len(dataset.names) == 6


def test_beams_are_reordered_with_all_their_states(three):
    """Beam 4 of an ensemble of three times the same decoder is beam 4 of this decoder."""
    model = load_model(three[2], 'cpu')
    same = Ensemble([model.decoder] * 3).eval()
    encoder_out = solver.encode(model, caption_dataset(model, 'TEST').images(torch.arange(6)))
    for one, other in zip(beam_search(same, encoder_out, model.word_map, 4, 12),
                          beam_search(model.decoder, encoder_out, model.word_map, 4, 12), strict=True):
        assert one.words == other.words and one.score == pytest.approx(other.score, abs=1e-4)


def test_what_does_not_go_together(three, tiny_cfg, tmp_path):
    with pytest.raises(ValueError, match='an ensemble needs at least one checkpoint'):
        load_ensemble([])
    other = {**tiny_cfg, 'encoded_image_size': 8, 'epochs': 1}
    train(other)
    with pytest.raises(ValueError, match=f'{Path(best(other))} has another encoded_image_size than'):
        load_ensemble([three[0], best(other)], 'cpu')
