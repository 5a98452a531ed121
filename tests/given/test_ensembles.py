"""Ensembles of what was trained."""

import math

import pytest
import torch
from verdicts import check, same

from datasets import CaptionDataset
from lab.decode.beam_search import beam_search
from lab.decode.evaluate import caption_image, caption_split, evaluate
from lab.more.ensembles import Ensemble, load_ensemble
from lab.train import forward
from lab.train.checkpoints import checkpoint_paths, load_model
from lab.train.inputs import caption_dataset
from models import DecoderWithAttention, DecoderWithRNN
from solver import DEFAULTS, train


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


STEP = 'TODO 13, Ensemble.step'


def same_step(output, steps, mistakes=()):
    """Scores and alpha of the ensemble's step are those of these steps of several decoders together."""
    scores, _, alpha = output
    n, mean = len(steps), sum(own.softmax(dim=1) for own, *_ in steps) / len(steps)
    same(scores.softmax(dim=1), mean, f'{STEP}: softmax of the scores', 'batch_size, vocab_size',
         'the scores are the log of the mean of the probabilities', {
             'the mean of the scores or log-probabilities in place of that of the probabilities':
                 (sum(own for own, *_ in steps) / n).softmax(dim=1),
             'the scores of one decoder, not of all': steps[0][0].softmax(dim=1),
             'the mean of the probabilities without the log': mean.softmax(dim=1),
             'the softmax is over the batch': (sum(own.softmax(dim=0) for own, *_ in steps) / n).log().softmax(dim=1),
             **dict(mistakes)}, tolerance=1e-5)
    same(scores, mean.log(), f'{STEP}: scores', 'batch_size, vocab_size', 'the mean of the probabilities', {
        'the sum over the decoders in place of the mean': mean.log() + math.log(n)}, tolerance=1e-4)
    if any(own is None for *_, own in steps):
        check(alpha is None, f'{STEP}: alpha', 'None, for one decoder has no attention', type(alpha).__name__,
              'mean_alpha is not used')
    else:
        expected = sum(own for *_, own in steps) / n
        same(alpha, expected, f'{STEP}: alpha', 'batch_size, num_pixels', 'mean_alpha of the decoders\' alphas', {
            'the sum over the decoders in place of the mean': expected * n}, tolerance=1e-5)


def two_decoders(other):
    """Decoders, their ensemble, what it starts from, and words. One keeps pixels and keys in its memory, a plain one
    nothing."""
    torch.manual_seed(0)
    decoders = [DecoderWithAttention(4, 5, 6, 11, encoder_dim=3).eval(), (
        DecoderWithAttention(4, 5, 6, 11, encoder_dim=3) if other == 'alike' else
        DecoderWithRNN(5, 8, 11, encoder_dim=3)).eval()]
    if other == 'plain first':
        decoders.reverse()
    with torch.no_grad():
        for decoder in decoders:
            decoder.fc.weight *= 20  # or all words are as likely
    return decoders, Ensemble(decoders), torch.rand(2, 2, 2, 3), torch.tensor([1, 7])


OTHERS = 'plain', 'plain first', 'alike'


@pytest.mark.parametrize('other', OTHERS)
@torch.no_grad()
def test_what_a_step_gives_back(other):
    """Of each decoder its own part of state and memory is taken, and its new state is given back."""
    decoders, ensemble, encoder_out, words = two_decoders(other)
    state, memory = ensemble.start(encoder_out)
    starts = [decoder.start(encoder_out) for decoder in decoders]
    for _ in range(2):
        steps = [decoder.step(words, *start) for decoder, start in zip(decoders, starts, strict=True)]
        new = [part for _, own, _ in steps for part in own]
        wanted, stopped = f'scores (2, 11), a tuple of {len(new)} new states, mean alpha', None
        try:
            output = ensemble.step(words, state, memory)
        except Exception as error:
            if 'is still to do' in str(error):
                raise
            stopped = error
        check(stopped is None, STEP, wanted, f'it stops with {type(stopped).__name__}: {stopped}',
              'mean_alpha is for alphas of which some may be None' if 'NoneType' in str(stopped) else
              'a decoder is not given its own part of state and memory, self.sizes of them')
        came = f'{len(output)} things' if isinstance(output, tuple) else f'a {type(output).__name__}'
        check(isinstance(output, tuple) and len(output) == 3, STEP, wanted, came,
              'the return is missing, or not all is returned')
        came = f'a tuple of {len(output[1])}' if isinstance(output[1], tuple) else f'a {type(output[1]).__name__}'
        check(isinstance(output[1], tuple) and len(output[1]) == len(new) and all(map(torch.is_tensor, output[1])),
              STEP, wanted, f'as states {came}',
              'the new states of all decoders must be one after the other in one tuple')
        check(torch.is_tensor(output[0]) and output[0].shape == (2, 11), STEP, wanted,
              f'as scores {list(output[0].shape) if torch.is_tensor(output[0]) else type(output[0]).__name__}',
              'the mean is over the decoders, and nothing else')
        mistakes = {}
        if other == 'alike':
            mistakes['each decoder is given the state and memory of the first'] = (
                steps[0][0].softmax(dim=1) + decoders[1].step(words, *starts[0])[0].softmax(dim=1)) / 2
        same_step(output, steps, mistakes)
        for one, own, old in zip(output[1], new, state, strict=True):
            same(one, own, f'{STEP}: state', 'batch_size, decoder_dim', 'the new states, in the order of the decoders',
                 {'the state before the step is given back, not the new one': old}, tolerance=1e-5)
        state, starts = output[1], [(own, start[1]) for (_, own, _), start in zip(steps, starts, strict=True)]


def step_first():
    """What is made of a step that is wrong would blame a decoder."""
    for other in OTHERS:
        test_what_a_step_gives_back(other)


def test_the_mean_of_the_probabilities(three):
    step_first()
    models = [load_model(path, 'cpu') for path in three]
    ensemble = load_ensemble(three, 'cpu')
    dataset = caption_dataset(ensemble, 'TEST')
    encoder_out = forward.encode(ensemble, dataset.images(torch.arange(4)), are_features=True)
    state, memory = ensemble.decoder.start(encoder_out)
    states = [list(model.decoder.start(encoder_out)) for model in models]
    words = torch.full((4,), ensemble.word_map['<start>'])
    with torch.no_grad():
        for _ in range(3):
            output = ensemble.decoder.step(words, state, memory)
            steps = [model.decoder.step(words, *own) for model, own in zip(models, states, strict=True)]
            same_step(output, steps)
            for own, (_, new, _) in zip(states, steps, strict=True):
                own[0] = new
            _, state, _ = output
            words = output[0].argmax(dim=1)


def test_an_ensemble_of_one_is_the_model(three):
    step_first()
    model, alone = load_model(three[2], 'cpu'), load_ensemble(three[2:], 'cpu')
    for one, other in zip(caption_split(alone, 'TEST', 3), caption_split(model, 'TEST', 3), strict=True):
        check(one['caption'] == other['caption'], STEP, f'alone the caption of the model, {other["caption"]}',
              one['caption'], 'a single decoder is treated unlike several')
        same(one['score'], other['score'], f'{STEP}: score of a caption', '',
             'a single decoder is treated unlike several', tolerance=1e-4)


def test_an_ensemble_is_evaluated_as_a_model_is(three):
    step_first()
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
    step_first()
    model = load_model(three[2], 'cpu')
    thrice = Ensemble([model.decoder] * 3).eval()
    encoder_out = forward.encode(model, caption_dataset(model, 'TEST').images(torch.arange(6)), are_features=True)
    for one, other in zip(beam_search(thrice, encoder_out, model.word_map, 4, 12),
                          beam_search(model.decoder, encoder_out, model.word_map, 4, 12), strict=True):
        check(one.words == other.words, STEP, f'with three times one decoder its caption, {other.words}', one.words,
              'words are read, or states given back, in another order than the rows')
        same(one.score, other.score, f'{STEP}: score of a caption', '', 'the sum over the decoders is not divided',
             tolerance=1e-4)


def test_another_vocabulary(three, tmp_path):
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
    step_first()
    paths = [three[0], tuned, three[2]]
    ensemble, models = load_ensemble(paths, 'cpu'), [load_model(path, 'cpu') for path in paths]
    pictures = CaptionDataset(ensemble.settings['data_folder'], ensemble.settings['data_name'], 'TEST').images(
        torch.arange(4))
    words = torch.full((4,), ensemble.word_map['<start>'])
    with torch.no_grad():
        grids = [forward.encode(model, pictures) for model in models]
        assert (grids[0] - grids[1]).abs().max() > 1e-2 and torch.equal(grids[0], grids[2])
        together = forward.encode(ensemble, pictures)
        assert together.shape == (4, 4, 4, 2 * models[0].encoder.encoder_dim)  # the frozen one has read them once
        output = ensemble.decoder.step(words, *ensemble.decoder.start(together))
        steps = [model.decoder.step(words, *model.decoder.start(grid))
                 for model, grid in zip(models, grids, strict=True)]
    same_step(output, steps)


@pytest.mark.parametrize('frozen_first', [True, False])
def test_fine_tuned_and_frozen_are_evaluated_together(three, tuned, frozen_first):
    step_first()
    paths = [three[1], tuned] if frozen_first else [tuned, three[1]]
    ensemble = load_ensemble(paths, 'cpu')
    captions = caption_split(ensemble, 'TEST', 3)
    picture = CaptionDataset(ensemble.settings['data_folder'], ensemble.settings['data_name'], 'TEST').image(5)
    solo = caption_image(ensemble, picture)
    assert solo['caption'] == captions[5]['caption'] and solo['score'] == pytest.approx(captions[5]['score'], abs=1e-3)
    assert solo['alphas'].shape == (len(solo['caption']), 4, 4)


def test_an_ensemble_of_a_fine_tuned_one_is_the_model(tuned):
    step_first()
    for one, other in zip(caption_split(load_ensemble([tuned, tuned], 'cpu'), 'TEST', 3),
                          caption_split(load_model(tuned, 'cpu'), 'TEST', 3), strict=True):
        check(one['caption'] == other['caption'], STEP, f'alone the caption of the model, {other["caption"]}',
              one['caption'], 'a single decoder is treated unlike several')
        same(one['score'], other['score'], f'{STEP}: score of a caption', '',
             'a single decoder is treated unlike several', tolerance=1e-4)
