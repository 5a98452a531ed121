"""The reference's decoders: every equation once more in numpy, and what must hold for any batch.

Weights and inputs are those of the checks (``tests/inputs.py``), in double precision. Each dimension has a size of its
own, so that none can be taken for another.
"""

import numpy as np
import pytest
import torch

from instructor.expected import inputs
from instructor.models import Attention, DecoderWithAttention, DecoderWithRNN
from lab.decode.beam_search import beam_search

GIVEN = inputs.Inputs()
CLASS = {'plain': DecoderWithRNN, 'attention': Attention, 'attentive': DecoderWithAttention}
EMBED, DECODER, ENCODER, ATTENTION = GIVEN.embed_dim, GIVEN.decoder_dim, GIVEN.encoder_dim, GIVEN.attention_dim
VOCAB, BATCH, PIXELS, LENGTHS = GIVEN.vocab_size, GIVEN.batch, GIVEN.num_pixels, GIVEN.lengths
WORD_MAP = {'<pad>': 0, **{f'w{i}': i for i in range(1, 14)}, '<unk>': 14, '<start>': 15, '<end>': 16}
both = pytest.mark.parametrize('kind', ['plain', 'attentive'])


def make(kind, dropout=0.5):
    module = CLASS[kind](**GIVEN.sizes(kind, dropout)).double().eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    module.load_state_dict({name: torch.tensor(array) for name, array in GIVEN.weights(shapes).items()})
    return module


def pictures():
    return torch.tensor(GIVEN.pixels()).double()


def captions():
    return torch.tensor(GIVEN.captions()[0])


def states():
    return [torch.tensor(state).double() for state in GIVEN.states().values()]


def words():
    return torch.tensor(GIVEN.wave(BATCH, EMBED, shift=1.3)).double()


def decode(decoder, encoder_out, tokens, lengths):
    """``forward`` with the sorting undone: predictions, and alphas or None."""
    with torch.no_grad():
        predictions, _, _, *alphas, sort_ind = decoder(encoder_out, tokens, torch.as_tensor(lengths).unsqueeze(1))
    back = sort_ind.argsort()
    return predictions[back], alphas[0][back] if alphas else None


def one_step(decoder, embeddings, encoder_out, h, c):
    """predictions, alpha (or None), h, c of either decoder."""
    if isinstance(decoder, DecoderWithAttention):
        return decoder.one_step(embeddings, encoder_out, h, c)
    predictions, h, c = decoder.one_step(embeddings, h, c)
    return predictions, None, h, c


def same(found, expected):
    """Equal but for rounding; predictions may be kept in single precision."""
    for a, b in zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]:
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a.detach(), torch.as_tensor(b).detach(), rtol=1e-5, atol=1e-6,
                                       check_dtype=False)


# --- The equations in numpy ---


def linear(layer, x):
    return x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(cell, x, h, c):
    weight_x, weight_h, bias_x, bias_h = (p.detach().numpy() for p in (
        cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh))
    i, f, g, o = np.split(x @ weight_x.T + bias_x + h @ weight_h.T + bias_h, 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def attend(attention, a, h):
    z, alpha = np.zeros((len(a), a.shape[2])), np.zeros(a.shape[:2])
    for image in range(len(a)):
        query = linear(attention.decoder_att, h[image])
        e = [linear(attention.att, np.maximum(linear(attention.encoder_att, pixel) + query, 0))[0]
             for pixel in a[image]]
        alpha[image] = np.exp(e) / np.exp(e).sum()
        for weight, pixel in zip(alpha[image], a[image], strict=True):
            z[image] += weight * pixel
    return z, alpha


def numpy_states():
    return [state.numpy() for state in states()]


# --- Layers (TODO 1, 3 and 4) ---


SHAPES = {
    'attention': {
        'encoder_att.weight': (ATTENTION, ENCODER), 'decoder_att.weight': (ATTENTION, DECODER),
        'att.weight': (1, ATTENTION)},
    'plain': {
        'init.weight': (EMBED, ENCODER), 'bn.weight': (EMBED,), 'decode_step.weight_ih': (4 * DECODER, EMBED)},
    'attentive': {
        'attention.encoder_att.weight': (ATTENTION, ENCODER), 'decode_step.weight_ih': (4 * DECODER, EMBED + ENCODER),
        'init_h.weight': (DECODER, ENCODER), 'init_c.weight': (DECODER, ENCODER), 'f_beta.weight': (ENCODER, DECODER)}}


@pytest.mark.parametrize(('kind', 'shapes'), SHAPES.items(), ids=list(SHAPES))
def test_layers(kind, shapes):
    module = CLASS[kind](**GIVEN.sizes(kind, dropout=0.35))
    state = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    if kind != 'attention':
        assert state['embedding.weight'] == (VOCAB, EMBED)
        shapes = {**shapes, 'decode_step.weight_hh': (4 * DECODER, DECODER), 'fc.weight': (VOCAB, DECODER)}
        assert isinstance(module.dropout, torch.nn.Dropout) and module.dropout.p == 0.35
        assert module.embedding.weight.abs().max() <= 0.1 and module.fc.weight.abs().max() <= 0.1
        assert (module.fc.bias == 0).all()
    for name, shape in shapes.items():
        assert state[name] == shape and state[name.replace('weight', 'bias')] == shape[:1]


# --- First state, attention, one step (TODO 1, 3 and 4) ---


@pytest.mark.parametrize('training', [False, True])
def test_rnn_reads_the_picture_from_zero_states(training):
    """In training it normalises over the batch, and keeps statistics."""
    decoder = make('plain').train(training)
    x = linear(decoder.init, pictures().numpy().mean(axis=1))
    bn = {name: tensor.clone().numpy() for name, tensor in decoder.bn.state_dict().items()}
    mean, var = (x.mean(axis=0), x.var(axis=0)) if training else (bn['running_mean'], bn['running_var'])
    normal = (x - mean) / np.sqrt(var + decoder.bn.eps) * bn['weight'] + bn['bias']
    zeros = np.zeros((BATCH, DECODER))
    same(decoder.init_hidden_state(pictures()), lstm(decoder.decode_step, normal, zeros, zeros))
    same(decoder.bn.running_mean, 0.9 * bn['running_mean'] + 0.1 * mean if training else bn['running_mean'])


def test_rnn_one_step():
    decoder = make('plain')
    h, c = lstm(decoder.decode_step, words().numpy(), *numpy_states())
    same(decoder.one_step(words(), *states()), (linear(decoder.fc, h), h, c))


def test_attention_formula():
    attention, (h, _) = make('attention'), states()
    expected = attend(attention, pictures().numpy(), h.numpy())
    same(attention(pictures(), h), expected)
    same(attention(pictures(), h, attention.encoder_att(pictures())), expected)  # keys that are handed in


def test_attention_decoder_starts_from_the_mean_picture():
    decoder = make('attentive')
    mean = pictures().numpy().mean(axis=1)
    same(decoder.init_hidden_state(pictures()), (linear(decoder.init_h, mean), linear(decoder.init_c, mean)))


def test_attention_decoder_one_step():
    decoder = make('attentive')
    h, c = numpy_states()
    z, alpha = attend(decoder.attention, pictures().numpy(), h)
    beta = sigmoid(linear(decoder.f_beta, h))  # of the old h
    assert 0 < beta.min() < 0.4 and 0.6 < beta.max() < 1
    h, c = lstm(decoder.decode_step, np.concatenate([words().numpy(), beta * z], axis=1), h, c)
    expected = linear(decoder.fc, h), alpha, h, c
    same(decoder.one_step(words(), pictures(), *states()), expected)
    same(decoder.one_step(words(), pictures(), *states(), decoder.attention.encoder_att(pictures())), expected)


class WithoutKeys(DecoderWithAttention):
    """What a student may write: the simplest ``one_step``."""

    def one_step(self, embeddings, encoder_out, h, c):
        return super().one_step(embeddings, encoder_out, h, c)


def test_one_step_without_keys_is_right_as_well():
    decoder = make('attentive')
    simple = WithoutKeys(**GIVEN.sizes('attentive')).double().eval()
    simple.load_state_dict(decoder.state_dict())
    found, expected = [beam_search(d, pictures(), WORD_MAP, max_len=6) for d in (simple, decoder)]
    assert [f.words for f in found] == [e.words for e in expected]


@both
def test_step_is_one_step_for_beam_search(kind):
    decoder, latest = make(kind), torch.arange(1, BATCH + 1)
    state, memory = decoder.start(torch.tensor(GIVEN.pictures()).double())
    scores, new_state, alpha = decoder.step(latest, state, memory)
    first = decoder.init_hidden_state(pictures())
    same(tuple(state), first)
    same((scores, alpha, *new_state), one_step(decoder, decoder.embedding(latest), pictures(), *first))


@both
def test_dropout_only_before_the_last_layer_and_only_in_training(kind):
    decoder = make(kind, dropout=1.0)  # everything is dropped: only the bias is left
    predictions, *rest = one_step(decoder, words(), pictures(), *states())
    dropped, *rest_in_training = one_step(decoder.train(), words(), pictures(), *states())
    same(dropped, decoder.fc.bias.expand(BATCH, -1))
    assert (predictions - dropped).abs().max() > 0.1
    same(tuple(rest_in_training), tuple(rest))


# --- forward (TODO 2 and 5) ---


@both
def test_forward_gives_what_training_needs_and_leaves_its_inputs(kind):
    decoder = make(kind).float()
    given = pictures().float(), captions(), torch.tensor(LENGTHS).unsqueeze(1)
    before = [tensor.clone() for tensor in given]
    predictions, ordered, decode_lengths, *alphas, sort_ind = decoder(*given)
    assert predictions.shape == (BATCH, max(LENGTHS) - 1, VOCAB) and predictions.dtype == torch.float32
    assert [alpha.shape for alpha in alphas] == [(BATCH, max(LENGTHS) - 1, PIXELS)] * (kind == 'attentive')
    assert isinstance(decode_lengths, list) and decode_lengths == [10, 10, 6, 3, 1]
    assert sorted(sort_ind.tolist()) == list(range(BATCH))
    assert [LENGTHS[i] - 1 for i in sort_ind.tolist()] == decode_lengths
    assert ordered.dtype == torch.long and torch.equal(ordered, given[1][sort_ind])
    assert all(map(torch.equal, given, before))


@both
@pytest.mark.parametrize('order', [[0, 1, 2, 3, 4], [3, 0, 4, 2, 1], [2], [1, 4]], ids=str)
@pytest.mark.parametrize('padding', [0, 13])
def test_forward_is_one_step_repeated_and_zero_past_the_end(kind, order, padding):
    """So it sees no later word, no other caption, and no padding."""
    decoder, lengths = make(kind), torch.tensor(LENGTHS)[order]
    encoder_out, tokens = pictures()[order], captions()[order]
    past_the_end = torch.arange(tokens.shape[1]) >= lengths.unsqueeze(1)
    predictions, alphas = decode(decoder, encoder_out, tokens.masked_fill(past_the_end, padding), lengths)
    expected = torch.zeros_like(predictions), None if alphas is None else torch.zeros_like(alphas)
    for i, length in enumerate(lengths):
        h, c = decoder.init_hidden_state(encoder_out[i:i + 1])
        for t in range(length - 1):
            embeddings = decoder.embedding(tokens[i:i + 1, t])
            expected[0][i, t], alpha, h, c = one_step(decoder, embeddings, encoder_out[i:i + 1], h, c)
            if kind == 'attentive':
                expected[1][i, t] = alpha
    same((predictions, alphas), expected)
    assert (predictions[past_the_end[:, 1:max(lengths)]] == 0).all()


@both
def test_grids_and_lists_of_pixels_lengths_in_rows_and_columns(kind):
    decoder, lengths = make(kind), torch.tensor(LENGTHS)
    expected = decoder(pictures(), captions(), lengths)
    grids = decoder(torch.tensor(GIVEN.pictures()).double(), captions(), lengths.unsqueeze(1))
    for found, wanted in zip(grids, expected, strict=True):
        same(torch.as_tensor(found), torch.as_tensor(wanted))


@both
def test_every_parameter_learns(kind):
    decoder = make(kind)
    predictions, *_ = decoder(pictures(), captions(), torch.tensor(LENGTHS))
    (predictions * torch.tensor(GIVEN.wave(*predictions.shape))).sum().backward()
    for name, parameter in decoder.named_parameters():
        # the same number added to all scores leaves the softmax as it is
        assert name == 'attention.att.bias' or parameter.grad.abs().max() > 1e-6, name
    read = {int(word) for row, length in zip(captions(), LENGTHS, strict=True) for word in row[:length - 1]}
    learnt = decoder.embedding.weight.grad.abs().amax(dim=1).nonzero().flatten().tolist()
    assert set(learnt) == read, 'the words that are read learn: not <end>, not <pad>'
