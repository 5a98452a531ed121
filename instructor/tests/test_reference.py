"""The reference's decoders: every equation once more in numpy, and what must hold for any batch.

Weights and inputs are fixed waves in
double precision, and each dimension has a size of its own, so that none can be taken for another.
"""

import inspect
import math

import numpy as np
import pytest
import torch

from instructor.models import Attention, DecoderWithAttention, DecoderWithRNN
from lab.decode.beam_search import beam_search, greedy_search
from lab.train.forward import true_words
from solver import caption_loss
from utils import topk_accuracy

BATCH, HEIGHT, WIDTH, PIXELS = 5, 3, 4, 12
ENCODER, EMBED, DECODER, ATTENTION, VOCAB = 7, 6, 8, 9, 17
PAD, UNK, START, END = 0, 14, 15, 16
WORD_MAP = {**{f'w{i}': i for i in range(1, 14)}, '<pad>': PAD, '<unk>': UNK, '<start>': START, '<end>': END}
LENGTHS, COLUMNS = [4, 11, 2, 7, 11], 14  # <start> and <end> counted: the third caption is empty
KINDS = ['rnn', 'attention']


def wave(*shape, shift=0.0):
    """Numbers in -1 ... 1 without any pattern in rows or columns."""
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.sin(0.37 * i ** 2 + shift).view(shape)


def make_decoder(kind, dropout=0.5):
    sizes = dict(embed_dim=EMBED, decoder_dim=DECODER, vocab_size=VOCAB, encoder_dim=ENCODER, dropout=dropout)
    if kind == 'rnn':
        decoder = fill(DecoderWithRNN(**sizes))
        decoder.bn.running_mean.copy_(wave(EMBED, shift=0.5))
        decoder.bn.running_var.copy_(1.5 + wave(EMBED, shift=0.7))
        return decoder
    return fill(DecoderWithAttention(attention_dim=ATTENTION, **sizes))


def fill(module):
    module.double().eval()
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(0.6 * wave(*parameter.shape, shift=i))
    return module


def pictures():
    return 2 * wave(BATCH, PIXELS, ENCODER, shift=0.3)


def captions(lengths=LENGTHS, columns=COLUMNS):
    rows = [[START, *((3 * i + 5 * t) % 13 + 1 for t in range(length - 2)), END] + [PAD] * (columns - length)
            for i, length in enumerate(lengths)]
    return torch.tensor(rows)


def states():
    return wave(BATCH, DECODER, shift=1.1), 2 * wave(BATCH, DECODER, shift=1.2)


def words():
    return wave(BATCH, EMBED, shift=1.3)


def decode(decoder, encoder_out=None, tokens=None, lengths=LENGTHS):
    """``forward`` with the sorting undone: predictions, and alphas or None."""
    encoder_out = pictures() if encoder_out is None else encoder_out
    tokens = captions() if tokens is None else tokens
    lengths = torch.tensor(lengths).unsqueeze(1)
    with torch.no_grad():
        predictions, _, _, *alphas, sort_ind = decoder(encoder_out, tokens, lengths)
    back = sort_ind.argsort()
    return predictions[back], alphas[0][back] if alphas else None


def one_step(decoder, embeddings, encoder_out, h, c):
    """predictions, alpha (or None), h, c of either decoder."""
    if isinstance(decoder, DecoderWithAttention):
        return decoder.one_step(embeddings, encoder_out, h, c)
    predictions, h, c = decoder.one_step(embeddings, h, c)
    return predictions, None, h, c


def same(found, expected, message=None):
    """Equal but for rounding; predictions may be kept in single precision."""
    for a, b in zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]:
        if a is None and b is None:
            continue
        torch.testing.assert_close(a.detach(), torch.as_tensor(b).detach(), rtol=1e-5, atol=1e-6,
                                   check_dtype=False, msg=message)


# The equations in numpy.


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


# ------------------------------------------------------------------------------- TODO 1: DecoderWithRNN


def check_layers(decoder, shapes, dropout):
    state = decoder.state_dict()
    for name, shape in shapes.items():
        assert name in state, f'{type(decoder).__name__} has no {name}'
        assert tuple(state[name].shape) == shape, f'{name} has shape {tuple(state[name].shape)}, not {shape}'
    assert isinstance(decoder.dropout, torch.nn.Dropout) and decoder.dropout.p == dropout
    assert decoder.embedding.weight.abs().max() <= 0.1 and decoder.fc.weight.abs().max() <= 0.1
    assert (decoder.fc.bias == 0).all()


def test_rnn_layers():
    decoder = DecoderWithRNN(EMBED, DECODER, VOCAB, ENCODER, dropout=0.35)
    check_layers(decoder, {
        'embedding.weight': (VOCAB, EMBED), 'init.weight': (EMBED, ENCODER), 'init.bias': (EMBED,),
        'bn.weight': (EMBED,), 'bn.running_mean': (EMBED,),
        'decode_step.weight_ih': (4 * DECODER, EMBED), 'decode_step.weight_hh': (4 * DECODER, DECODER),
        'fc.weight': (VOCAB, DECODER), 'fc.bias': (VOCAB,)}, 0.35)


def test_rnn_reads_the_picture_from_zero_states():
    decoder = make_decoder('rnn')
    x = linear(decoder.init, pictures().numpy().mean(axis=1))
    bn = {name: tensor.numpy() for name, tensor in decoder.bn.state_dict().items()}
    x = (x - bn['running_mean']) / np.sqrt(bn['running_var'] + decoder.bn.eps) * bn['weight'] + bn['bias']
    zeros = np.zeros((BATCH, DECODER))
    same(decoder.init_hidden_state(pictures()), lstm(decoder.decode_step, x, zeros, zeros))


def test_rnn_normalises_over_the_batch_in_training():
    decoder = make_decoder('rnn').train()
    x = linear(decoder.init, pictures().numpy().mean(axis=1))
    bn = {name: tensor.clone().numpy() for name, tensor in decoder.bn.state_dict().items()}
    normal = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + decoder.bn.eps) * bn['weight'] + bn['bias']
    zeros = np.zeros((BATCH, DECODER))
    same(decoder.init_hidden_state(pictures()), lstm(decoder.decode_step, normal, zeros, zeros))
    same(decoder.bn.running_mean, 0.9 * bn['running_mean'] + 0.1 * x.mean(axis=0))


def test_rnn_one_step():
    decoder = make_decoder('rnn')
    h, c = lstm(decoder.decode_step, words().numpy(), *(s.numpy() for s in states()))
    same(decoder.one_step(words(), *states()), (linear(decoder.fc, h), h, c))


# ------------------------------------------------------------------------------- TODO 3: Attention


def make_attention():
    return fill(Attention(ENCODER, DECODER, ATTENTION))


def test_attention_layers():
    shapes = {name: tuple(tensor.shape) for name, tensor in make_attention().state_dict().items()}
    expected = {'encoder_att.weight': (ATTENTION, ENCODER), 'encoder_att.bias': (ATTENTION,),
                'decoder_att.weight': (ATTENTION, DECODER), 'decoder_att.bias': (ATTENTION,),
                'att.weight': (1, ATTENTION), 'att.bias': (1,)}
    assert {name: shapes.get(name) for name in expected} == expected


def test_attention_formula():
    attention, (h, _) = make_attention(), states()
    z, alpha = attention(pictures(), h)
    assert z.shape == (BATCH, ENCODER) and alpha.shape == (BATCH, PIXELS)
    same((z, alpha), attend(attention, pictures().numpy(), h.numpy()))


def test_alphas_are_weights_of_the_pixels():
    attention, (h, _) = make_attention(), states()
    encoder_out = 20 * pictures()
    z, alpha = attention(encoder_out, h)
    assert (alpha >= 0).all()
    same(alpha.sum(dim=1), torch.ones(BATCH), 'the alphas of an image must sum to 1 over its pixels')
    same(z, torch.einsum('bp,bpe->be', alpha, encoder_out))
    assert alpha.max() > 0.9, 'pixels this different must get different weights'


def test_permuting_pixels_permutes_alphas():
    attention, (h, _) = make_attention(), states()
    order = 5 * torch.arange(PIXELS) % PIXELS
    z, alpha = attention(pictures(), h)
    same(attention(pictures()[:, order], h), (z, alpha[:, order]))


def test_equal_pixels_get_equal_alphas():
    attention, (h, _) = make_attention(), states()
    pixel = pictures()[:, :1]
    same(attention(pixel.expand(-1, PIXELS, -1), h), (pixel[:, 0], torch.full((BATCH, PIXELS), 1 / PIXELS)))


def test_images_of_a_batch_attend_each_for_itself():
    attention, (h, _) = make_attention(), states()
    together = attention(pictures(), h)
    for i in range(BATCH):
        same(attention(pictures()[i:i + 1], h[i:i + 1]), tuple(t[i:i + 1] for t in together))


def test_keys_handed_in_give_the_same():
    attention, (h, _) = make_attention(), states()
    if 'keys' not in inspect.signature(attention.forward).parameters:
        pytest.skip('this Attention takes no keys')
    same(attention(pictures(), h, attention.encoder_att(pictures())), attention(pictures(), h))


# ------------------------------------------------------------------------------- TODO 4: DecoderWithAttention


def test_attention_decoder_layers():
    decoder = DecoderWithAttention(ATTENTION, EMBED, DECODER, VOCAB, ENCODER, dropout=0.35)
    assert isinstance(decoder.attention, Attention)
    check_layers(decoder, {
        'attention.encoder_att.weight': (ATTENTION, ENCODER),
        'attention.decoder_att.weight': (ATTENTION, DECODER), 'embedding.weight': (VOCAB, EMBED),
        'decode_step.weight_ih': (4 * DECODER, EMBED + ENCODER),
        'decode_step.weight_hh': (4 * DECODER, DECODER),
        'init_h.weight': (DECODER, ENCODER), 'init_h.bias': (DECODER,),
        'init_c.weight': (DECODER, ENCODER), 'init_c.bias': (DECODER,),
        'f_beta.weight': (ENCODER, DECODER), 'f_beta.bias': (ENCODER,),
        'fc.weight': (VOCAB, DECODER), 'fc.bias': (VOCAB,)}, 0.35)


def test_attention_decoder_starts_from_the_mean_picture():
    decoder = make_decoder('attention')
    mean = pictures().numpy().mean(axis=1)
    same(decoder.init_hidden_state(pictures()), (linear(decoder.init_h, mean), linear(decoder.init_c, mean)))


def test_attention_decoder_one_step():
    decoder = make_decoder('attention')
    h, c = (s.numpy() for s in states())
    z, alpha = attend(decoder.attention, pictures().numpy(), h)
    beta = sigmoid(linear(decoder.f_beta, h))  # of the old h
    assert 0 < beta.min() < 0.4 and 0.6 < beta.max() < 1
    h, c = lstm(decoder.decode_step, np.concatenate([words().numpy(), beta * z], axis=1), h, c)
    same(decoder.one_step(words(), pictures(), *states()), (linear(decoder.fc, h), alpha, h, c))


@pytest.mark.parametrize(('bias', 'gate'), [(-1000, 0), (0, 0.5), (1000, 1)])
def test_gate_scales_what_is_seen(bias, gate):
    decoder = make_decoder('attention')
    with torch.no_grad():
        decoder.f_beta.weight.zero_()
        decoder.f_beta.bias.fill_(bias)
        found = decoder.one_step(words(), pictures(), *states())
    z, alpha = attend(decoder.attention, pictures().numpy(), states()[0].numpy())
    h, c = lstm(decoder.decode_step, np.concatenate([words().numpy(), gate * z], axis=1),
                *(s.numpy() for s in states()))
    same(found, (linear(decoder.fc, h), alpha, h, c))


def test_keys_handed_to_one_step_give_the_same():
    decoder = make_decoder('attention')
    if 'keys' not in inspect.signature(decoder.one_step).parameters:
        pytest.skip('this one_step takes no keys')
    keys = decoder.attention.encoder_att(pictures())
    same(decoder.one_step(words(), pictures(), *states(), keys),
         decoder.one_step(words(), pictures(), *states()))


class WithoutKeys(DecoderWithAttention):
    """What a student may write: the simplest ``one_step``."""

    def one_step(self, embeddings, encoder_out, h, c):
        return super().one_step(embeddings, encoder_out, h, c)


def test_one_step_without_keys_is_right_as_well():
    decoder = make_decoder('attention')
    simple = WithoutKeys(ATTENTION, EMBED, DECODER, VOCAB, ENCODER).double().eval()
    simple.load_state_dict(decoder.state_dict())
    latest = torch.arange(1, BATCH + 1)
    found, expected = [d.step(latest, *d.start(pictures())) for d in (simple, decoder)]
    same((found[0], *found[1], found[2]), (expected[0], *expected[1], expected[2]))
    found, expected = [beam_search(d, pictures(), WORD_MAP, max_len=6) for d in (simple, decoder)]
    assert [f.words for f in found] == [e.words for e in expected]


# ------------------------------------------------------------------------------- TODO 1 and 4: both decoders


@pytest.mark.parametrize('kind', KINDS)
def test_step_is_one_step_for_beam_search(kind):
    decoder = make_decoder(kind)
    latest = torch.arange(1, BATCH + 1)
    grid = pictures().view(BATCH, HEIGHT, WIDTH, ENCODER)
    state, memory = decoder.start(grid)
    scores, new_state, alpha = decoder.step(latest, state, memory)
    first = decoder.init_hidden_state(pictures())
    same(tuple(state), first)
    expected = one_step(decoder, decoder.embedding(latest), pictures(), *first)
    same((scores, alpha, *new_state), expected)


@pytest.mark.parametrize('kind', KINDS)
def test_dropout_only_before_the_last_layer_and_only_in_training(kind):
    decoder = make_decoder(kind, dropout=1.0)  # everything is dropped: only the bias is left
    predictions, *rest = one_step(decoder, words(), pictures(), *states())
    decoder.train()
    dropped, *rest_in_training = one_step(decoder, words(), pictures(), *states())
    same(dropped, decoder.fc.bias.expand(BATCH, -1))
    assert (predictions - dropped).abs().max() > 0.1, 'dropout must be off in eval()'
    same(tuple(rest_in_training), tuple(rest), 'h goes on to the next step whole')


# ------------------------------------------------------------------------------- TODO 2 and 5: forward


@pytest.mark.parametrize('kind', KINDS)
def test_forward_shapes_types_and_sorting(kind):
    decoder = make_decoder(kind).float()
    encoder_out, tokens, lengths = pictures().float(), captions(), torch.tensor(LENGTHS).unsqueeze(1)
    before = encoder_out.clone(), tokens.clone(), lengths.clone()
    predictions, ordered, decode_lengths, *alphas, sort_ind = decoder(encoder_out, tokens, lengths)

    assert predictions.shape == (BATCH, max(LENGTHS) - 1, VOCAB) and predictions.dtype == torch.float32
    assert len(alphas) == (kind == 'attention')
    for alpha in alphas:
        assert alpha.shape == (BATCH, max(LENGTHS) - 1, PIXELS) and alpha.dtype == torch.float32
    assert isinstance(decode_lengths, list) and decode_lengths == [10, 10, 6, 3, 1]
    assert sort_ind.shape == (BATCH,) and sorted(sort_ind.tolist()) == list(range(BATCH))
    assert [LENGTHS[i] - 1 for i in sort_ind.tolist()] == decode_lengths
    assert ordered.dtype == torch.long and torch.equal(ordered, tokens[sort_ind])
    for now, then in zip((encoder_out, tokens, lengths), before, strict=True):
        assert torch.equal(now, then), 'forward must leave its inputs as they are'


@pytest.mark.parametrize('kind', KINDS)
def test_forward_is_one_step_repeated(kind):
    decoder = make_decoder(kind)
    predictions, alphas = decode(decoder)
    for i, length in enumerate(LENGTHS):
        encoder_out = pictures()[i:i + 1]
        h, c = decoder.init_hidden_state(encoder_out)
        for t in range(length - 1):
            embeddings = decoder.embedding(captions()[i:i + 1, t])
            scores, alpha, h, c = one_step(decoder, embeddings, encoder_out, h, c)
            same(predictions[i, t], scores[0])
            if kind == 'attention':
                same(alphas[i, t], alpha[0])


@pytest.mark.parametrize('kind', KINDS)
def test_past_the_end_all_is_zero(kind):
    predictions, alphas = decode(make_decoder(kind))
    for i, length in enumerate(LENGTHS):
        for tensor in (predictions, alphas) if kind == 'attention' else (predictions,):
            assert (tensor[i, length - 1:] == 0).all()
            assert (tensor[i, :length - 1].abs().amax(dim=1) > 0).all()
        if kind == 'attention':
            same(alphas[i, :length - 1].sum(dim=1), torch.ones(length - 1))


@pytest.mark.parametrize('kind', KINDS)
def test_order_of_the_batch_does_not_matter(kind):
    decoder, order = make_decoder(kind), torch.tensor([3, 0, 4, 2, 1])
    predictions, alphas = decode(decoder)
    found = decode(decoder, pictures()[order], captions()[order], [LENGTHS[i] for i in order])
    same(found, (predictions[order], alphas[order] if kind == 'attention' else None))


@pytest.mark.parametrize('kind', KINDS)
def test_padding_does_not_matter(kind):
    decoder = make_decoder(kind)
    expected = decode(decoder)
    same(decode(decoder, tokens=captions(columns=max(LENGTHS))), expected)
    same(decode(decoder, tokens=captions(columns=31)), expected)
    after_end = torch.arange(COLUMNS) >= torch.tensor(LENGTHS).unsqueeze(1)
    same(decode(decoder, tokens=captions().masked_fill(after_end, 13)), expected)


@pytest.mark.parametrize('kind', KINDS)
def test_other_captions_of_the_batch_do_not_matter(kind):
    decoder = make_decoder(kind)
    predictions, alphas = decode(decoder)
    for i, length in enumerate(LENGTHS):
        alone, alpha_alone = decode(decoder, pictures()[i:i + 1], captions()[i:i + 1], [length])
        assert alone.shape == (1, length - 1, VOCAB)
        same(alone[0], predictions[i, :length - 1])
        if kind == 'attention':
            same(alpha_alone[0], alphas[i, :length - 1])


@pytest.mark.parametrize('kind', KINDS)
def test_a_prediction_sees_the_words_up_to_it_and_no_later_one(kind):
    decoder = make_decoder(kind)
    predictions, alphas = decode(decoder)
    for t in range(max(LENGTHS) - 1):
        tokens = captions()
        tokens[:, t + 1:] = (tokens[:, t + 1:] + 1) % VOCAB  # all the words that are still to come
        later, alphas_later = decode(decoder, tokens=tokens)
        same(later[:, :t + 1], predictions[:, :t + 1], f'prediction {t} must not see word {t + 1}')
        if kind == 'attention':
            # attention looks before it reads: alpha t + 1 knows the words up to t
            same(alphas_later[:, :t + 2], alphas[:, :t + 2])

        tokens = captions()
        tokens[:, t] = (tokens[:, t] + 1) % VOCAB
        now, _ = decode(decoder, tokens=tokens)
        same(now[:, :t], predictions[:, :t])
        for i, length in enumerate(LENGTHS):
            changed = (now[i, t:length - 1] - predictions[i, t:length - 1]).abs().amax(dim=1)
            assert (changed > 1e-4).all(), f'predictions from {t} on must depend on word {t}'


@pytest.mark.parametrize('kind', KINDS)
def test_predictions_depend_on_the_picture(kind):
    decoder = make_decoder(kind)
    predictions, _ = decode(decoder)
    other, _ = decode(decoder, -pictures())
    assert ((predictions - other)[:, 0].abs().amax(dim=1) > 1e-3).all()


@pytest.mark.parametrize('kind', KINDS)
def test_grids_and_lists_of_pixels_lengths_in_rows_and_columns(kind):
    decoder = make_decoder(kind)
    lengths = torch.tensor(LENGTHS)
    with torch.no_grad():
        expected = decoder(pictures(), captions(), lengths)
        grids = decoder(pictures().view(BATCH, HEIGHT, WIDTH, ENCODER), captions(), lengths.unsqueeze(1))
    for found, wanted in zip(grids, expected, strict=True):
        if torch.is_tensor(found):
            same(found, wanted)
        else:
            assert found == wanted


@pytest.mark.parametrize('kind', KINDS)
def test_every_parameter_learns(kind):
    decoder = make_decoder(kind)
    predictions, _, decode_lengths, *alphas, _ = decoder(pictures(), captions(), torch.tensor(LENGTHS))
    loss = (predictions * wave(*predictions.shape)).sum()
    loss.backward()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None, f'{name} gets no gradient'
        if name != 'attention.att.bias':  # the same number added to all scores leaves the softmax as it is
            assert parameter.grad.abs().max() > 1e-6, f'{name} has gradient 0'
    read = {int(word) for row, length in zip(captions(), LENGTHS, strict=True) for word in row[:length - 1]}
    learnt = decoder.embedding.weight.grad.abs().amax(dim=1).nonzero().flatten().tolist()
    assert set(learnt) == read, 'the words that are read learn: not <end>, not <pad>'


@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA GPU here')
@pytest.mark.parametrize('kind', KINDS)
def test_on_the_gpu_as_on_the_cpu(kind):
    decoder = make_decoder(kind)
    expected = decode(decoder)
    decoder.cuda()
    # caption lengths stay on the CPU, as the data loader gives them
    predictions, alphas = decode(decoder, pictures().cuda(), captions().cuda())
    assert predictions.is_cuda
    same((predictions.cpu(), alphas.cpu() if alphas is not None else None), expected)


@pytest.mark.parametrize('kind', KINDS)
def test_a_few_captions_can_be_learnt_by_heart(kind):
    torch.manual_seed(0)
    sizes = dict(embed_dim=16, decoder_dim=32, vocab_size=VOCAB, encoder_dim=ENCODER, dropout=0.1)
    decoder = DecoderWithRNN(**sizes) if kind == 'rnn' else DecoderWithAttention(attention_dim=12, **sizes)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=2e-2)
    encoder_out, tokens, lengths = pictures().float(), captions(), torch.tensor(LENGTHS)
    for _ in range(120):
        loss = caption_loss(*true_words(decoder(encoder_out, tokens, lengths))[:2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    decoder.eval()
    with torch.no_grad():
        scores, targets, *_ = true_words(decoder(encoder_out, tokens, lengths))
    assert caption_loss(scores, targets) < 0.1 and len(targets) == sum(LENGTHS) - BATCH
    assert topk_accuracy(scores, targets, 5) == 100
    found = greedy_search(decoder, encoder_out, WORD_MAP)
    assert [f.words for f in found] == [row[1:length - 1].tolist()
                                        for row, length in zip(tokens, LENGTHS, strict=True)]
