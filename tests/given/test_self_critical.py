"""Self-critical training: the gradient is that of the expected score, and the score rises."""

import math

import pytest
import torch
from torch import nn

from lab.decode.beam_search import Hypothesis, sample_search
from lab.more import captionnet, self_critical
from lab.more.self_critical import SelfCritical, log_probabilities, reading
from lab.train import forward
from lab.train.batches import Batch
from lab.train.checkpoints import CaptionModel, checkpoint_paths, load_model, read_checkpoint
from lab.train.inputs import caption_dataset
from solver import DEFAULTS, check_settings, train

ADAPTIVE = 'lab.more.adaptive.DecoderWithAdaptiveAttention'


@pytest.fixture(scope='module', params=['Attention', 'NoAttention', ADAPTIVE])
def trained(request, tiny_data, tmp_path_factory):
    """Settings and best checkpoint of a few epochs of cross-entropy."""
    decoder = request.param if '.' in request.param else None
    cfg = dict(**tiny_data, encoder='shapes_cnn', encoded_image_size=4, embed_dim=12, decoder_dim=16, attention_dim=10,
               epochs=7, batch_size=20, decoder_lr=2e-2, device='cpu', decoder=decoder, dropout=0.3,
               attention=request.param != 'NoAttention', output_folder=str(tmp_path_factory.mktemp('trained')))
    train(cfg)
    return cfg, str(checkpoint_paths({**DEFAULTS, **cfg})[1])


@pytest.fixture
def model(trained):
    model = load_model(trained[1], 'cpu')
    model.fast = model.name in ('Attention', 'NoAttention')
    return model


def encoded(model, n=4):
    return forward.encode(model, caption_dataset(model, 'TRAIN').images(torch.arange(n)), are_features=True)


@pytest.mark.parametrize('max_len', [3, 50])
def test_log_probabilities_are_those_of_the_draw(model, max_len):
    torch.manual_seed(0)
    with torch.no_grad():  # so that the search, which leaves these words out, has no probability for them either
        model.decoder.fc.bias[[model.word_map[word] for word in ('<pad>', '<start>', '<unk>')]] = -1e4
    image_of = torch.arange(4).repeat_interleave(6)
    drawn = sample_search(model.decoder, encoded(model)[image_of], model.word_map, max_len)
    assert max_len > 3 or not all(one.finished for one in drawn)
    for fast in {model.fast, False}:
        model.fast = fast
        found = log_probabilities(model, encoded(model), drawn, image_of)
        assert found.tolist() == pytest.approx([one.score for one in drawn], abs=1e-3)
        assert found.requires_grad


def test_a_caption_that_breaks_off_scores_less(model):
    """<end> is a word for the score: without it captions learn to break off."""
    words = ['there', 'is', 'a', 'red', 'circle']
    scorer = SelfCritical([[words], [['something', 'else']]], 5, 'mean')
    numbers = [model.word_map[word] for word in words]
    whole, broken = scorer.rewards(model, [Hypothesis(numbers, 0.0, True), Hypothesis(numbers, 0.0, False)],
                                   torch.tensor([0, 0])).tolist()
    assert whole == pytest.approx(10, abs=1e-4) and broken < 0.9 * whole


def test_nothing_is_dropped_and_all_is_as_before_afterwards(model):
    statistics = {name: value.clone() for name, value in model.decoder.state_dict().items()}
    rates = [module.p for module in model.decoder.modules() if isinstance(module, nn.Dropout)]
    model.decoder.train()
    with reading(model.decoder, dropout=False):
        drawn = [Hypothesis([5, 6], 0.0, True)]
        one, other = (log_probabilities(model, encoded(model, 1), drawn, torch.zeros(1, dtype=torch.long))
                      for _ in range(2))
    assert torch.equal(one, other) and model.decoder.training
    assert all(module.training for module in model.decoder.modules())
    assert rates == [module.p for module in model.decoder.modules() if isinstance(module, nn.Dropout)]
    for name, value in model.decoder.state_dict().items():
        assert torch.equal(value, statistics[name]), name  # batch norm's too


def test_dropout_where_it_learns(trained, model, tmp_path, monkeypatch):
    """On hidden states and word vectors, and not in what is drawn."""
    statistics = {name: value.clone() for name, value in model.decoder.state_dict().items()}
    drawn, owner = [Hypothesis([5, 6], 0.0, True)], torch.zeros(1, dtype=torch.long)
    one, other = (log_probabilities(model, encoded(model, 1), drawn, owner, True) for _ in range(2))
    assert not torch.equal(one, other)
    for name, value in model.decoder.state_dict().items():
        assert torch.equal(value, statistics[name]), name
    for module in model.decoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.decoder.embedding.register_forward_hook(
        lambda module, _, vectors: nn.functional.dropout(vectors, 0.5, module.training))
    one, other = (log_probabilities(model, encoded(model, 1), drawn, owner, True) for _ in range(2))
    assert not torch.equal(one, other)

    cfg, start = trained
    seen = []
    monkeypatch.setattr(self_critical, 'log_probabilities', lambda *args: seen.append(args[4]) or
                        log_probabilities(*args))
    monkeypatch.setattr(self_critical, 'sample_search', lambda decoder, *args, **options: seen.append('drawn') or
                        sample_search(decoder, *args, **options))
    for dropout in (True, False):
        train({**cfg, 'start_from': start, 'self_critical': 'mean', 'epochs': 1, 'samples_dropout': dropout,
               'output_folder': str(tmp_path / str(dropout))})
        assert set(seen) == {'drawn', dropout}
        seen.clear()


def test_what_is_drawn_and_what_is_learned_see_the_same_features(trained, tmp_path, monkeypatch):
    """Then the gradient is that of eq. 5, for pictures of which some channels are hidden."""
    cfg, start = trained
    drawn, learned = [], []
    monkeypatch.setattr(self_critical, 'sample_search', lambda decoder, encoder_out, *args, **options: drawn.append(
        encoder_out) or sample_search(decoder, encoder_out, *args, **options))
    monkeypatch.setattr(self_critical, 'log_probabilities', lambda model, encoder_out, *args: learned.append(
        encoder_out) or log_probabilities(model, encoder_out, *args))
    train({**cfg, 'start_from': start, 'self_critical': 'mean', 'epochs': 1, 'feature_dropout': 0.4,
           'output_folder': str(tmp_path)})
    assert len(drawn) == len(learned) > 0
    for one, other in zip(drawn, learned, strict=True):
        assert torch.equal(one, other)
        gone = (one == 0).all(dim=2).all(dim=1).double().mean().item()
        assert 0.2 < gone < 0.7


def test_a_decoder_that_drops_word_vectors_and_feeds_its_own_words(trained, model, tmp_path, monkeypatch):
    """Neither in the block: the probabilities are those of the draw."""
    cfg, start = trained
    seen = []

    def twice(*args):
        seen.append([log_probabilities(*args).tolist() for _ in range(2)])
        return log_probabilities(*args)

    monkeypatch.setattr(self_critical, 'log_probabilities', twice)
    train({**cfg, 'start_from': start, 'self_critical': 'mean', 'epochs': 1, 'embed_dropout': 0.5, 'samples': 2,
           'output_folder': str(tmp_path)})
    assert seen and all(one == other for one, other in seen)

    torch.manual_seed(0)
    decoder = captionnet.CaptionNet(10, 12, 16, len(model.word_map), encoder_dim=encoded(model, 1).shape[-1])
    settings = {**model.settings, 'decoder': 'lab.more.captionnet.CaptionNet'}
    other = CaptionModel(model.encoder, decoder, model.word_map, settings)
    drawn = sample_search(decoder, encoded(model), model.word_map, 6)
    found = log_probabilities(other, encoded(model), drawn, torch.arange(4))
    assert found.tolist() == log_probabilities(other, encoded(model), drawn, torch.arange(4)).tolist()


def test_the_encoder_learns_too(trained, tmp_path):
    cfg, start = trained
    second = {**cfg, 'start_from': start, 'self_critical': 'mean', 'epochs': 1, 'fine_tune_encoder': True,
              'encoder_lr': 1e-3, 'output_folder': str(tmp_path)}
    train(second)
    latest, _ = checkpoint_paths({**DEFAULTS, **second})
    before, after = (load_model(path, 'cpu').encoder.stages.state_dict() for path in (start, latest))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any('running' in name for name in changed)


def test_a_picture_counts_as_far_as_its_captions_are_in_the_part(model, monkeypatch):
    """Three captions of one picture and one of another."""
    seen = []
    numbers = torch.tensor([0, 1, 2, 7])
    batch = Batch(caption_dataset(model, 'TRAIN').images(torch.tensor([0, 1])), True, torch.tensor([0, 0, 0, 1]), None,
                  None, numbers, of_captions=8, of_words=None, ends_step=True)
    by_score = SelfCritical([[['a']]], 2, 'mean')
    monkeypatch.setattr(SelfCritical, '__call__', lambda self, model, encoder_out, pictures, weights: seen.append(
        (pictures, weights)))
    by_score.of_batch(model, batch, 5)
    (pictures, weights), = seen
    assert pictures.tolist() == [0, 1] and weights.tolist() == [3 / 4, 1 / 4]


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
def test_the_gradient_is_that_of_the_expected_score(baseline):
    """The mean over many draws is the gradient of the sum over all captions of p(caption) * CIDEr-D(caption)."""
    words = ['<start>', 'red', 'star', 'moon', 'a', '<unk>', '<pad>', '<end>']
    word_map = {word: index for index, word in enumerate(words)}
    settings = {'device': 'cpu', 'decoder': 'my_decoder.OneWord'}
    model = CaptionModel(nn.Identity(), OneWord(len(words)), word_map, settings)
    references = [[['red', 'star'], ['star']], [['moon'], ['star', 'moon']], [['a']]]
    encoder_out, pictures = torch.tensor([[0.0], [1.0]]), torch.arange(2)
    weights, by_score = torch.tensor([0.25, 0.75]), SelfCritical(references, 300, baseline)
    listed = [Hypothesis([], 0.0, True), *(Hypothesis([word_map[word]], 0.0, True) for word in words[1:5])]
    exact = 0
    for picture in (0, 1):
        p = log_probabilities(model, encoder_out, listed, torch.full((5,), picture)).exp()
        assert p.sum().item() == pytest.approx(1)
        exact = exact - weights[picture] * (p * by_score.rewards(model, listed, torch.full((5,), picture))).sum()
    expected, = torch.autograd.grad(exact, model.decoder.scores)

    torch.manual_seed(0)
    gradients, shown = [], []
    for _ in range(60):
        loss, value = by_score(model, encoder_out, pictures, weights)
        gradients.append(torch.autograd.grad(loss, model.decoder.scores)[0])
        shown.append(value)
    gradients = torch.stack(gradients)
    error = gradients.std(dim=0) / math.sqrt(len(gradients))
    assert torch.stack(shown).mean().item() == pytest.approx(exact.item(), rel=0.03)
    assert ((gradients.mean(dim=0) - expected).abs() < 4.5 * error + 1e-6).all()
    assert expected.abs().max() > 20 * error.max()  # or this would show nothing


def test_baselines(model, monkeypatch):
    """Advantages by hand: rewards 1, 2, 6 of the samples; 2 of the greedy caption."""
    rewards = dict(drawn=torch.tensor([1.0, 2.0, 6.0]), greedy=torch.tensor([2.0]))
    drawn = [Hypothesis([5], 0.0, True), Hypothesis([6], 0.0, True), Hypothesis([7, 8], 0.0, True)]
    monkeypatch.setattr(self_critical, 'sample_search', lambda *_, samples: drawn)
    monkeypatch.setattr(self_critical, 'greedy_search', lambda *_: drawn[:1])
    monkeypatch.setattr(SelfCritical, 'rewards', lambda self, _, found, __: rewards['drawn' if len(found) > 1 else
                                                                                    'greedy'])
    log_p = log_probabilities(model, encoded(model, 1), drawn, torch.zeros(3, dtype=torch.long))
    for baseline, advantages in (('greedy', [-1, 0, 4]), ('mean', [1 - 4, 2 - 3.5, 6 - 1.5])):
        loss, shown = SelfCritical([[['a']]], 3, baseline)(model, encoded(model, 1), torch.tensor([0]), torch.ones(1))
        assert loss.item() == pytest.approx(-sum(a * p for a, p in zip(advantages, log_p.tolist(), strict=True)) / 3)
        assert shown == -3


@pytest.mark.parametrize(('trained', 'baseline'), [
    pytest.param(decoder, baseline, marks=[pytest.mark.slow] * ((decoder, baseline) != ('Attention', 'mean')))
    for decoder in ('Attention', 'NoAttention', ADAPTIVE) for baseline in ('greedy', 'mean')
], indirect=['trained'])
def test_the_score_rises(trained, baseline, tmp_path, capsys):
    cfg, start = trained
    cfg = {**cfg, 'start_from': start, 'self_critical': baseline, 'decoder_lr': 5e-3, 'cosine': True,
           'epochs': 40 if cfg['decoder'] == ADAPTIVE else 25, 'batch_size': 5, 'samples': 10,
           'output_folder': str(tmp_path / 'run')}
    untrained = train({**cfg, 'decoder_lr': 1e-12, 'epochs': 1, 'output_folder': str(tmp_path / 'untrained')})
    capsys.readouterr()
    history = train(cfg)
    before = read_checkpoint(start)['history'][-1]['val_greedy_cider']
    printed = capsys.readouterr().out
    assert f'CIDEr {before:.3f} on validation' in printed
    after = max(epoch['val_greedy_cider'] for epoch in history)
    assert all(epoch['train_top5'] is None for epoch in history)
    assert after > before
    # the mean CIDEr-D of what it draws
    assert history[-1]['train_loss'] < 0 and history[-1]['train_loss'] < 1.3 * untrained[0]['train_loss']
    latest, best = (read_checkpoint(path) for path in checkpoint_paths({**DEFAULTS, **cfg}))
    scores = [epoch['val_greedy_cider'] for epoch in history]
    assert latest['history'] == history
    assert best['history'][-1]['val_greedy_cider'] == max(scores)  # CIDEr picks the best epoch, not BLEU-4


@pytest.mark.parametrize('bf16', [True, False])
def test_half_precision_is_a_setting_here_too(trained, bf16, tmp_path, monkeypatch):
    cfg, start = trained
    seen = set()

    def recorded(function):
        return lambda *args, **options: seen.add(torch.is_autocast_enabled('cpu')) or function(*args, **options)

    for name in ('sample_search', 'log_probabilities'):
        monkeypatch.setattr(self_critical, name, recorded(getattr(self_critical, name)))
    train({**cfg, 'start_from': start, 'self_critical': 'mean', 'epochs': 1, 'bf16': bf16,
           'output_folder': str(tmp_path)})
    assert seen == {bf16}


def test_gradients_in_half_precision(model, monkeypatch):
    torch.manual_seed(0)
    encoder_out, words = encoded(model), sorted(model.word_map)
    drawn = sample_search(model.decoder, encoder_out, model.word_map, 8, samples=3)
    by_score = SelfCritical([[[word, *words[:3]] for word in words]] * len(encoder_out), 3, 'mean')
    monkeypatch.setattr(self_critical, 'sample_search',
                        lambda *given, samples: sample_search(*given, samples=samples) and drawn)
    rewards = torch.linspace(0, 1, len(drawn)).mul(7).sin()
    monkeypatch.setattr(SelfCritical, 'rewards', lambda *_: rewards)
    weights, trained = torch.ones(len(encoder_out)), list(model.decoder.parameters())
    found = []
    for half in (False, True):  # sampled without gradient, then scored with it, in one autocast
        with torch.autocast('cpu', torch.bfloat16, enabled=half):
            loss, _ = by_score(model, encoder_out, torch.arange(len(encoder_out)), weights)
        found.append(torch.autograd.grad(loss, trained, allow_unused=True))
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None and one.abs().max() > 1e-6:
            assert torch.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.98


def test_impossible_settings():
    for value in ('cider', True, 1):
        with pytest.raises(ValueError, match="setting 'self_critical' is"):
            check_settings({'self_critical': value})
