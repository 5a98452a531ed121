"""The decoders of lab/more in the lab: they learn, are trained by their settings, and what only some of them have."""

import copy

import pytest
import torch
import torchvision
from test_papers import DECODERS, ENCODER, LENGTHS, SIZES, WORD_MAP, WORDS, captions, make, pictures, random, run, same

import solver
from lab.decode.evaluate import caption_split
from lab.decode.greedy_search import greedy_search
from lab.more.bahdanau import DecoderWithBahdanauAttention, EncoderDecoder, ResNetEncoder
from lab.more.captionnet import ScaledDotProductAttention
from lab.more.decoder import Decoder
from lab.train.checkpoints import checkpoint_paths, load_model
from lab.train.model import true_words
from models import Encoder
from solver import DEFAULTS, caption_loss, train


@pytest.mark.parametrize('name', DECODERS)
def test_five_captions_are_learned_by_heart(name):
    torch.manual_seed(0)
    decoder, tokens = make(name, decoder_dim=40, embed_dim=20).float().train(), captions()
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.02)
    for _ in range(100):
        decoded = true_words(decoder(pictures().float(), tokens, torch.tensor(LENGTHS).unsqueeze(1)))
        loss = caption_loss(decoded.scores, decoded.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    found = greedy_search(decoder, pictures().float(), WORD_MAP, 12)
    assert [one.words for one in found] == [row[1:length - 1].tolist() for row, length in zip(
        tokens, LENGTHS, strict=True)]


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


def test_other_heads_are_another_function(two_heads, tmp_path, capsys):
    """Though the weights would fit."""
    cfg, _, stopped = two_heads
    one = {**cfg, 'decoder_options': {}, 'output_folder': str(tmp_path)}
    with pytest.raises(ValueError, match='decoder_options'):
        train({**one, 'checkpoint': stopped})
    train({**one, 'start_from': stopped, 'epochs': 1})
    assert str(cfg['decoder_options']) in capsys.readouterr().out


@pytest.mark.parametrize(('settings', 'hint'), [
    (dict(decoder='lab.more.captionnet.CaptionNet', decoder_options=dict(head=2)), 'CaptionNet.*head'),
    (dict(decoder_options=dict(cell='GRU')), 'DecoderWithAttention.*cell'),
    (dict(decoder='lab.more.cells.DecoderWithCell', decoder_options=dict(cell='gru')), "'gru'.*'RNN', 'GRU', 'LSTM'"),
    (dict(teacher_forcing=0.5), "'teacher_forcing' is 0.5.*DecoderWithAttention")])
def test_what_a_decoder_does_not_have(tiny_cfg, settings, hint):
    with pytest.raises((TypeError, ValueError), match=hint):
        train({**tiny_cfg, **settings})


# --- Scheduled sampling ---


def test_a_teacher_forcing_of_one_is_plain_teacher_forcing():
    decoder, before = make('bahdanau').train(), torch.get_rng_state()
    same(run(decoder, teacher_forcing=1.0), run(decoder), 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert (run(decoder, teacher_forcing=0.0)[0] - run(decoder)[0]).abs().max() > 1e-3


@pytest.mark.parametrize('ratio', [0.0, 0.3])
def test_the_ratio_is_that_of_true_words(ratio, monkeypatch):
    decoder, fed = make('bahdanau').train(), []
    step = decoder.step
    monkeypatch.setattr(decoder, 'step', lambda words, *rest: fed.append(words) or step(words, *rest))
    with torch.no_grad():  # its own word is always the last in the vocabulary, which no caption holds
        decoder.fc.bias.copy_(torch.tensor([-1e3] * (WORDS - 1) + [1e3]))
    torch.manual_seed(0)
    n, tokens = 300, captions()[1] % (WORDS - 2) + 1
    decoder(pictures()[:1].expand(n, -1, -1, -1), tokens.expand(n, -1), torch.full((n, 1), len(tokens)),
            teacher_forcing=ratio)
    fed, true = torch.stack(fed, dim=1), tokens[:-1].expand(n, -1)
    assert torch.equal(fed[:, 0], true[:, 0])  # <start> is always fed
    assert ((fed == true) | (fed == WORDS - 1)).all()
    assert (fed == true)[:, 1:].double().mean().item() == pytest.approx(ratio, abs=0.03)


# --- One by one ---


def test_heads_that_do_not_fit():
    for heads, attention in ((3, 4), (4, 4), (0, 4), (-1, 4), (True, 4), (5, 6)):
        with pytest.raises(ValueError, match=f'heads is {heads}'):
            ScaledDotProductAttention(ENCODER, 9, attention, heads=heads)


def test_captionnet_takes_features_with_the_channels_first():
    decoder = make('captionnet')
    vgg = pictures().flatten(1, 2).transpose(1, 2)
    same(run(decoder, vgg), run(decoder), 0)
    square = random(1, ENCODER, ENCODER)
    assert torch.equal(decoder.cells(square), square)  # as many cells as channels: these come last
    for strange in (vgg[:, 1:], vgg.unsqueeze(1)):
        with pytest.raises(ValueError, match=f'encoder_dim, {ENCODER}'):
            decoder.start(strange)


def test_the_whole_bahdanau_model():
    """From pixels; encoder and decoder both get their gradient."""
    encoder = Encoder('shapes_cnn', encoded_image_size=4)
    encoder.fine_tune(True)
    decoder = DecoderWithBahdanauAttention(**SIZES, vocab_size=WORDS, encoder_dim=encoder.encoder_dim, dropout=0.0)
    model = EncoderDecoder(encoder, decoder).train()
    images, lengths = random(2, 3, 256, 256).mul(99).to(torch.uint8), [4, 6]
    logits, alphas, targets, decode_lengths, sort_ind = model(images, captions()[:2], torch.tensor([[4], [6]]))
    predictions, expected = run(decoder, encoder(images), captions()[:2], lengths)
    assert logits.shape == (2, 5, WORDS) and decode_lengths == [5, 3] and sort_ind.tolist() == [1, 0]
    same((logits, alphas), (predictions[[1, 0]], expected[[1, 0]]), 1e-6)
    assert targets.tolist() == [captions()[1, 1:6].tolist(), [*captions()[0, 1:4].tolist(), 0, 0]]
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0).backward()
    for part in (encoder, decoder):
        trained = [p for p in part.parameters() if p.requires_grad]
        assert trained and all(p.grad is not None and p.grad.any() for p in trained)


def test_the_resnet_encoder_is_torchvisions_resnet_50(tmp_path):
    original = torchvision.models.resnet50(weights=None).eval()
    torch.save(original.state_dict(), tmp_path / 'resnet50.pth')
    encoder = ResNetEncoder(weights=str(tmp_path / 'resnet50.pth')).eval()
    images = random(1, 3, 96, 160).float()
    with torch.no_grad():
        grid = torch.nn.Sequential(*list(copy.deepcopy(original).children())[:-2])(images).permute(0, 2, 3, 1)
        assert grid.shape == (1, 3, 5, 2048)  # native, whatever size
        torch.testing.assert_close(encoder(images), grid, rtol=1e-3, atol=1e-3 * grid.abs().max().item())
