"""Ensembles of what was trained."""

import math

import pytest
import torch

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


def same_step(output, steps):
    """Scores and alpha of the ensemble's step are those of these steps of several decoders together."""
    scores, _, alpha = output
    mean = sum(own.softmax(dim=1) for own, *_ in steps) / len(steps)
    assert (scores.exp() - mean).abs().max() < 1e-6
    if any(own is None for *_, own in steps):
        assert alpha is None
    else:
        assert (alpha - sum(own for *_, own in steps) / len(steps)).abs().max() < 1e-6


@pytest.mark.parametrize('plain', [0, 1, None])
@torch.no_grad()
def test_each_decoder_gets_its_own_part_of_state_and_memory(plain):
    """One keeps pixels and keys in its memory, a plain one nothing."""
    torch.manual_seed(0)
    decoders = [(DecoderWithRNN(5, 8, 11, encoder_dim=3) if n == plain else
                 DecoderWithAttention(4, 5, 6, 11, encoder_dim=3)).eval() for n in (0, 1)]
    ensemble, encoder_out, words = Ensemble(decoders), torch.rand(2, 2, 2, 3), torch.tensor([1, 7])
    state, memory = ensemble.start(encoder_out)
    starts = [decoder.start(encoder_out) for decoder in decoders]
    for _ in range(2):
        steps = [decoder.step(words, *start) for decoder, start in zip(decoders, starts, strict=True)]
        output = ensemble.step(words, state, memory)
        same_step(output, steps)
        state = output[1]
        for one, own in zip(state, [part for _, new, _ in steps for part in new], strict=True):
            assert torch.equal(one, own)
        starts = [(own, start[1]) for (_, own, _), start in zip(steps, starts, strict=True)]


def test_the_mean_of_the_probabilities(three):
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
    model, alone = load_model(three[2], 'cpu'), load_ensemble(three[2:], 'cpu')
    for one, other in zip(caption_split(alone, 'TEST', 3), caption_split(model, 'TEST', 3), strict=True):
        assert one['caption'] == other['caption']
        assert one['score'] == pytest.approx(other['score'], abs=1e-4)


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
    thrice = Ensemble([model.decoder] * 3).eval()
    encoder_out = forward.encode(model, caption_dataset(model, 'TEST').images(torch.arange(6)), are_features=True)
    for one, other in zip(beam_search(thrice, encoder_out, model.word_map, 4, 12),
                          beam_search(model.decoder, encoder_out, model.word_map, 4, 12), strict=True):
        assert one.words == other.words
        assert one.score == pytest.approx(other.score, abs=1e-4)


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
        assert one['caption'] == other['caption']
        assert one['score'] == pytest.approx(other['score'], abs=1e-4)
