"""The decoders of lab/more in the lab: they are trained by their settings; and what only some of them have."""

import pytest
import torch
from test_papers import WORDS, captions, every_decoder, make, pictures

from lab.decode.evaluate import caption_split
from lab.more.decoder import Decoder
from lab.train.checkpoints import checkpoint_paths, load_model
from solver import DEFAULTS, train

# --- By settings ---


@every_decoder
def test_every_decoder_is_trained_saved_and_loaded(trained, name):
    cfg, history = trained(name)
    assert history[3]['train_loss'] < history[0]['train_loss'] - 0.1
    model = load_model(checkpoint_paths({**DEFAULTS, **cfg})[0], 'cpu')
    assert model.history == history
    for caption in caption_split(model, 'TEST', beam_size=3, max_len=20):
        assert caption['alphas'] is None or caption['alphas'].shape == (len(caption['caption']), 4, 4)


def test_two_heads_are_trained_with_scheduled_sampling(trained, tmp_path, monkeypatch):
    cfg = {**trained('two_heads')[0], 'teacher_forcing': (0.9, 0.6), 'epochs': 3, 'output_folder': str(tmp_path)}
    seen, original = set(), Decoder.forward
    monkeypatch.setattr(Decoder, 'forward', lambda self, *args, teacher_forcing=1.0: (
        seen.add((self.training, round(teacher_forcing, 6))), original(self, *args, teacher_forcing))[1])
    history = train(cfg)
    assert history[2]['train_loss'] < history[0]['train_loss'] - 0.1
    assert seen == {(True, 0.9), (True, 0.75), (True, 0.6), (False, 1.0)}
    latest, _ = checkpoint_paths({**DEFAULTS, **cfg})
    model = load_model(latest, 'cpu')
    assert model.name == 'CaptionNet' and model.decoder.attention.heads == 2
    with pytest.raises(ValueError, match='decoder_options'):  # though the weights would fit
        train({**cfg, 'decoder_options': {}, 'checkpoint': str(latest)})
    with pytest.raises(TypeError, match='CaptionNet.*head'):  # it does not have this one
        train({**cfg, 'decoder_options': dict(head=2)})


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
