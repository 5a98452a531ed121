"""Several trained decoders that caption together."""

import pytest
import torch

from datasets import CaptionDataset
from lab.decode.evaluate import caption_image, caption_split, evaluate
from lab.more.ensembles import load_ensemble
from lab.train.checkpoints import checkpoint_paths, load_model
from solver import DEFAULTS, train


@pytest.fixture(scope='module')
def paths(trained, tmp_path_factory):
    """Checkpoints: with attention, without, and one of other sizes that has an encoder of its own."""
    cfg, _ = trained('attention')
    tuned = {**cfg, 'embed_dim': 10, 'decoder_dim': 20, 'attention_dim': 7, 'seed': 1, 'epochs': 2, 'decoder_lr': 2e-2,
             'fine_tune_encoder': True, 'encoder_lr': 1e-3, 'output_folder': str(tmp_path_factory.mktemp('tuned'))}
    train(tuned)
    return {name: checkpoint_paths({**DEFAULTS, **own})[1]
            for name, own in dict(soft=cfg, plain=trained('plain')[0], tuned=tuned).items()}


@pytest.fixture(scope='module')
def pictures(tiny_data):
    return CaptionDataset(**tiny_data, split='TEST').images(torch.arange(6))


@pytest.mark.parametrize('members', [
    ['soft', 'tuned', 'soft'], ['tuned', 'tuned'], ['soft', 'plain'], ['plain', 'tuned', 'plain']], ids=' '.join)
@torch.no_grad()
def test_a_step_is_the_mean_of_the_probabilities(paths, pictures, members):
    """Each decoder has its own part of state and memory, and the grid of the encoder that it was trained with."""
    models = [load_model(paths[name], 'cpu') for name in members]
    ensemble = load_ensemble([paths[name] for name in members], 'cpu')
    encoders = {name == 'tuned' for name in members}  # equal ones are there once
    assert ensemble.encode(pictures).shape == (6, 4, 4, len(encoders) * models[0].encoder.encoder_dim)
    state, memory = ensemble.decoder.start(ensemble.encode(pictures))
    own = [list(model.decoder.start(model.encode(pictures))) for model in models]
    words = torch.full((6,), ensemble.word_map['<start>'])
    for _ in range(4):
        scores, state, alpha = ensemble.decoder.step(words, state, memory)
        steps = [model.decoder.step(words, *start) for model, start in zip(models, own, strict=True)]
        mean = sum(scores.softmax(dim=1) for scores, *_ in steps) / len(steps)
        torch.testing.assert_close(scores.exp(), mean, rtol=0, atol=1e-6)
        if 'plain' in members:
            assert alpha is None
        else:
            torch.testing.assert_close(alpha, sum(alpha for *_, alpha in steps) / len(steps), rtol=0, atol=1e-6)
        for start, (_, new, _) in zip(own, steps, strict=True):
            start[0] = new
        words = mean.argmax(dim=1)


@pytest.mark.parametrize('members', [['tuned', 'soft'], ['soft'] * 3, ['plain'] * 2], ids=' '.join)
def test_an_ensemble_is_evaluated_as_a_model_is(paths, pictures, members):
    """Of the same decoder its captions are those of that one: beams take all their states along."""
    ensemble = load_ensemble([paths[name] for name in members], 'cpu')
    result = evaluate(ensemble, 'TEST', (1, 3))
    assert result['model'] == 'Ensemble' and len(result['captions']) == 6
    assert result['parameters'] == sum(p.numel() for p in ensemble.decoder.parameters())
    alone = caption_image(ensemble, pictures[5])
    assert alone['caption'] == result['captions'][5]['caption']
    assert alone['score'] == pytest.approx(result['captions'][5]['score'], abs=1e-3)
    assert 'plain' in members or alone['alphas'].shape == (len(alone['caption']), 4, 4)
    if len(set(members)) == 1:
        model = load_model(paths[members[0]], 'cpu')
        for one, other in zip(result['captions'], caption_split(model, 'TEST', 3), strict=True):
            assert one['caption'] == other['caption'] and one['score'] == pytest.approx(other['score'], abs=1e-4)


def test_another_vocabulary(paths, tmp_path):
    state = torch.load(paths['plain'])
    others = dict(zip(state['word_map'], reversed(state['word_map'].values()), strict=True))
    torch.save({**state, 'word_map': others}, tmp_path / 'words.pth.tar')
    with pytest.raises(ValueError, match='words.pth.tar.*vocabulary'):
        load_ensemble([paths['soft'], tmp_path / 'words.pth.tar'], 'cpu')
