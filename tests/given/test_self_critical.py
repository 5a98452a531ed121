"""Self-critical training: loss and gradient are those of the equations, and the score rises."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from test_papers import DECODERS, ENCODER, END, START, WORD_MAP, every_decoder, make, random
from torch import nn

from datasets import CaptionDataset
from lab.decode.cider import CiderD
from lab.decode.greedy_search import greedy_search, sample_search
from lab.more import self_critical, word_vectors
from lab.more.self_critical import loss_in_language
from lab.train.batches import training_loader, weights_of
from lab.train.checkpoints import checkpoint_paths, load_model, read_checkpoint
from lab.train.model import CaptionModel
from solver import DEFAULTS, check_settings, train


def model_of(name, **settings):
    """A model that takes features for pictures, with words that are never drawn as good as impossible."""
    cfg = check_settings(dict(decoder=DECODERS[name][0], device='cpu', start_from='one', **settings))
    model = CaptionModel(nn.Identity(), make(name, dropout=cfg['dropout']).float(), WORD_MAP, cfg)
    with torch.no_grad():
        model.decoder.fc.bias[[WORD_MAP[word] for word in ('<pad>', '<start>', '<unk>')]] = -1e4
    word_vectors.add_dropout(model)
    return model.train()


def log_p_of(decoder, picture, words):
    (state, memory), total = decoder.start(picture.unsqueeze(0)), 0
    for before, word in pairwise([START, *words]):
        scores, state, _ = decoder.step(torch.tensor([before]), state, memory)
        total = total + scores.log_softmax(dim=1)[0, word]
    return total


@pytest.mark.parametrize('baseline', ['greedy', 'mean'])
@every_decoder
def test_loss_and_gradient_of_a_batch(name, baseline, monkeypatch):
    """Rennie et al. 2017, eqs. 5, 6 and 9; Luo 2020. Of captions that end, <end> being a word for their score, and of
    captions that do not. Dropout is off meanwhile.
    """
    model = model_of(name, embed_dropout=0.5, self_critical=baseline)
    images = random(3, 2, 3, ENCODER).float()
    shown, k = [0, 2, 5], self_critical.SAMPLES
    generator = torch.Generator().manual_seed(0)
    scorer = CiderD([[model.words(torch.randint(1, 13, (6,), generator=generator).tolist()) + ['<end>']] * 2
                     for _ in range(6)])
    search = dict(max_len=4)
    monkeypatch.setattr(self_critical, 'sample_search', partial(sample_search, **search))
    monkeypatch.setattr(self_critical, 'greedy_search', partial(greedy_search, **search))
    before = {key: value.clone() for key, value in model.decoder.state_dict().items()}
    parameters, found = list(model.decoder.parameters()), []
    for model.fast in (False, True) if name in ('plain', 'attention') else (False,):
        torch.manual_seed(0)
        loss, reward = loss_in_language(model, model, model.encode(images), torch.tensor(shown), WORD_MAP, scorer)
        found.append([loss, *torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)])
    assert all(module.training for module in model.modules()) and model.decoder.dropout.p == 0.5
    assert all(torch.equal(value, before[key]) for key, value in model.decoder.state_dict().items())  # batch norm's too

    torch.manual_seed(0)
    decoder = model.decoder.eval()
    drawn, greedy = sample_search(decoder, images, WORD_MAP, samples=k, **search), greedy_search(
        decoder, images, WORD_MAP, **search)
    assert {one.finished for one in drawn} == {True, False}
    expected = 0
    for i, picture in enumerate(shown):
        *scores, of_greedy = (scorer.score(picture, model.words([*one.words, *[END] * one.finished]))
                              for one in [*drawn[i * k:][:k], greedy[i]])
        assert reward[i].tolist() == pytest.approx(scores, abs=1e-5)
        for score, one in zip(scores, drawn[i * k:][:k], strict=True):
            b = of_greedy if baseline == 'greedy' else (sum(scores) - score) / (k - 1)
            log_p = log_p_of(decoder, images[i], [*one.words, *[END] * one.finished])
            assert log_p.item() == pytest.approx(one.score, abs=1e-4)
            expected = expected - (score - b) * log_p / k / len(shown)
    gradients = torch.autograd.grad(expected, parameters, allow_unused=True, materialize_grads=True)
    for values in found:
        for one, other in zip(values, [expected, *gradients], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


# --- In the lab ---


def test_the_score_rises(trained, tmp_path):
    cfg, before = trained('attention')
    cfg = {**cfg, 'start_from': str(checkpoint_paths({**DEFAULTS, **cfg})[1]), 'self_critical': 'mean',
           'decoder_lr': 5e-3, 'cosine': True, 'epochs': 10, 'batch_size': 5, 'output_folder': str(tmp_path / 'run')}
    history = train(cfg)
    scores = [epoch['val_greedy_cider'] for epoch in history]
    assert max(scores) > max(epoch['val_greedy_cider'] for epoch in before)
    assert history[-1]['train_loss'] < 1.2 * history[0]['train_loss'] < 0  # minus the mean CIDEr-D of what it draws
    best = read_checkpoint(checkpoint_paths({**DEFAULTS, **cfg})[1])
    assert best['history'][-1]['val_greedy_cider'] == max(scores)  # CIDEr picks the best epoch, not BLEU-4


def test_parts_of_a_step_weigh_as_many_pictures_as_they_have(tiny_cfg):
    cfg = check_settings({**tiny_cfg, 'self_critical': 'mean', 'start_from': 'x', 'batch_size': 50, 'accumulate': 2})
    data = CaptionDataset(cfg['data_folder'], cfg['data_name'], 'TRAIN')  # of 24 pictures, 5 in a part
    assert weights_of(data, training_loader(data, cfg, 1), cfg) == [1, 1, 1, 1, 2]  # the last step is one part


@pytest.mark.parametrize(('changes', 'precision'), [
    (dict(fine_tune_encoder=True, encoder_lr=1e-3, accumulate=2), 'no'), ({}, 'bf16'),
    (dict(flip=True, epochs=2), 'no')], ids=str)
def test_every_way_to_train(trained, tmp_path, monkeypatch, changes, precision):
    cfg, _ = trained('plain')
    monkeypatch.setenv('ACCELERATE_MIXED_PRECISION', precision)
    start = str(checkpoint_paths({**DEFAULTS, **cfg})[1])
    second = {**cfg, 'start_from': start, 'self_critical': 'greedy', 'epochs': 1, 'output_folder': str(tmp_path)}
    history = train({**second, **changes})
    latest, _ = checkpoint_paths({**DEFAULTS, **second})
    before, after = (load_model(path, 'cpu').state_dict() for path in (start, latest))
    changed = {key for key, value in before.items() if not torch.equal(value, after[key])}
    assert history[0]['train_loss'] < 0 and 'decoder.fc.weight' in changed
    assert any(key.startswith('encoder') for key in changed) == ('fine_tune_encoder' in changes)
    assert not any('running' in key for key in changed)
