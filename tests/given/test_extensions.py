"""The decoders of lab/more in the lab: they are trained by their settings; and what only some of them have."""

import pytest
import torch
from test_papers import WORDS, captions, make, pictures

import solver
from lab.decode.evaluate import caption_split
from lab.more.captionnet import CaptionNet
from lab.more.decoder import Decoder
from lab.train.checkpoints import checkpoint_paths, load_model
from solver import DEFAULTS, train

# --- By settings ---


@pytest.fixture(scope='module')
def two_heads(trained, tmp_path_factory):
    """Settings and history of a training with scheduled sampling, and the checkpoint of one that stopped in epoch 2."""
    folder, real, epochs = tmp_path_factory.mktemp('two_heads'), solver.validate, []
    cfg = {**trained(True)[0], 'decoder': 'lab.more.captionnet.CaptionNet', 'decoder_options': dict(heads=2),
           'teacher_forcing': (0.9, 0.6), 'epochs': 3, 'output_folder': str(folder / 'whole')}
    history, parts = train(cfg), {**cfg, 'output_folder': str(folder / 'parts')}
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(solver, 'validate', lambda run: epochs.append(1) or (real(run) if len(epochs) < 2 else 1 / 0))
        train(parts)
    return cfg, history, str(checkpoint_paths({**DEFAULTS, **parts})[0])


def test_it_is_trained_and_loaded_and_goes_on_the_same(two_heads, tmp_path, monkeypatch):
    cfg, history, stopped = two_heads
    assert history[2]['train_loss'] < history[0]['train_loss'] - 0.1
    model = load_model(checkpoint_paths({**DEFAULTS, **cfg})[0], 'cpu')
    assert model.name == 'CaptionNet' and model.decoder.attention.heads == 2
    for caption in caption_split(model, 'TEST', beam_size=3, max_len=20):
        assert caption['alphas'].shape == (len(caption['caption']), 4, 4)
    seen, original = set(), Decoder.forward
    monkeypatch.setattr(Decoder, 'forward', lambda self, *args, teacher_forcing=1.0: (
        seen.add((self.training, round(teacher_forcing, 6))), original(self, *args, teacher_forcing))[1])
    resumed = train({**cfg, 'checkpoint': stopped, 'output_folder': str(tmp_path)})
    assert [{**epoch, 'seconds': 0} for epoch in resumed] == [{**epoch, 'seconds': 0} for epoch in history]
    assert seen == {(True, 0.75), (True, 0.6), (False, 1.0)}


def test_other_heads_are_another_function(two_heads, tmp_path):
    """Though the weights would fit."""
    cfg, _, stopped = two_heads
    with pytest.raises(ValueError, match='decoder_options'):
        train({**cfg, 'decoder_options': {}, 'output_folder': str(tmp_path), 'checkpoint': stopped})


@pytest.mark.parametrize(('settings', 'hint'), [
    (dict(decoder='lab.more.captionnet.CaptionNet', decoder_options=dict(head=2)), 'CaptionNet.*head'),
    (dict(decoder_options=dict(cell='GRU')), 'DecoderWithAttention.*cell'),
    (dict(decoder='lab.more.cells.DecoderWithCell', decoder_options=dict(cell='gru')), "'gru'.*'RNN', 'GRU', 'LSTM'"),
    (dict(teacher_forcing=0.5), "'teacher_forcing' is 0.5.*DecoderWithAttention")])
def test_what_a_decoder_does_not_have(tiny_cfg, settings, hint):
    with pytest.raises((TypeError, ValueError), match=hint):
        train({**tiny_cfg, **settings})


def test_a_step_that_fails_shows_before_the_first_epoch(tiny_cfg, monkeypatch):
    def step(self, words, state, memory):
        raise KeyError('my step')

    monkeypatch.setattr(CaptionNet, 'step', step)
    monkeypatch.setattr(CaptionNet, 'forward', None)  # an epoch would end in a TypeError
    with pytest.raises(KeyError, match='my step'):
        train({**tiny_cfg, 'decoder': 'lab.more.captionnet.CaptionNet'})


# --- Scheduled sampling ---


@pytest.mark.parametrize('ratio', [0.0, 0.3, 1.0])
def test_the_ratio_is_that_of_true_words(ratio, monkeypatch):
    decoder, fed = make('bahdanau').train(), []
    step = decoder.step
    monkeypatch.setattr(decoder, 'step', lambda words, *rest: fed.append(words) or step(words, *rest))
    with torch.no_grad():  # its own word is always the last in the vocabulary, which no caption holds
        decoder.fc.bias.copy_(torch.tensor([-1e3] * (WORDS - 1) + [1e3]))
    torch.manual_seed(0)
    before, n, tokens = torch.get_rng_state(), 300, captions()[1] % (WORDS - 2) + 1
    decoder(pictures()[:1].expand(n, -1, -1, -1), tokens.expand(n, -1), torch.full((n, 1), len(tokens)),
            teacher_forcing=ratio)
    fed, true = torch.stack(fed, dim=1), tokens[:-1].expand(n, -1)
    assert torch.equal(fed[:, 0], true[:, 0])  # <start> is always fed
    assert ((fed == true) | (fed == WORDS - 1)).all()
    assert (fed == true)[:, 1:].double().mean().item() == pytest.approx(ratio, abs=0.03 * (ratio != 1))
    assert torch.equal(torch.get_rng_state(), before) == (ratio == 1)  # plain teacher forcing draws nothing
