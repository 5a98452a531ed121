"""Self-critical training: the gradient is that of the expected score, and the score rises."""

import math

import pytest
import torch
from test_papers import DECODERS, ENCODER, WORD_MAP, make, random
from torch import nn

from lab.decode.cider import CiderD
from lab.decode.greedy_search import Hypothesis, sample_search
from lab.more import self_critical, word_vectors
from lab.more.self_critical import log_probabilities, loss_of, reading, rewards
from lab.train.batches import Batch
from lab.train.checkpoints import checkpoint_paths, load_model, read_checkpoint
from lab.train.model import CaptionModel
from solver import DEFAULTS, check_settings, train


def model_of(name, **settings):
    """A model that takes features for pictures, with words that are never drawn as good as impossible."""
    cfg = check_settings(dict(decoder=DECODERS[name][0], device='cpu', **settings))
    model = CaptionModel(nn.Identity(), make(name, dropout=cfg['dropout']).float(), WORD_MAP, cfg)
    with torch.no_grad():
        model.decoder.fc.bias[[WORD_MAP[word] for word in ('<pad>', '<start>', '<unk>')]] = -1e4
    word_vectors.add_dropout(model)
    return model.train()


def pictures(n=4):
    return random(n, 2, 3, ENCODER).float()


@pytest.mark.parametrize('feature_dropout', [0.0, 0.4])
@pytest.mark.parametrize('max_len', [3, 20])
@pytest.mark.parametrize('name', DECODERS)
def test_log_probabilities_are_those_of_the_draw(name, max_len, feature_dropout, monkeypatch):
    """Though dropout is on; afterwards all is as it was."""
    model = model_of(name, embed_dropout=0.5, feature_dropout=feature_dropout, self_critical='mean', start_from='one')
    before = {key: value.clone() for key, value in model.decoder.state_dict().items()}
    seen = []
    monkeypatch.setattr(self_critical, 'rewards', lambda model, scorer, drawn, _: seen.append(drawn) or torch.zeros(
        len(drawn)))
    monkeypatch.setattr(self_critical, 'sample_search', lambda *args, **options: sample_search(
        *args, max_len=max_len, **options))
    monkeypatch.setattr(self_critical, 'surrogate_loss', lambda log_p, *_: log_p)
    numbers = torch.arange(4)
    batch = Batch(pictures(), numbers, None, None, numbers)
    for model.fast in {False, name in ('plain', 'attention')}:
        torch.manual_seed(0)
        log_p, _ = loss_of(model, model, batch, 1, None)
        assert log_p.requires_grad and log_p.flatten().tolist() == pytest.approx(
            [one.score for one in seen[-1]], abs=1e-4)
    assert max_len > 3 or not all(one.finished for one in seen[0])
    assert all(module.training for module in model.modules()) and model.decoder.dropout.p == 0.5
    for key, value in model.decoder.state_dict().items():
        assert torch.equal(value, before[key]), key  # batch norm's too


def test_a_caption_that_breaks_off_scores_less():
    """<end> is a word for the score: without it captions learn to break off."""
    model, numbers = model_of('gru'), [1, 3, 4, 6, 7]
    scorer = CiderD([[model.words(numbers) + ['<end>']], [['something', 'else', '<end>']]])
    whole, broken = rewards(model, scorer, [Hypothesis(numbers, 0.0, True), Hypothesis(numbers, 0.0, False)],
                            torch.tensor([0, 0])).tolist()
    assert whole == pytest.approx(10, abs=1e-4) and broken < 0.9 * whole


class OneWord(nn.Module):
    """Says one word, or none, and ends: so that all captions can be listed. Its parameter: the words' scores."""

    def __init__(self, words):
        super().__init__()
        self.scores = nn.Parameter(torch.linspace(-1, 1, 2 * words).mul(9).sin().view(2, words))
        self.end = words - 1

    def start(self, encoder_out):
        return (encoder_out,), ()

    def step(self, words, state, memory):
        picture, = state
        scores = self.scores[picture[:, 0].long()]
        ended = torch.full_like(scores, -1e9)
        ended[:, self.end] = 0
        return torch.where((words != 0).unsqueeze(1), ended, scores), state, None

    def forward(self, encoder_out, captions, lengths):
        lengths, order = lengths.flatten().sort(descending=True)
        state, captions, outputs = (encoder_out[order],), captions[order], []
        for t in range(int(lengths.max()) - 1):
            outputs.append(self.step(captions[:, t], state, ())[0])
        return torch.stack(outputs, dim=1), captions, (lengths - 1).tolist(), order


@pytest.mark.parametrize('baseline', ['greedy', 'mean'])
def test_the_gradient_is_that_of_the_expected_score(baseline, monkeypatch):
    """The mean over many draws is the gradient of the sum over all captions of p(caption) * CIDEr-D(caption)."""
    words = ['<start>', 'red', 'star', 'moon', 'a', '<unk>', '<pad>', '<end>']
    word_map = {word: index for index, word in enumerate(words)}
    cfg = check_settings(dict(device='cpu', decoder='my_decoder.OneWord', self_critical=baseline, start_from='one'))
    model = CaptionModel(nn.Identity(), OneWord(len(words)), word_map, cfg)
    scorer = CiderD([[[*caption.split(), '<end>'] for caption in those]
                     for those in (['red star', 'star'], ['moon', 'star moon'], ['a'])])
    images, baselines, real = torch.tensor([[0.0], [1.0]]), [], self_critical.surrogate_loss
    monkeypatch.setattr(self_critical, 'SAMPLES', 300)
    monkeypatch.setattr(self_critical, 'surrogate_loss', lambda *args: baselines.append(args[2]) or real(*args))
    listed = [Hypothesis([], 0.0, True), *(Hypothesis([word_map[word]], 0.0, True) for word in words[1:5])]
    p = log_probabilities(model, model, images, listed * 2).view(2, 5).exp()
    assert p.sum(dim=1).tolist() == pytest.approx([1, 1])
    reward = rewards(model, scorer, listed * 2, torch.tensor([0] * 5 + [1] * 5)).view(2, 5)
    exact = -(p * reward).sum(dim=1).mean()
    expected, = torch.autograd.grad(exact, model.decoder.scores)

    torch.manual_seed(0)
    gradients, shown = [], []
    batch = Batch(images, torch.arange(2), None, None, torch.arange(4))
    for _ in range(60):
        loss, drawn = loss_of(model, model, batch, 2, scorer)
        gradients.append(torch.autograd.grad(loss, model.decoder.scores)[0])
        shown.append(-drawn.mean().item())
    gradients = torch.stack(gradients)
    error = gradients.std(dim=0) / math.sqrt(len(gradients))
    assert sum(shown) / 60 == pytest.approx(exact.item(), rel=0.03)
    assert ((gradients.mean(dim=0) - expected).abs() < 4.5 * error + 1e-6).all()
    assert expected.abs().max() > 20 * error.max()  # or this would show nothing
    greedy = None if baseline == 'mean' else reward[torch.arange(2), p.argmax(dim=1)].tolist()
    assert (baselines[0] if greedy is None else baselines[0].tolist()) == greedy


@pytest.mark.parametrize('name', ['plain', 'attention', 'adaptive'])
def test_gradients_in_half_precision(name):
    """Sampled without gradient, then scored with it, in one autocast."""
    model, found = model_of(name, dropout=0.0), []
    drawn = sample_search(model.decoder, pictures(), WORD_MAP, 8, samples=3)
    for half in (False, True):
        with torch.autocast('cpu', torch.bfloat16, enabled=half):
            sample_search(model.decoder, pictures(), WORD_MAP, 8)
            with reading(model.decoder):
                log_p = log_probabilities(model, model, pictures(), drawn)
        found.append(torch.autograd.grad(log_p.mul(torch.arange(12).sin()).sum(), list(model.decoder.parameters())))
    for one, other in zip(*found, strict=True):
        if one.abs().max() > 1e-6:
            assert torch.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.98


# --- In the lab ---


def test_the_score_rises(trained, tmp_path):
    cfg, before = trained(True)
    cfg = {**cfg, 'start_from': str(checkpoint_paths({**DEFAULTS, **cfg})[1]), 'self_critical': 'mean',
           'decoder_lr': 5e-3, 'cosine': True, 'epochs': 10, 'batch_size': 5, 'output_folder': str(tmp_path / 'run')}
    untrained = train({**cfg, 'decoder_lr': 1e-12, 'epochs': 1, 'output_folder': str(tmp_path / 'untrained')})
    history = train(cfg)
    scores = [epoch['val_greedy_cider'] for epoch in history]
    assert max(scores) > max(epoch['val_greedy_cider'] for epoch in before)
    assert history[-1]['train_loss'] < 1.3 * untrained[0]['train_loss'] < 0  # minus the mean CIDEr-D of what it draws
    assert all(epoch['train_top5'] is None for epoch in history)
    latest, best = (read_checkpoint(path)['history'] for path in checkpoint_paths({**DEFAULTS, **cfg}))
    assert latest == history and best[-1]['val_greedy_cider'] == max(scores)  # CIDEr picks the best epoch, not BLEU-4


@pytest.mark.parametrize('changes', [dict(fine_tune_encoder=True, encoder_lr=1e-3, accumulate=2), dict(bf16=True),
                                     dict(flip=True, epochs=2)], ids=str)
def test_every_way_to_train(trained, tmp_path, changes):
    cfg, _ = trained(False)
    start = str(checkpoint_paths({**DEFAULTS, **cfg})[1])
    second = {**cfg, 'start_from': start, 'self_critical': 'greedy', 'epochs': 1, 'output_folder': str(tmp_path)}
    history = train({**second, **changes})
    latest, _ = checkpoint_paths({**DEFAULTS, **second})
    before, after = (load_model(path, 'cpu').state_dict() for path in (start, latest))
    changed = {key for key, value in before.items() if not torch.equal(value, after[key])}
    assert history[0]['train_loss'] < 0 and 'decoder.fc.weight' in changed
    assert any(key.startswith('encoder') for key in changed) == ('fine_tune_encoder' in changes)
    assert not any('running' in key for key in changed)
