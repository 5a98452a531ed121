"""Ensembles of what was trained."""

import math

import pytest
import torch
from verdicts import same

import solver
from beam_search import beam_search
from checkpoints import checkpoint_paths, load_model
from datasets import CaptionDataset
from ensembles import Ensemble, load_ensemble
from evaluate import caption_image, caption_split, evaluate
from models import DecoderWithAttention, DecoderWithRNN
from solver import DEFAULTS, caption_dataset, train


def best(cfg):
    return checkpoint_paths({**DEFAULTS, **cfg})[1]


@pytest.fixture(scope='module')
def three(tiny_data, tmp_path_factory):
    """Two seeds of one decoder, and one of other sizes."""
    folder, paths = tmp_path_factory.mktemp('three'), []
    for seed, sizes in enumerate([dict(embed_dim=12, decoder_dim=16, attention_dim=10)] * 2
                                 + [dict(embed_dim=10, decoder_dim=20, attention_dim=7)]):
        cfg = dict(**tiny_data, **sizes, encoder='shapes_cnn', encoded_image_size=4, epochs=4, batch_size=20,
                   decoder_lr=2e-2, device='cpu', seed=seed, output_folder=str(folder / str(seed)))
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
            same(scores.softmax(dim=1), mean, 'TODO 13, Ensemble.step: softmax of the scores', 'batch_size, vocab_size',
                 'the scores are the log of the mean of the probabilities', {
                     'the mean of the scores in place of that of the probabilities':
                         (sum(own for own, *_ in steps) / 3).softmax(dim=1),
                     'the mean of the log-probabilities in place of that of the probabilities':
                         (sum(own.log_softmax(dim=1) for own, *_ in steps) / 3).softmax(dim=1),
                     'the mean of the probabilities without the log': mean.softmax(dim=1)}, tolerance=1e-5)
            same(scores, mean.log(), 'TODO 13, Ensemble.step: scores', 'batch_size, vocab_size',
                 'the mean of the probabilities, not their sum', tolerance=1e-4)
            same(alpha, sum(own for *_, own in steps) / 3, 'TODO 13, Ensemble.step: alpha', 'batch_size, num_pixels',
                 'the mean over the decoders', tolerance=1e-5)
            for own, (_, new, _) in zip(states, steps, strict=True):
                own[0] = new
            words = mean.argmax(dim=1)


@torch.no_grad()
def test_decoders_of_different_kinds_together():
    """One keeps pixels and keys in its memory, the other nothing; one has no alphas, so the ensemble has none."""
    torch.manual_seed(0)
    decoders = [DecoderWithAttention(4, 5, 6, 11, encoder_dim=3).eval(), DecoderWithRNN(5, 8, 11, encoder_dim=3).eval()]
    ensemble, encoder_out, words = Ensemble(decoders), torch.rand(2, 2, 2, 3), torch.tensor([1, 7])
    state, memory = ensemble.start(encoder_out)
    starts = [decoder.start(encoder_out) for decoder in decoders]
    for _ in range(2):
        scores, state, alpha = ensemble.step(words, state, memory)
        steps = [decoder.step(words, *own) for decoder, own in zip(decoders, starts, strict=True)]
        torch.testing.assert_close(scores.exp(), sum(own.softmax(dim=1) for own, *_ in steps) / 2)
        assert alpha is None
        starts = [(new, own[1]) for (_, new, _), own in zip(steps, starts, strict=True)]


@torch.no_grad()
def test_what_a_step_gives_back():
    """Of each decoder its own part of state and memory is taken, and its new state is given back."""
    torch.manual_seed(0)
    decoders = [DecoderWithAttention(4, 5, 6, 11, encoder_dim=3).eval(), DecoderWithRNN(5, 8, 11, encoder_dim=3).eval()]
    ensemble, encoder_out, words = Ensemble(decoders), torch.rand(2, 2, 2, 3), torch.tensor([1, 7])
    state, memory = ensemble.start(encoder_out)
    starts = [decoder.start(encoder_out) for decoder in decoders]
    new = [part for decoder, start in zip(decoders, starts, strict=True) for part in decoder.step(words, *start)[1]]
    where, wanted = 'TODO 13, Ensemble.step', f'scores (2, 11), a tuple of {len(new)} new states, mean alpha'
    try:
        found = ensemble.step(words, state, memory)
    except Exception as error:
        if 'is still to do' in str(error):
            raise
        pytest.fail(f'{where}: expected {wanted}; here it stops with {type(error).__name__}: {error}. Likely cause: a '
                    'decoder is not given its own part of state and memory, self.sizes of them.', pytrace=False)
    if not isinstance(found, tuple) or len(found) != 3:
        came = f'{len(found)} things' if isinstance(found, tuple) else f'a {type(found).__name__}'
        pytest.fail(f'{where}: expected {wanted}; here {came}. Likely cause: the return is missing, or not all is '
                    'returned.', pytrace=False)
    if not isinstance(found[1], tuple) or len(found[1]) != len(new):
        came = f'a tuple of {len(found[1])}' if isinstance(found[1], tuple) else f'a {type(found[1]).__name__}'
        pytest.fail(f'{where}: expected {wanted}; here as states {came}. Likely cause: the new states of all decoders '
                    'must be one after the other in one tuple.', pytrace=False)
    for one, own, old in zip(found[1], new, state, strict=True):
        same(one, own, f'{where}: state', 'batch_size, decoder_dim', 'the new states, in the order of the decoders',
             {'the state before the step is given back, not the new one': old}, tolerance=1e-5)


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


def test_one_path_is_an_ensemble_of_one(three):
    assert len(load_ensemble(str(three[0]), 'cpu').decoder.decoders) == 1


def test_what_does_not_go_together(three, tiny_cfg, tmp_path):
    with pytest.raises(ValueError, match='an ensemble needs at least one checkpoint'):
        load_ensemble([])
    other = {**tiny_cfg, 'encoded_image_size': 8, 'epochs': 1}
    train(other)
    with pytest.raises(ValueError, match=f'{best(other)} has a grid of 8 x 8 cells and {three[0]} one of 4 x 4'):
        load_ensemble([three[0], best(other)], 'cpu')
    state = torch.load(three[1])
    others = dict(zip(state['word_map'], reversed(state['word_map'].values()), strict=True))
    torch.save({**state, 'word_map': others}, tmp_path / 'words.pth.tar')
    with pytest.raises(ValueError, match='words.pth.tar has another vocabulary than'):
        load_ensemble([three[0], tmp_path / 'words.pth.tar'], 'cpu')


@pytest.fixture(scope='module')
def tuned(three, tiny_data, tmp_path_factory):
    """A second phase of the first of ``three``, with an encoder of its own."""
    cfg = dict(**tiny_data, embed_dim=12, decoder_dim=16, attention_dim=10, encoder='shapes_cnn', encoded_image_size=4,
               epochs=1, batch_size=20, decoder_lr=2e-3, encoder_lr=1e-3, device='cpu', start_from=str(three[0]),
               fine_tune_encoder=True, output_folder=str(tmp_path_factory.mktemp('tuned')))
    train(cfg)
    return best(cfg)


def test_each_decoder_has_the_encoder_that_it_was_trained_with(three, tuned):
    paths = [three[0], tuned, three[2]]
    ensemble, models = load_ensemble(paths, 'cpu'), [load_model(path, 'cpu') for path in paths]
    pictures = CaptionDataset(ensemble.settings['data_folder'], ensemble.settings['data_name'], 'TEST').images(
        torch.arange(4))
    words = torch.full((4,), ensemble.word_map['<start>'])
    with torch.no_grad():
        grids = [solver.encode(model, pictures) for model in models]
        assert (grids[0] - grids[1]).abs().max() > 1e-2 and torch.equal(grids[0], grids[2])
        together = solver.encode(ensemble, pictures)
        assert together.shape == (4, 4, 4, 2 * models[0].encoder.encoder_dim)  # the frozen one has read them once
        scores, _, alpha = ensemble.decoder.step(words, *ensemble.decoder.start(together))
        steps = [model.decoder.step(words, *model.decoder.start(grid))
                 for model, grid in zip(models, grids, strict=True)]
    torch.testing.assert_close(scores.exp(), sum(own.softmax(dim=1) for own, *_ in steps) / 3)
    torch.testing.assert_close(alpha, sum(own for *_, own in steps) / 3)


@pytest.mark.parametrize('frozen_first', [True, False])
def test_fine_tuned_and_frozen_are_evaluated_together(three, tuned, frozen_first):
    paths = [three[1], tuned] if frozen_first else [tuned, three[1]]
    ensemble = load_ensemble(paths, 'cpu')
    captions = caption_split(ensemble, 'TEST', 3)
    picture = CaptionDataset(ensemble.settings['data_folder'], ensemble.settings['data_name'], 'TEST').image(5)
    solo = caption_image(ensemble, picture)
    assert solo['caption'] == captions[5]['caption'] and solo['score'] == pytest.approx(captions[5]['score'], abs=1e-3)
    assert solo['alphas'].shape == (len(solo['caption']), 4, 4)


def test_an_ensemble_of_a_fine_tuned_one_is_the_model(tuned):
    for one, other in zip(caption_split(load_ensemble([tuned, tuned], 'cpu'), 'TEST', 3),
                          caption_split(load_model(tuned, 'cpu'), 'TEST', 3), strict=True):
        assert one['caption'] == other['caption'] and one['score'] == pytest.approx(other['score'], abs=1e-4)
