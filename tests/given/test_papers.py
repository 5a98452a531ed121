"""All decoders: each does what its paper's equations say, written out in numpy word by word, and what all have to do.

A new decoder is one line of ``DECODERS``; ``test_beam_search.py`` and ``test_self_critical.py`` go over the same list.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_packed_sequence

from lab.train.model import build_decoder

# every size is another, so that no two can be mixed up
PIXELS, ENCODER, ATTENTION, EMBED, STATE, WORDS = 6, 10, 4, 7, 9, 13
SIZES = dict(attention_dim=ATTENTION, embed_dim=EMBED, decoder_dim=STATE)
PAD, START, END, UNK = 0, 5, 2, 9
SPECIAL = {PAD: '<pad>', START: '<start>', END: '<end>', UNK: '<unk>'}
WORD_MAP = {SPECIAL.get(i, f'word{i}'): i for i in range(WORDS)}
LENGTHS = [5, 11, 2, 7, 9]  # <start> and <end> counted


# --- The equations: from a picture's pixels, the word before and the state (None at first) to scores, alpha, state ---


def array(tensor):
    return tensor.detach().numpy()


def linear(layer, x):
    return x @ array(layer.weight).T + (0 if layer.bias is None else array(layer.bias))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0)


def elu(x):
    return np.where(x > 0, x, np.exp(x) - 1)


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


ZERO = np.zeros(STATE)


def of_inputs_and_state(cell, x, h, parts):
    """What a cell makes of its input, and of its old state, for each of its gates."""
    of_x, of_h = array(cell.weight_ih) @ x + array(cell.bias_ih), array(cell.weight_hh) @ h + array(cell.bias_hh)
    return zip(np.split(of_x, parts), np.split(of_h, parts), strict=True)


def rnn(cell, x, h=ZERO):
    """Elman 1990."""
    (of_x, of_h), = of_inputs_and_state(cell, x, h, 1)
    return (np.tanh(of_x + of_h),)


def gru(cell, x, h=ZERO):
    """Cho et al. 2014, eqs. 5 to 8."""
    (rx, rh), (zx, zh), (nx, nh) = of_inputs_and_state(cell, x, h, 3)
    z = sigmoid(zx + zh)
    return ((1 - z) * np.tanh(nx + sigmoid(rx + rh) * nh) + z * h,)


def lstm(cell, x, h=ZERO, c=ZERO):
    """Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000."""
    i, f, g, o = (of_x + of_h for of_x, of_h in of_inputs_and_state(cell, x, h, 4))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def show_and_tell(d, a, x, state, cell=lstm):
    """Vinyals et al. 2015, eqs. 10 to 12, with any cell."""
    picture = (linear(d.init, a.mean(axis=0)) - array(d.bn.running_mean)) / np.sqrt(array(d.bn.running_var) + d.bn.eps)
    state = state or cell(d.decode_step, picture * array(d.bn.weight) + array(d.bn.bias))
    state = cell(d.decode_step, x, *state)
    return linear(d.fc, state[0]), None, state


def show_attend_and_tell(d, a, x, state):
    """Xu et al. 2015, sec. 3.1.2 and 4.2, with a gate per channel."""
    h, c = state or [linear(layer, a.mean(axis=0)) for layer in (d.init_h, d.init_c)]
    query = linear(d.attention.decoder_att, h)
    alpha = softmax(linear(d.attention.att, relu(linear(d.attention.encoder_att, a) + query)).squeeze(1))
    # by its shape: docs/instructors.md shows how to give it another name
    gate, = (layer for layer in d.children() if getattr(layer, 'weight', ZERO).shape == (ENCODER, STATE))
    h, c = lstm(d.decode_step, np.concatenate([x, sigmoid(linear(gate, h)) * (alpha @ a)]), h, c)
    return linear(d.fc, h), alpha, (h, c)


def knowing_when_to_look(d, a, x, state, sentinel=True):
    """Lu et al. 2017, eqs. 3 to 16."""
    h_before, m = state or (ZERO, ZERO)
    V = relu(linear(d.W_a, a))
    x = np.concatenate([x, relu(linear(d.W_b, a.mean(axis=0)))])
    h, m = lstm(d.decode_step, x, h_before, m)

    def score(layer, v):
        return linear(d.w_h, np.tanh(linear(layer, v) + linear(d.W_g, h)))[..., 0]

    alpha = softmax(score(d.W_v, V))
    context = alpha @ V
    if sentinel:
        s = sigmoid(linear(d.W_x, x) + linear(d.W_h, h_before)) * np.tanh(m)
        beta = softmax(np.append(score(d.W_v, V), score(d.W_s, s)))[-1]
        alpha, context = (1 - beta) * alpha, beta * s + (1 - beta) * context
    return linear(d.fc, context + h), alpha, (h, m)


def bahdanau(d, a, x, state):
    """Bahdanau et al. 2015, A.1.2, with ELU; first state and gate of Xu et al. 2015, sec. 3.1.2 and 4.2.1."""
    h, c = state or [np.tanh(linear(layer, a.mean(axis=0))) for layer in (d.init_h, d.init_c)]
    alpha = softmax(linear(d.attention.v, elu(linear(d.attention.W, h) + linear(d.attention.U, a))).squeeze(1))
    context = sigmoid(linear(d.f_beta, h)) * (alpha @ a)
    h, c = lstm(d.decode_step, np.concatenate([x, context]), h, c)
    return linear(d.fc, h), alpha, (h, c)


def captionnet(d, a, x, state):
    """Vaswani et al. 2017, eq. 1; Xu et al. 2015, eq. 7 with a tanh."""
    h, c = state or [np.tanh(linear(layer, a.mean(axis=0))) for layer in (d.init_h, d.init_c)]
    heads = d.attention.heads
    query, keys = np.split(linear(d.attention.query, h), heads), np.split(linear(d.attention.key, a), heads, axis=1)
    alphas = [softmax(k @ q / math.sqrt(ATTENTION / heads)) for q, k in zip(query, keys, strict=True)]
    context = np.concatenate([alpha @ v for alpha, v in zip(alphas, np.split(a, heads, axis=1), strict=True)])
    h, c = lstm(d.decode_step, np.concatenate([x, context]), h, c)
    return linear(d.fc, np.tanh(linear(d.deep, np.concatenate([h, context, x])))), np.mean(alphas, axis=0), (h, c)


# --- All decoders: the settings decoder and decoder_options, and the equations ---

DECODERS = {
    'plain': ('models.DecoderWithRNN', {}, show_and_tell),
    'attention': ('models.DecoderWithAttention', {}, show_attend_and_tell),
    'spatial': ('lab.more.adaptive.DecoderWithSpatialAttention', {}, partial(knowing_when_to_look, sentinel=False)),
    'adaptive': ('lab.more.adaptive.DecoderWithAdaptiveAttention', {}, knowing_when_to_look),
    'bahdanau': ('lab.more.bahdanau.DecoderWithBahdanauAttention', {}, bahdanau),
    'captionnet': ('lab.more.captionnet.CaptionNet', {}, captionnet),
    'two_heads': ('lab.more.captionnet.CaptionNet', dict(heads=2), captionnet),
    'rnn': ('lab.more.cells.DecoderWithCell', dict(cell='RNN'), partial(show_and_tell, cell=rnn)),
    'gru': ('lab.more.cells.DecoderWithCell', {}, partial(show_and_tell, cell=gru)),
    'lstm': ('lab.more.cells.DecoderWithCell', dict(cell='LSTM'), show_and_tell),
}


def make(name, seed=0, **changes):
    """A decoder of this list with random weights, in double precision and ``eval()``."""
    decoder, options, _ = DECODERS[name]
    cfg = dict(**SIZES, dropout=0.0, decoder=decoder, decoder_options=options) | changes
    decoder = build_decoder(cfg, WORDS, ENCODER).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for key, value in decoder.state_dict().items():
        if value.is_floating_point():
            value.uniform_(-0.6, 0.6, generator=generator)
            value += key.endswith('running_var')
    return decoder


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pictures():
    return random(len(LENGTHS), 2, 3, ENCODER)


def captions():
    said = [word for word in range(WORDS) if word not in SPECIAL]
    rows = [[START, *(said[(i + 2) * t % 11 % len(said)] for t in range(1, length - 1)), END]
            for i, length in enumerate(LENGTHS)]
    return torch.tensor([row + [PAD] * (max(LENGTHS) - len(row)) for row in rows])


def run(decoder, encoder_out=None, tokens=None, lengths=LENGTHS, **options):
    """Predictions and alphas, padded, in the order in which the captions went in."""
    encoder_out = pictures() if encoder_out is None else encoder_out
    tokens = captions() if tokens is None else tokens
    predictions, sorted_captions, decode_lengths, *alphas, sort_ind = decoder(
        encoder_out, tokens, torch.tensor(lengths).unsqueeze(1), **options)
    assert decode_lengths == sorted((n - 1 for n in lengths), reverse=True)
    assert torch.equal(sorted_captions, tokens[sort_ind])
    if not torch.is_tensor(predictions):
        predictions, _ = pad_packed_sequence(predictions, batch_first=True)
    return [values[sort_ind.argsort()] for values in (predictions, *alphas)]


def same(one, other, tolerance=1e-10):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


every_decoder = pytest.mark.parametrize('name', DECODERS)


@every_decoder
@torch.no_grad()
def test_forward_and_steps_follow_the_equations(name):
    """Forward on the grid, steps on a list of pixels."""
    decoder, equations = make(name), DECODERS[name][2]
    found, (state, memory), states = run(decoder), decoder.start(pictures().flatten(1, 2)), [None] * len(LENGTHS)
    for t in range(max(LENGTHS) - 1):
        scores, state, alpha = decoder.step(captions()[:, t], state, memory)
        for i, length in enumerate(LENGTHS):
            if t >= length - 1:  # nothing past the end
                assert not any(values[i, t].any() for values in found)
                continue
            a, x = pictures()[i].flatten(0, 1).numpy(), array(decoder.embedding.weight)[captions()[i, t]]
            *expected, states[i] = equations(decoder, a, x, states[i])
            expected = [torch.tensor(one) for one in expected if one is not None]
            same([values[i, t] for values in found], expected)
            same([values[i] for values in (scores, alpha) if values is not None], expected)


@every_decoder
@torch.no_grad()
def test_order_padding_and_the_other_captions_change_nothing(name):
    decoder, order = make(name), [3, 0, 4, 2, 1]
    expected = run(decoder)
    found = run(decoder, pictures()[order], captions()[order], [LENGTHS[i] for i in order])
    same(found, [values[order] for values in expected])
    same(run(decoder, tokens=nn.functional.pad(captions(), (0, 3))), expected)
    same(run(decoder, tokens=captions().where(captions() > 0, torch.tensor(7))), expected)
    for i, length in enumerate(LENGTHS):
        alone = run(decoder, pictures()[i:i + 1], captions()[i:i + 1], [length])
        same(alone, [values[i:i + 1, :length - 1] for values in expected])


@every_decoder
def test_gradients_are_those_of_finite_differences(name):
    """In training, of the pictures and of each weight, along a direction: so none is cut off."""
    decoder, encoder_out = make(name).train(), pictures().requires_grad_()
    values = dict(decoder.named_parameters()) | {'the pictures': encoder_out}

    def total():
        return sum(values.sin().sum() for values in run(decoder, encoder_out))

    gradients = torch.autograd.grad(total(), list(values.values()), allow_unused=True, materialize_grads=True)
    for number, ((key, value), gradient) in enumerate(zip(values.items(), gradients, strict=True)):
        direction, sums = random(*value.shape, seed=number), []
        with torch.no_grad():
            for step in (1e-5, -2e-5):
                value += step * direction
                sums.append(total().item())
            value += 1e-5 * direction
        assert (gradient * direction).sum().item() == pytest.approx((sums[0] - sums[1]) / 2e-5, abs=1e-6), key


@every_decoder
@torch.no_grad()
def test_dropout_is_before_the_last_layer_and_in_training_only(name):
    """With all entries dropped, the bias is what remains of the scores; alphas are as without."""
    decoder = make(name, dropout=1.0)
    found, again = run(decoder), run(decoder)
    same(found, again, 0)
    for module in decoder.modules():
        module.training = isinstance(module, nn.Dropout)
    predictions, *alphas = run(decoder)
    same(alphas, found[1:])
    for i, length in enumerate(LENGTHS):
        assert torch.equal(predictions[i, :length - 1], decoder.fc.bias.expand(length - 1, -1))


@every_decoder
@torch.no_grad()
def test_saved_weights_make_the_same_decoder(name, tmp_path):
    decoder, other = make(name), make(name, seed=1)
    torch.save(decoder.state_dict(), tmp_path / 'weights')
    other.load_state_dict(torch.load(tmp_path / 'weights', weights_only=True))
    same(run(other), run(decoder), 0)


@every_decoder
@torch.no_grad()
def test_half_precision_comes_close(name):
    decoder, found = make(name).float(), []
    for bf16 in (False, True):
        with torch.autocast('cpu', torch.bfloat16, enabled=bf16):
            found.append(run(decoder, pictures().float()))
    for whole, half in zip(*found, strict=True):
        assert 0 < (whole - half).abs().max() < 0.05 * whole.abs().max()


@every_decoder
def test_new_layers(name):
    """Small weights where words come in and go out; the share that is dropped is the setting's."""
    cfg = dict(**SIZES, dropout=0.35, decoder=DECODERS[name][0], decoder_options=DECODERS[name][1])
    decoder = build_decoder(cfg, WORDS, ENCODER)
    assert all(layer.weight.abs().max() <= 0.1 for layer in (decoder.embedding, decoder.fc))
    assert not decoder.fc.bias.any() and decoder.dropout.p == 0.35
    if name in ('plain', 'attention'):
        assert all(layer.bias is not None for layer in decoder.modules() if isinstance(layer, nn.Linear))


@pytest.mark.parametrize('name', ['plain', 'rnn', 'gru', 'lstm'])
@torch.no_grad()
def test_in_training_batch_norm_takes_the_batch_and_keeps_statistics(name):
    decoder, other, images = make(name).train(), make(name), pictures().flatten(1, 2)
    of_batch = decoder.init(images.mean(dim=1))
    kept = [other.bn.running_mean.lerp(of_batch.mean(dim=0), 0.1), other.bn.running_var.lerp(of_batch.var(dim=0), 0.1)]
    other.bn.running_mean, other.bn.running_var = of_batch.mean(dim=0), of_batch.var(dim=0, correction=0)
    same(decoder.start(images)[0], other.start(images)[0])
    same([decoder.bn.running_mean, decoder.bn.running_var], kept)
