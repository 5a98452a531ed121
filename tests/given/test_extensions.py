"""The decoders of extensions.py: each does what its paper's equations say, and trains by the same loop as others."""

import copy
import functools
import math

import pytest
import torch
import torchvision
from torch.nn.utils.rnn import pad_packed_sequence
from verdicts import same

import extensions
from batches import Batches
from beam_search import beam_search, greedy_search
from checkpoints import checkpoint_paths, load_model
from datasets import CaptionDataset
from evaluate import caption_split
from extensions import (
    BahdanauAttention,
    CaptionNet,
    DecoderWithAdaptiveAttention,
    DecoderWithBahdanauAttention,
    DecoderWithCell,
    DecoderWithSpatialAttention,
    EncoderDecoder,
    ResNetEncoder,
    ScaledDotProductAttention,
)
from models import DecoderWithRNN, Encoder
from solver import DEFAULTS, caption_loss, check_settings, train

# every size is another, so that no two can be mixed up
PIXELS, ENCODER, ATTENTION, EMBED, STATE, WORDS = 6, 10, 4, 7, 9, 13
SIZES = dict(embed_dim=EMBED, decoder_dim=STATE, vocab_size=WORDS, encoder_dim=ENCODER)
LENGTHS = [5, 11, 2, 7, 9]
KINDS = {
    'spatial': (DecoderWithSpatialAttention, dict(attention_dim=ATTENTION)),
    'adaptive': (DecoderWithAdaptiveAttention, dict(attention_dim=ATTENTION)),
    'bahdanau': (DecoderWithBahdanauAttention, dict(attention_dim=ATTENTION)),
    'captionnet': (CaptionNet, dict(attention_dim=ATTENTION)),
    'two_heads': (CaptionNet, dict(attention_dim=ATTENTION, heads=2)),
    'rnn': (DecoderWithCell, dict(cell='RNN')),
    'gru': (DecoderWithCell, dict(cell='GRU')),
    'lstm': (DecoderWithCell, dict(cell='LSTM')),
}
ATTENDING = [name for name, (_, options) in KINDS.items() if 'attention_dim' in options]


def make(kind, **options):
    cls, own = KINDS[kind]
    decoder = cls(**SIZES, **{**own, **options}).double().eval()
    with torch.no_grad():
        for k, parameter in enumerate(decoder.parameters()):
            values = torch.linspace(0, 1, parameter.numel(), dtype=torch.float64)
            parameter.copy_((17 * values + k).sin().mul(0.6).view(parameter.shape))
    return decoder


def pictures():
    n = len(LENGTHS)
    return torch.linspace(0, 40, n * PIXELS * ENCODER, dtype=torch.float64).cos().view(n, 2, 3, ENCODER)


def captions():
    tokens = torch.arange(len(LENGTHS) * max(LENGTHS)).view(len(LENGTHS), -1) * 5 % (WORDS - 1) + 1
    return tokens.masked_fill(torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS).unsqueeze(1), 0)


def run(decoder, encoder_out=None, tokens=None):
    """Predictions and alphas, padded, in the order in which the captions went in."""
    predictions, sorted_captions, lengths, *alphas, sort_ind = decoder(
        pictures() if encoder_out is None else encoder_out, captions() if tokens is None else tokens,
        torch.tensor(LENGTHS).unsqueeze(1))
    assert lengths == sorted((n - 1 for n in LENGTHS), reverse=True)
    assert torch.equal(sorted_captions, (captions() if tokens is None else tokens)[sort_ind])
    back = sort_ind.argsort()
    return [values[back] for values in (pad_packed_sequence(predictions, batch_first=True)[0], *alphas)]


# --- The equations, written out cell by cell ---


def linear(layer, x):
    return layer.weight @ x + (0 if layer.bias is None else layer.bias)


def linear_rows(layer, rows):
    return torch.stack([linear(layer, row) for row in rows])


def paper_step(decoder, picture, word, h, m, slip=None):
    """Lu et al. 2017, eqs. 4 to 13 for one caption: scores, alpha, new h, new m.

    :param slip: a known error of other ports; None: none
    """
    pixels = picture.flatten(0, 1)
    V = [linear(decoder.W_a, a) for a in pixels]
    V = V if slip == 'no ReLU on V' else [torch.relu(v) for v in V]
    v_g = torch.relu(linear(decoder.W_b, pixels.mean(0)))
    word = decoder.embedding.weight[word]
    x = torch.cat([v_g, word] if slip == 'x the other way round' else [word, v_g])
    (new_h,), (new_m,) = decoder.decode_step(x.unsqueeze(0), (h.unsqueeze(0), m.unsqueeze(0)))
    looks = h if slip == 'the old h looks' else new_h

    def score(projection, v):
        return linear(decoder.w_h, torch.tanh(linear(projection, v) + linear(decoder.W_g, looks)))[0]

    z = torch.stack([score(decoder.W_v, v) for v in V])
    alpha = z.softmax(dim=0)
    context = sum(a * v for a, v in zip(alpha, V, strict=True))
    if isinstance(decoder, DecoderWithAdaptiveAttention):
        of_gate = new_h if slip == 'the gate from the new h' else h
        g = torch.sigmoid(linear(decoder.W_x, x) + linear(decoder.W_h, of_gate))
        s = g * {'s from the old cell state': m.tanh(), 's without tanh': new_m,
                 's with tanh twice': new_m.tanh().tanh()}.get(slip, new_m.tanh())
        z_s = score(decoder.W_v if slip == 'W_v for the sentinel' else decoder.W_s, s)
        if slip == 'the sentinel first':
            alpha_hat = torch.cat([z_s.unsqueeze(0), z]).softmax(dim=0)
            weights, beta = alpha_hat[:-1], alpha_hat[-1]
            context = beta * s + sum(a * v for a, v in zip(weights, V, strict=True)) + new_h
            return linear(decoder.fc, context), weights, new_h, new_m
        alpha_hat = torch.cat([z, z_s.unsqueeze(0)]).softmax(dim=0)
        beta = {'beta from a sigmoid of its own': torch.sigmoid(z_s),
                'beta from a second softmax': torch.cat([alpha, z_s.unsqueeze(0)]).softmax(dim=0)[-1],
                'beta from alpha': alpha[-1]}.get(slip, alpha_hat[-1])
        seen = context
        context = beta * s + (1 - beta) * seen   # eq. 11
        if slip == 'the context counted down twice':
            context = beta * s + (1 - beta) ** 2 * seen
        if slip == 'the context added twice':
            context = context + seen
        if slip != 'alphas that sum to 1':
            alpha = (1 - beta) * alpha
    scored = context if slip == 'h left out of the scores' else context + new_h
    return linear(decoder.fc, scored), alpha, new_h, new_m


SLIPS = {
    'x the other way round': 'x is [w_t; v_g], the word first',
    'no ReLU on V': 'v_i = ReLU(W_a a_i), the ReLU is missing',
    'the old h looks': 'the new hidden state looks (eq. 6), not the old one',
    'h left out of the scores': 'the scores are of c + h, h is missing (eq. 13)'}
ADAPTIVE_SLIPS = {
    **SLIPS,
    's from the old cell state': 's_t comes from the new cell state m_t (eq. 10), not from the old one',
    's without tanh': 's_t = g_t * tanh(m_t), the tanh is missing (eq. 10)',
    's with tanh twice': 's_t = g_t * tanh(m_t): tanh_m is tanh(m_t) already (eq. 10), here tanh is taken twice',
    'W_v for the sentinel': 'the sentinel\'s score has W_s (eq. 12), not W_v',
    'the sentinel first': 'the pixels\' scores come first and the sentinel\'s last (eq. 12), not the other way round',
    'the gate from the new h': 'the gate comes from the old hidden state h_{t-1} (eq. 9), not from the new one',
    'beta from a sigmoid of its own': 'beta is the last entry of the softmax over pixels and sentinel (eq. 12), not a '
                                      'sigmoid of its own',
    'beta from a second softmax': 'beta is the last entry of the one softmax over all scores (eq. 12), not of a '
                                  'second one over the weights and the sentinel\'s score',
    'beta from alpha': 'beta is the last entry of alpha^ (eq. 12), over pixels and sentinel; alpha, as the paper '
                       'prints it, has no entry for the sentinel',
    'the context added twice': 'the context is in twice: c^ = beta s + (1 - beta) c is all of it (eq. 11)',
    'the context counted down twice': 'the pixels\' weights of that softmax sum to 1 - beta already: (1 - beta) is in '
                                      'twice'}


@pytest.mark.parametrize(('kind', 'todo'), [('spatial', 6), ('adaptive', 7)])
def test_layers_of_knowing_when_to_look(kind, todo):
    """Among others that the attention is as wide as asked for, not as many cells as the grid has."""
    assert ATTENTION != PIXELS
    weights = {name: tuple(weight.shape) for name, weight in make(kind, dropout=0.25).named_parameters()}
    expected = {
        'embedding.weight': (WORDS, EMBED), 'W_a.weight': (STATE, ENCODER), 'W_a.bias': (STATE,),
        'W_b.weight': (EMBED, ENCODER), 'W_b.bias': (EMBED,), 'decode_step.weight_ih': (4 * STATE, 2 * EMBED),
        'decode_step.weight_hh': (4 * STATE, STATE), 'decode_step.bias_ih': (4 * STATE,),
        'decode_step.bias_hh': (4 * STATE,), 'W_v.weight': (ATTENTION, STATE), 'W_g.weight': (ATTENTION, STATE),
        'w_h.weight': (1, ATTENTION), 'fc.weight': (WORDS, STATE), 'fc.bias': (WORDS,)}
    if kind == 'adaptive':
        expected |= {'W_x.weight': (STATE, 2 * EMBED), 'W_x.bias': (STATE,), 'W_h.weight': (STATE, STATE),
                     'W_s.weight': (ATTENTION, STATE)}
    wrong = sorted(name for name in weights.keys() | expected.keys() if weights.get(name) != expected.get(name))
    if wrong:
        pytest.fail(f'TODO {todo}, {KINDS[kind][0].__name__}.__init__: ' + '; '.join(
            f'expected {name} {expected.get(name, "not at all")}, here {weights.get(name, "there is none")}'
            for name in wrong) + '. Likely cause: in and out exchanged, or bias=False missing, or out of place.',
            pytrace=False)
    same(make(kind, dropout=0.25).dropout.p, 0.25, f'TODO {todo}, {KINDS[kind][0].__name__}.__init__: dropout.p', '',
         'nn.Dropout(dropout)', {'nn.Dropout without its argument': 0.5})


@torch.no_grad()
def test_how_spatial_attention_sees_the_picture():
    decoder, pixels = make('spatial'), pictures()[1].flatten(0, 1)
    found, where = decoder.look(pixels.unsqueeze(0)), 'TODO 6, DecoderWithSpatialAttention.look'
    if not isinstance(found, tuple) or len(found) != 3:
        pytest.fail(f'{where}: expected V, W_v of V and v_g; here {len(found) if isinstance(found, tuple) else 1} of '
                    'them. Likely cause: W_v of V is left out.', pytrace=False)
    (V,), (keys,), (v_g,) = found
    rows, mean = linear_rows(decoder.W_a, pixels), pixels.mean(0)
    same(V, rows.relu(), f'{where}: V', 'num_pixels, decoder_dim', 'V = ReLU(W_a a_i)', {'the ReLU is missing': rows},
         1e-12)
    same(keys, linear_rows(decoder.W_v, V), f'{where}: W_v of V', 'num_pixels, attention_dim', 'W_v of V',
         tolerance=1e-12)
    same(v_g, linear(decoder.W_b, mean).relu(), f'{where}: v_g', 'embed_dim', 'v_g = ReLU(W_b mean(a))', {
        'the ReLU is missing': linear(decoder.W_b, mean),
        'the mean is taken after the ReLU': linear_rows(decoder.W_b, pixels).relu().mean(0)}, 1e-12)


@torch.no_grad()
def test_what_spatial_attention_hands_to_attend():
    """The old hidden state and the new cell state: the sentinel of the adaptive decoder lives on them."""
    decoder, seen = make('spatial'), []
    original = decoder.attend
    decoder.attend = lambda *args: seen.append(args) or original(*args)
    h, m = (torch.linspace(-1, 1, STATE, dtype=torch.float64).mul(k).sin().unsqueeze(0) for k in (2, 5))
    _, (new_h, new_m), _ = decoder.step(torch.tensor([5]), (h, m), decoder.start(pictures()[1:2])[1])
    _, _, looks, _, h_before, tanh_m = seen[0]
    where = 'TODO 6, DecoderWithSpatialAttention.one_step: of what attend gets,'
    same(looks, new_h, f'{where} h', 'batch_size, decoder_dim', 'the new hidden state', {'it is the old one': h}, 1e-12)
    same(h_before, h, f'{where} h_before', 'batch_size, decoder_dim', 'the old hidden state',
         {'it is the new one': new_h}, 1e-12)
    same(tanh_m, new_m.tanh(), f'{where} tanh_m', 'batch_size, decoder_dim', 'tanh of the new cell state', {
        'tanh is missing': new_m, 'it is of the old cell state': m.tanh()}, 1e-12)


@pytest.mark.parametrize(('kind', 'todo', 'slips'), [('spatial', 6, SLIPS), ('adaptive', 7, ADAPTIVE_SLIPS)])
@torch.no_grad()
def test_a_step_of_knowing_when_to_look(kind, todo, slips):
    """A step from a state that is not zero."""
    decoder, picture = make(kind), pictures()[1]
    h, m = (torch.linspace(-1, 1, STATE, dtype=torch.float64).mul(k).sin() for k in (2, 5))
    # beside another picture, from another state
    (_, scores), ((_, new_h), (_, new_m)), (_, alpha) = decoder.step(
        torch.tensor([2, 5]), (torch.stack([m, h]), torch.stack([h, m])), decoder.start(pictures()[:2])[1])

    def paper(slip=None):
        return paper_step(decoder, picture, 5, h, m, slip)

    expected, where = paper(), f'TODO {todo}, {type(decoder).__name__}'
    same(new_h, expected[2], f'{where}.one_step: h', 'decoder_dim',
         'the LSTM reads [w_t; v_g], from (h, m); one_step returns predictions, alpha, h, m, in this order',
         {SLIPS['x the other way round']: paper('x the other way round')[2]}, 1e-12)
    same(new_m, expected[3], f'{where}.one_step: m', 'decoder_dim', 'first h, then m')
    same(alpha, expected[1], f'{where}.attend: alpha', 'num_pixels',
         'softmax of w_h tanh(W_v V + W_g h) over the pixels' if todo == 6 else
         'softmax of w_h tanh(W_v V + W_g h) and w_h tanh(W_s s + W_g h) together, of which the pixels\' part is left',
         {slips[slip]: paper(slip)[1] for slip in slips if slip not in (
             'h left out of the scores', 'the context counted down twice', 'the context added twice')} | (
             {'alpha sums to 1 - beta: return the pixels\' part of the softmax as it is':
                 paper('alphas that sum to 1')[1]} if kind == 'adaptive' else {}), 1e-12)
    same(scores, expected[0], f'{where}.one_step: predictions', 'vocab_size', 'fc(dropout(c + h)), without softmax',
         {sentence: paper(slip)[0] for slip, sentence in slips.items()}, 1e-12)


WHERE = {'spatial': 'TODO 6, DecoderWithSpatialAttention', 'adaptive': 'TODO 7, DecoderWithAdaptiveAttention',
         'bahdanau': 'TODO 9, DecoderWithBahdanauAttention', 'captionnet': 'TODO 10, CaptionNet',
         'two_heads': 'TODO 10, CaptionNet', **dict.fromkeys(('rnn', 'gru', 'lstm'), 'TODO 8, DecoderWithCell')}


@pytest.mark.parametrize('kind', KINDS)
def test_dropout_is_before_the_vocabulary_layer_and_nowhere_else(kind):
    """With all entries dropped, the bias is what remains of the scores; state and alphas are as without."""
    decoder = make(kind, dropout=1.0)
    start = decoder.start(pictures()[1:2])
    _, state, *alpha = decoder.step(torch.tensor([5]), *start)
    _, *alphas = run(decoder)
    decoder.train()
    for module in decoder.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.eval()
    scores, dropped_state, *dropped_alpha = decoder.step(torch.tensor([5]), *start)
    cause = 'the dropout is missing, or is not the last thing before fc'
    same(scores[0], decoder.fc.bias, f'{WHERE[kind]}, a step with dropout=1: scores', 'vocab_size', cause)
    predictions, *dropped_alphas = run(decoder)
    for i, length in enumerate(LENGTHS):
        same(predictions[i, :length - 1], decoder.fc.bias.expand(length - 1, -1),
             f'{WHERE[kind]}.forward with dropout=1: predictions', 'steps, vocab_size', cause)
    for one, other in zip([*dropped_state, *dropped_alpha, *dropped_alphas], [*state, *alpha, *alphas], strict=True):
        if one is not None:
            same(one, other, f'{WHERE[kind]} with dropout=1: state and alphas', '', 'there is dropout in another place')


@pytest.mark.parametrize('kind', KINDS)
def test_gradients_are_those_of_finite_differences(kind):
    """Of the picture and of each parameter, along a direction: nothing on the way is detached."""
    decoder, encoder_out = make(kind), pictures()
    values = dict(decoder.named_parameters()) | {'the picture': encoder_out.requires_grad_()}

    def total(part):
        return sum(found.sin().sum() for found in run(decoder, encoder_out)[part])

    for part, name in ((slice(0, 1), 'scores'), (slice(1, None), 'alphas')):
        if part.start and kind not in ATTENDING:
            continue
        gradients = torch.autograd.grad(total(part), list(values.values()), allow_unused=True)
        for (of, value), gradient in zip(values.items(), gradients, strict=True):
            direction = torch.linspace(1, 9, value.numel(), dtype=torch.float64).sin().view(value.shape)
            with torch.no_grad():
                found = []
                for step in (1e-5, -2e-5):
                    value += step * direction
                    found.append(total(part))
                value += 1e-5 * direction
            same((gradient * direction).sum() if gradient is not None else 0.0, (found[0] - found[1]) / 2e-5,
                 f'{WHERE[kind]}: gradient of the {name} by {of}, along a direction', '',
                 'something is detached on the way (detach, data, item, no_grad)', tolerance=1e-6)


@pytest.mark.parametrize(('kind', 'todo'), [('spatial', 6), ('adaptive', 7)])
def test_gradients_of_all_steps_at_once_are_those_of_step_repeated(kind, todo):
    """The adaptive decoder's cell states come back from h and the output gate: their gradients, too."""
    found = []
    for at_once in (True, False):
        decoder, encoder_out = make(kind), pictures().requires_grad_()
        if at_once:
            predictions, alphas = run(decoder, encoder_out)
        else:
            predictions, alphas = [], []
            for i, length in enumerate(LENGTHS):
                state, memory = decoder.start(encoder_out[i:i + 1])
                for t in range(length - 1):
                    scores, state, alpha = decoder.step(captions()[i:i + 1, t], state, memory)
                    predictions.append(scores.sin().sum())
                    alphas.append(alpha.sin().sum())
            predictions, alphas = torch.stack(predictions), torch.stack(alphas)
        total = predictions.sin().sum() + alphas.sin().sum() if at_once else predictions.sum() + alphas.sum()
        found.append(torch.autograd.grad(total, [encoder_out, *decoder.parameters()]))
    names = ['the picture', *(name for name, _ in decoder.named_parameters())]
    for name, one, other in zip(names, *found, strict=True):
        assert other.abs().max() > 1e-6, name
        same(one, other, f'TODO {todo}, {type(decoder).__name__}: gradient of {name}', '',
             'attend must work with a dimension of steps as without', tolerance=1e-8)


def test_the_adaptive_decoders_sentinel_is_from_the_new_cell_state_in_training_too():
    decoder, seen = make('adaptive'), []
    original = decoder.sentinel
    decoder.sentinel = lambda x, h_before, tanh_m: seen.append(tanh_m) or original(x, h_before, tanh_m)
    run(decoder)
    if not seen:
        pytest.fail('TODO 7, DecoderWithAdaptiveAttention.attend: expected a call of self.sentinel; here none. '
                    'Likely cause: the sentinel is computed in attend itself.', pytrace=False)
    longest = LENGTHS.index(max(LENGTHS))
    state, memory = decoder.start(pictures()[longest:longest + 1])
    for t in range(max(LENGTHS) - 1):
        _, state, _ = decoder.step(captions()[longest:longest + 1, t], state, memory)
        assert (seen[0][0, t] - torch.tanh(state[1][0])).abs().max() < 1e-10  # the longest caption comes first


def test_the_adaptive_decoders_cell_state_in_half_precision():
    """h is the output gate times tanh(m): the quotient stays one of these, and near to the true one."""
    decoder, seen = make('adaptive').float(), []
    with torch.no_grad():
        for weight in decoder.decode_step.parameters():
            weight *= 6
    original = decoder.sentinel
    decoder.sentinel = lambda x, h_before, tanh_m: seen.append(tanh_m) or original(x, h_before, tanh_m)
    for bf16 in (False, True):
        with torch.autocast('cpu', torch.bfloat16, enabled=bf16):
            run(decoder, pictures().float())
    whole, half = seen
    running = whole != 0
    assert half.abs().max() <= 1 and (whole - half)[running].abs().mean() < 0.02


def test_large_weights_of_the_adaptive_decoder_are_not_clipped(tiny_cfg):
    """``grad_clip`` clips gradients: a weight may be as large as it likes."""
    cfg = {**tiny_cfg, 'decoder': 'extensions.DecoderWithAdaptiveAttention', 'grad_clip': 0.1, 'epochs': 1}
    original = DecoderWithAdaptiveAttention.__init__

    @functools.wraps(original)
    def large(self, *args, **kwargs):
        original(self, *args, **kwargs)
        with torch.no_grad():
            self.W_x.weight[0, 0] = 30.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecoderWithAdaptiveAttention, '__init__', large)
        train(cfg)
    model = load_model(f"{cfg['output_folder']}/BEST_checkpoint_DecoderWithAdaptiveAttention.pth.tar", 'cpu')
    assert model.decoder.W_x.weight[0, 0].item() == pytest.approx(30, abs=1)


def test_bahdanau_attention_with_elu():
    attention = make('bahdanau').attention
    cells, h = pictures().flatten(1, 2), torch.linspace(-1, 1, STATE, dtype=torch.float64)
    context, alpha = attention(cells, h.expand(len(cells), -1))

    def weights(activation):
        added = torch.stack([linear(attention.U, a) + linear(attention.W, h) for a in cells[2]])
        return torch.stack([linear(attention.v, activation(row))[0] for row in added]).softmax(dim=0)

    right, where = weights(torch.nn.functional.elu), 'TODO 9, BahdanauAttention.forward'
    assert isinstance(attention, BahdanauAttention)
    same(alpha[2], right, f'{where}: alpha', 'num_pixels', 'softmax over the pixels of v(ELU(W(h) + U(a_i)))', {
        'tanh in place of ELU': weights(torch.tanh),
        'ReLU in place of ELU': weights(torch.relu),
        'the activation is missing': weights(lambda x: x),
        'the softmax is over another dimension than the pixels': torch.ones(PIXELS)}, 1e-12)
    same(context[2], right @ cells[2], f'{where}: context', 'encoder_dim', 'the sum over the pixels of alpha_i a_i',
         {'the mean over the pixels in place of the sum': right @ cells[2] / PIXELS}, 1e-12)


@torch.no_grad()
def test_the_bahdanau_decoders_gate_and_first_state():
    decoder, picture = make('bahdanau'), pictures()[1]
    mean = picture.flatten(0, 1).mean(0)
    ((h,), (c,)), memory = decoder.start(picture.unsqueeze(0))
    first_h, first_c = linear(decoder.init_h, mean), linear(decoder.init_c, mean)
    where = 'TODO 9, DecoderWithBahdanauAttention'
    for name, one, own, other in (('h', h, first_h, first_c), ('c', c, first_c, first_h)):
        same(one, own.tanh(), f'{where}.start: {name}', 'decoder_dim', f'tanh(init_{name}(mean of the pixels))', {
            'tanh is missing': own, 'it comes from the other\'s layer: h from init_h, c from init_c': other.tanh()},
            1e-12)
    same(memory[1][0], linear_rows(decoder.attention.U, picture.flatten(0, 1)), f'{where}.start: keys',
         'num_pixels, attention_dim', 'the keys are U of the pixels', tolerance=1e-12)
    _, ((new_h,), (new_c,)), _ = decoder.step(torch.tensor([3]), (h.unsqueeze(0), c.unsqueeze(0)), memory)
    (context,), _ = decoder.attention(memory[0], h.unsqueeze(0))
    gate, word = linear(decoder.f_beta, h), decoder.embedding.weight[3]

    def state(*parts):
        (new_h,), (new_c,) = decoder.decode_step(torch.cat(parts).unsqueeze(0), (h.unsqueeze(0), c.unsqueeze(0)))
        return new_h, new_c

    mistakes = {
        'the context goes in without the gate': state(word, context),
        'the gate is f_beta(h) without sigmoid': state(word, gate * context)}
    right = state(word, gate.sigmoid() * context)
    for i, (name, one) in enumerate((('h', new_h), ('c', new_c))):
        same(one, right[i], f'{where}.one_step: {name}', 'decoder_dim',
             'the LSTM reads [embedding; gated context], from the old (h, c)',
             {sentence: states[i] for sentence, states in mistakes.items()}, 1e-12)


def test_the_whole_bahdanau_model():
    encoder = ResNetEncoder(weights=None)
    decoder = DecoderWithBahdanauAttention(ATTENTION, EMBED, STATE, WORDS, encoder_dim=2048)
    model = EncoderDecoder(encoder, decoder).eval()
    images = torch.linspace(0, 255, 2 * 3 * 256 * 256).to(torch.uint8).view(2, 3, 256, 256)
    lengths = torch.tensor([[4], [6]])
    with torch.no_grad():
        assert encoder(images).shape == (2, 8, 8, 2048)
        logits, alphas, targets, decode_lengths, sort_ind = model(images, captions()[:2, :6], lengths)
        predictions, _, _, expected_alphas, _ = decoder(encoder(images), captions()[:2, :6], lengths)
        first, *_ = decoder.step(captions()[[1, 0], 0], *decoder.start(encoder(images)[[1, 0]]))
    assert logits.shape == (2, 5, WORDS) and alphas.shape == (2, 5, 64)
    assert torch.equal(logits, pad_packed_sequence(predictions, batch_first=True)[0])
    assert torch.equal(alphas, expected_alphas) and not alphas[1, 3:].any() and not logits[1, 3:].any()
    assert (logits[:, 0] - first).abs().max() < 1e-5 and logits.std() > 0
    assert decode_lengths == [5, 3] and sort_ind.tolist() == [1, 0]
    assert targets.tolist() == [captions()[1, 1:6].tolist(), [*captions()[0, 1:4].tolist(), 0, 0]]


def test_the_whole_bahdanau_model_learns(tiny_data):
    """Encoder and decoder together, from pixels: both get their gradient."""
    torch.manual_seed(0)
    data = CaptionDataset(tiny_data['data_folder'], tiny_data['data_name'], 'TRAIN')
    batch = Batches(data, [torch.arange(0, 40, 5)])[0]
    images, captions_, lengths = batch.images[batch.image_of], batch.captions, batch.caplens.unsqueeze(1)
    encoder = Encoder('shapes_cnn', encoded_image_size=4)
    encoder.fine_tune(True)
    model = EncoderDecoder(encoder, DecoderWithBahdanauAttention(
        16, 24, 48, int(captions_.max()) + 1, encoder_dim=encoder.encoder_dim, dropout=0.1)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam([dict(params=[p for p in encoder.parameters() if p.requires_grad], lr=1e-4),
                                  dict(params=model.decoder.parameters(), lr=2e-2)])
    losses = []
    for _ in range(30):
        logits, _, targets, *_ = model(images, captions_, lengths)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]
    changed = {name.partition('.')[0] for name, value in model.state_dict().items()
               if not torch.equal(value, before[name])}
    assert changed == {'encoder', 'decoder'}


def test_resnet_50_and_the_bahdanau_decoder_by_settings(tiny_cfg, tmp_path):
    """Its own 8 x 8 grid, from training to the attention maps."""
    torch.save(torchvision.models.resnet50().state_dict(), tmp_path / 'resnet50.pth')
    cfg = {**tiny_cfg, 'encoder': 'resnet50', 'encoder_weights': str(tmp_path / 'resnet50.pth'), 'epochs': 1,
           'encoded_image_size': None, 'decoder': 'extensions.DecoderWithBahdanauAttention'}
    train(cfg)
    model = load_model(f"{cfg['output_folder']}/BEST_checkpoint_DecoderWithBahdanauAttention.pth.tar", 'cpu')
    for caption in caption_split(model, 'TEST', beam_size=2, max_len=5):
        assert caption['alphas'].shape == (len(caption['caption']), 8, 8)


# --- Scheduled sampling ---


def test_a_teacher_forcing_of_one_is_plain_teacher_forcing():
    """In training: what people's words give, read one by one; and no random number is drawn."""
    decoder = make('bahdanau').train()
    decoder.dropout.p, decoder.teacher_forcing = 0.0, 1.0
    random = torch.get_rng_state()
    predictions = run(decoder)[0]
    assert torch.equal(torch.get_rng_state(), random)
    for i, length in enumerate(LENGTHS):
        state, memory = decoder.start(pictures()[i:i + 1])
        for t in range(length - 1):
            scores, state, _ = decoder.step(captions()[i:i + 1, t], state, memory)
            assert (scores[0] - predictions[i, t]).abs().max() < 1e-12
    decoder.teacher_forcing = 0.0
    assert (run(decoder)[0] - predictions).abs().max() > 1e-3


@pytest.mark.parametrize('ratio', [0.0, 0.3])
def test_the_ratio_is_that_of_true_words(ratio):
    decoder, fed = make('bahdanau').train(), []
    decoder.teacher_forcing = ratio
    original = decoder.read
    decoder.read = lambda words, state, memory: fed.append(words) or original(words, state, memory)
    # own words: always the last in the vocabulary, which no caption holds
    with torch.no_grad():
        decoder.fc.bias.fill_(-1e3)
        decoder.fc.bias[WORDS - 1] = 1e3
    torch.manual_seed(0)
    tokens = captions() % (WORDS - 2) + 1
    n = 300
    decoder(pictures()[:1].expand(n, -1, -1, -1), tokens[1:2].expand(n, -1), torch.full((n, 1), max(LENGTHS)))
    assert torch.equal(fed[0], tokens[1, 0].expand(n))  # <start> is always fed
    share = torch.stack([words == tokens[1, t] for t, words in enumerate(fed[1:], 1)]).double().mean().item()
    assert share == pytest.approx(ratio, abs=0.04)
    assert torch.stack([(words == tokens[1, t]) | (words == WORDS - 1) for t, words in enumerate(fed[1:], 1)]).all()
    decoder.eval()
    fed.clear()
    run(decoder)
    assert torch.equal(fed[2], captions()[torch.tensor([1, 4, 3, 0]), 2])  # never outside training


def test_own_words_are_drawn_from_the_softmax():
    torch.manual_seed(0)
    scores = torch.tensor([0.5, 0.3, 0.2]).log().expand(20_000, 3)
    of_few = extensions.true_or_own(torch.full((5,), 7), scores[:5], 0.25)
    if of_few.shape != (5,):
        pytest.fail(f'TODO 11, true_or_own: expected shape (5,) for 5 words; here it is {tuple(of_few.shape)}. '
                    'Likely cause: torch.multinomial gives (n, 1).', pytrace=False)
    drawn = extensions.true_or_own(torch.full((20_000,), 7), scores, 0.25)
    assert set(drawn.tolist()) <= {0, 1, 2, 7}
    same([(drawn == word).double().mean().item() for word in (0, 1, 2, 7)], [0.375, 0.225, 0.15, 0.25],
         'TODO 11, true_or_own: shares of words 0, 1, 2 and of the true one', '',
         'draw from the softmax of the scores, and take the true word with the probability teacher_forcing', {
             'teacher_forcing is the probability of the true word, not of the own one': [0.125, 0.075, 0.05, 0.75],
             'the best word is taken in place of one that is drawn': [0.75, 0, 0, 0.25],
             'all words are drawn alike, whatever their scores': [0.25, 0.25, 0.25, 0.25],
             'all rows take the true word: each needs a random number of its own': [0, 0, 0, 1],
             'no row takes the true word: each needs a random number of its own': [0.5, 0.3, 0.2, 0]}, tolerance=0.015)


def test_the_ratio_falls_over_the_epochs(tiny_cfg, monkeypatch):
    seen = []
    original = extensions.WordByWord.forward
    monkeypatch.setattr(extensions.WordByWord, 'forward', lambda self, *args: (
        seen.append(self.teacher_forcing) if self.training else None, original(self, *args))[1])
    train({**tiny_cfg, 'decoder': 'extensions.DecoderWithBahdanauAttention', 'teacher_forcing': (0.9, 0.5),
           'epochs': 3})
    assert sorted(set(seen), reverse=True) == pytest.approx([0.9, 0.7, 0.5])


def test_scheduled_sampling_is_refused_where_there_is_none(tiny_cfg):
    with pytest.raises(ValueError, match="'teacher_forcing' is 0.5, but DecoderWithAttention is always fed the true"):
        train({**tiny_cfg, 'teacher_forcing': 0.5})
    for value in (1.5, (1.0,), (1, 1, 1), 'no', True, (0.5, None)):
        with pytest.raises(ValueError, match="setting 'teacher_forcing'"):
            check_settings({'teacher_forcing': value})


# --- Scaled dot-product attention ---


def test_scaled_dot_product_attention_by_hand():
    attention = make('captionnet').attention
    cells, h = pictures().flatten(1, 2), torch.linspace(-1, 1, STATE, dtype=torch.float64)
    context, alpha = attention(cells, h.expand(len(cells), -1))
    e = linear_rows(attention.key, cells[3]) @ linear(attention.query, h)
    right, where = (e / math.sqrt(ATTENTION)).softmax(dim=0), 'TODO 10, ScaledDotProductAttention.forward'
    same(alpha[3], right, f'{where}: alpha', 'num_pixels', 'softmax over the keys of q k^T / sqrt(its channels)', {
        'q k^T is not divided by the root of the channels': e.softmax(dim=0),
        'q k^T is divided by the channels, not by their root': (e / ATTENTION).softmax(dim=0),
        'the softmax is over the queries, of which there is only one': torch.ones(PIXELS)}, 1e-12)
    same(context[3], right @ cells[3], f'{where}: context', 'encoder_dim', 'the values are the cells themselves',
         {'the softmax is over the queries, of which there is only one': cells[3].sum(dim=0)}, 1e-12)


def test_softmax_over_the_queries_would_look_everywhere_alike():
    """There is one query, so that slip gives every cell the weight 1: the context is the sum of all cells."""
    attention = make('captionnet').attention
    cells = pictures().flatten(1, 2)
    h = torch.linspace(-1, 1, len(LENGTHS) * STATE, dtype=torch.float64).view(-1, STATE)
    scores = attention.query(h).unsqueeze(1) @ attention.key(cells).transpose(1, 2) / math.sqrt(ATTENTION)
    slip = scores.softmax(dim=1)
    assert (slip == 1).all()
    context, alpha = attention(cells, h)
    assert (alpha.sum(dim=1) - 1).abs().max() < 1e-12
    assert (context - cells.sum(dim=1)).abs().max() > 1


def test_heads_look_at_parts_of_their_own():
    attention = make('two_heads').attention
    cells, h = pictures().flatten(1, 2), torch.linspace(-1, 1, STATE, dtype=torch.float64).expand(len(LENGTHS), -1)
    context, alpha = attention(cells, h)
    q, k = attention.query(h), attention.key(cells)

    def looked(parts, channels):
        weights = [torch.softmax((k[..., part] @ q[:, part].unsqueeze(2)).squeeze(2) / math.sqrt(2), dim=1)
                   for part in parts]
        seen = torch.zeros_like(context)
        for own, values in zip(weights, channels, strict=True):
            seen[:, values] = (own.unsqueeze(2) * cells[..., values]).sum(dim=1)
        return sum(weights) / 2, seen

    where = 'TODO 10, ScaledDotProductAttention.forward, two heads'
    right = looked((slice(0, 2), slice(2, 4)), (slice(0, 5), slice(5, 10)))
    every_second = looked((slice(0, 4, 2), slice(1, 4, 2)), (slice(0, 10, 2), slice(1, 10, 2)))
    for i, (name, found, shape) in enumerate((('alpha', alpha, 'batch_size, num_pixels'),
                                              ('context', context, 'batch_size, encoder_dim'))):
        same(found, right[i], f'{where}: {name}', shape, 'each head has its own part of q, k and v; alpha is the mean',
             {'a head has every second channel: unflatten into (heads, channels of a head), in this order':
              every_second[i]}, 1e-12)


def test_heads_that_do_not_fit():
    for heads, attention in *((heads, ATTENTION) for heads in (3, 4, 0, -1, True)), (5, 6):
        with pytest.raises(ValueError, match=f'heads is {heads}; it must be a whole number that divides attention_dim'):
            ScaledDotProductAttention(ENCODER, STATE, attention, heads=heads)


def test_captionnet_takes_features_with_the_channels_first():
    decoder = make('captionnet')
    vgg = pictures().flatten(1, 2).transpose(1, 2)
    assert vgg.shape == (len(LENGTHS), ENCODER, PIXELS)
    for one, flat, other in zip(run(decoder, vgg), run(decoder, vgg.transpose(1, 2)), run(decoder), strict=True):
        assert torch.equal(one, other) and torch.equal(flat, other)
    square = torch.linspace(0, 40, ENCODER ** 2, dtype=torch.float64).cos().view(1, ENCODER, ENCODER)
    assert torch.equal(decoder.cells(square), square)  # as many cells as channels: these come last
    for strange in (vgg[:, 1:], vgg.unsqueeze(1)):
        with pytest.raises(ValueError, match=f'neither the last nor, of three, the second number is .* {ENCODER}'):
            decoder.start(strange)


@torch.no_grad()
def test_captionnets_deep_output():
    decoder = make('captionnet')
    ((h,), (c,)), (cells, keys) = decoder.start(pictures()[1:2])
    (context,), _ = decoder.attention(cells, h.unsqueeze(0), keys)
    w, where = decoder.embedding.weight[3], 'TODO 10, CaptionNet'
    for name, one, layer in (('h', h, decoder.init_h), ('c', c, decoder.init_c)):
        first = linear(layer, pictures()[1].flatten(0, 1).mean(0))
        same(one, first.tanh(), f'{where}.start: {name}', 'decoder_dim', f'tanh(init_{name}(mean of the cells))',
             {'tanh is missing': first}, 1e-12)
    (new_h,), _ = decoder.decode_step(torch.cat([w, context]).unsqueeze(0), (h.unsqueeze(0), c.unsqueeze(0)))
    (scores,), ((found,), _), _ = decoder.step(torch.tensor([3]), (h.unsqueeze(0), c.unsqueeze(0)), (cells, keys))
    same(found, new_h, f'{where}.one_step: h', 'decoder_dim',
         'the LSTM reads [embedding; context], from the old (h, c)', tolerance=1e-12)

    def deep(state, activation=torch.tanh):
        return linear(decoder.fc, activation(linear(decoder.deep, torch.cat([state, context, w]))))

    same(scores, deep(new_h), f'{where}.word_scores: scores', 'vocab_size',
         'fc(dropout(tanh(deep([h; context; word]))))', {
        'tanh is missing': deep(new_h, lambda x: x),
        'the old h goes into the output, not the new one': deep(h)}, 1e-12)


# --- Cells ---


@torch.no_grad()
def test_cells_by_hand():
    x, h = (torch.linspace(-1, 1, size, dtype=torch.float64) for size in (EMBED, STATE))

    def parts(cell):
        wx = (cell.weight_ih @ x + cell.bias_ih).split(STATE)
        return wx, (cell.weight_hh @ h + cell.bias_hh).split(STATE)

    def found(decoder):
        state = decoder.one_step(x.unsqueeze(0), h.unsqueeze(0))
        if not isinstance(state, tuple):
            pytest.fail('TODO 8, DecoderWithCell.one_step: expected a tuple (h,); here a '
                        f'{type(state).__name__}. Likely cause: an RNN or GRU cell gives h alone: put it into a tuple.',
                        pytrace=False)
        return state[0][0]

    rnn, gru = make('rnn'), make('gru')
    (wx,), (wh,) = parts(rnn.decode_step)
    from_zeros = torch.tanh(wx + rnn.decode_step.bias_hh)
    same(found(rnn), torch.tanh(wx + wh), 'TODO 8, DecoderWithCell.one_step, RNN: h', 'decoder_dim',
         'h = tanh(W x + U h)', {'the old state is not handed to the cell': from_zeros}, 1e-12)
    (rx, zx, nx), (rh, zh, nh) = parts(gru.decode_step)
    r, z = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
    expected = (1 - z) * torch.tanh(nx + r * nh) + z * h
    same(found(gru), expected, 'TODO 8, DecoderWithCell.one_step, GRU: h', 'decoder_dim',
         'h = (1 - z) * n + z * h', tolerance=1e-12)
    lstm, c = make('lstm'), h.flip(0)

    def of_lstm(h, c):
        i, f, g, o = (lstm.decode_step.weight_ih @ x + lstm.decode_step.bias_ih + lstm.decode_step.weight_hh @ h
                      + lstm.decode_step.bias_hh).split(STATE)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    new_h, new_c = lstm.one_step(x.unsqueeze(0), h.unsqueeze(0), c.unsqueeze(0))
    for name, one, own, other, swapped in zip('hc', (new_h, new_c), of_lstm(h, c), of_lstm(h, c)[::-1], of_lstm(c, h),
                                              strict=True):
        same(one[0], own, f'TODO 8, DecoderWithCell.one_step, LSTM: {name}', 'decoder_dim',
             'the cell takes and gives (h, c)',
             {'h and c are returned in the wrong order': other, 'h and c go in in the wrong order': swapped}, 1e-12)


def test_the_lstm_cell_is_the_plain_decoder():
    one, other = make('lstm'), DecoderWithRNN(**SIZES).double().eval()
    other.load_state_dict(one.state_dict())
    predictions, _, lengths, sort_ind = other(pictures(), captions(), torch.tensor(LENGTHS).unsqueeze(1))
    predictions = predictions[sort_ind.argsort()] if torch.is_tensor(predictions) else predictions
    assert (run(one)[0] - predictions).abs().max() < 1e-12


def test_the_cell_without_options_and_its_batch_norm():
    decoder = DecoderWithCell(**SIZES).double().train()
    assert isinstance(decoder.decode_step, torch.nn.GRUCell)
    before = decoder.bn.running_mean.clone()
    run(decoder)
    assert not torch.equal(decoder.bn.running_mean, before)


def test_an_unknown_cell():
    with pytest.raises(ValueError, match="cell is 'gru'; it must be one of 'RNN', 'GRU', 'LSTM'"):
        DecoderWithCell(**SIZES, cell='gru')


# --- What all of them have in common ---


@pytest.mark.parametrize('kind', KINDS)
def test_teacher_forcing_equals_step_repeated(kind):
    decoder = make(kind)
    predictions, *alphas = run(decoder)
    for i, length in enumerate(LENGTHS):
        state, memory = decoder.start(pictures()[i:i + 1])
        for t in range(length - 1):
            scores, state, alpha = decoder.step(captions()[i:i + 1, t], state, memory)
            assert (scores[0] - predictions[i, t]).abs().max() < 1e-10
            assert not alphas or (alpha[0] - alphas[0][i, t]).abs().max() < 1e-10
        for values in (predictions, *alphas):
            assert (values[i, length - 1:] == 0).all()


@pytest.mark.parametrize('kind', KINDS)
@torch.no_grad()
def test_forward_and_steps_agree_in_single_precision(kind):
    decoder = make(kind).float()
    predictions, *alphas = run(decoder, pictures().float())
    for i, length in enumerate(LENGTHS):
        state, memory = decoder.start(pictures()[i:i + 1].float())
        for t in range(length - 1):
            scores, state, alpha = decoder.step(captions()[i:i + 1, t], state, memory)
            assert scores.dtype == torch.float32 and (scores[0] - predictions[i, t]).abs().max() < 1e-5
            assert not alphas or (alpha[0] - alphas[0][i, t]).abs().max() < 1e-5


@pytest.mark.parametrize('kind', KINDS)
def test_a_prediction_does_not_see_the_word_to_come(kind):
    decoder, tokens = make(kind), captions()
    predictions = run(decoder)[0]
    for t in range(1, max(LENGTHS) - 1):
        changed = tokens.clone()
        changed[:, t:] = changed[:, t:] % (WORDS - 1) + 1
        now = run(decoder, tokens=changed)[0]
        assert torch.equal(now[:, :t], predictions[:, :t])
        assert (now[1, t] - predictions[1, t]).abs().max() > 1e-6  # word t itself is read


@pytest.mark.parametrize('kind', ATTENDING)
def test_alphas_move_with_the_pixels(kind):
    decoder, order = make(kind), torch.tensor([3, 0, 5, 1, 4, 2])
    predictions, alphas = run(decoder)
    moved, alphas_moved = run(decoder, pictures().flatten(1, 2)[:, order].view_as(pictures()))
    assert (moved - predictions).abs().max() < 1e-10
    assert (alphas_moved - alphas[..., order]).abs().max() < 1e-10
    assert alphas.std(dim=2)[0, 0] > 1e-3  # not all alike, or this would show nothing


@pytest.mark.parametrize('kind', ATTENDING)
def test_alphas_are_weights(kind):
    _, alphas = run(make(kind))
    running = torch.arange(alphas.shape[1]) < torch.tensor(LENGTHS).unsqueeze(1) - 1
    sums = alphas.sum(dim=2)
    assert (alphas >= 0).all() and (sums[~running] == 0).all()
    if kind == 'adaptive':
        assert ((sums[running] > 0.05) & (sums[running] < 0.999)).all()  # the rest is beta
    else:
        assert (sums[running] - 1).abs().max() < 1e-10


@pytest.mark.parametrize('kind', KINDS)
def test_every_parameter_gets_a_gradient_and_the_picture_matters(kind):
    decoder = make(kind).train()
    for module in decoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    predictions, captions_, lengths, *alphas, sort_ind = decoder(
        pictures(), captions(), torch.tensor(LENGTHS).unsqueeze(1))
    loss, *_ = caption_loss((predictions, captions_, lengths, *alphas, sort_ind), 1.0)
    loss.backward()
    for name, parameter in decoder.named_parameters():
        if name not in ('init.bias', 'attention.key.bias'):  # batch norm or softmax takes it out again
            assert parameter.grad is not None and parameter.grad.abs().max() > 1e-9, name
    decoder.eval()
    assert (run(decoder)[0] - run(decoder, -pictures())[0]).abs().max() > 1e-3


@pytest.mark.parametrize('kind', KINDS)
def test_dropout_is_off_in_eval_and_on_in_training(kind):
    decoder = make(kind, dropout=0.5)
    assert torch.equal(run(decoder)[0], run(decoder)[0])
    decoder.train()
    assert not torch.equal(run(decoder)[0], run(decoder)[0])


@pytest.mark.parametrize('kind', KINDS)
@torch.no_grad()
def test_scores_of_beams_are_those_of_their_words(kind):
    """Each beam keeps its own state, as one tensor or two."""
    decoder, end = make(kind), WORDS - 1
    for layer in (decoder.embedding, decoder.decode_step, decoder.fc):  # so that beams overtake one another
        for weight in layer.parameters():
            weight *= 2
    decoder.fc.bias[end] -= 3  # or some say nothing
    word_map = {'<pad>': 0, **{f'word{i}': i for i in range(1, end - 2)}, '<unk>': end - 2, '<start>': end - 1,
                '<end>': end}
    for picture, found in enumerate(beam_search(decoder, pictures(), word_map, 4, 6)):
        state, memory = decoder.start(pictures()[picture:picture + 1])
        said, total = [*found.words, *[end] * found.finished], 0.0
        for word, then in zip([word_map['<start>'], *said], said, strict=False):
            scores, state, _ = decoder.step(torch.tensor([word]), state, memory)
            total += scores.log_softmax(dim=1)[0, then].item()
        assert found.score == pytest.approx(total, abs=1e-4)
        assert len(found.words) > 1


@pytest.mark.parametrize('kind', KINDS)
def test_five_captions_are_learned_by_heart(kind):
    torch.manual_seed(0)
    cls, options = KINDS[kind]
    decoder = cls(**{**SIZES, 'decoder_dim': 40, 'embed_dim': 20}, **options, dropout=0.0)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.02)
    for _ in range(200):
        loss, *_ = caption_loss(decoder(pictures().float(), captions(), torch.tensor(LENGTHS).unsqueeze(1)), 0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    word_map = {'<pad>': 0, '<unk>': 0, '<start>': int(captions()[0, 0]), '<end>': int(captions()[0, 4])}
    found = greedy_search(decoder, pictures()[:1].float(), word_map, 8)
    assert found[0].words == captions()[0, 1:4].tolist()
    assert len(beam_search(decoder, pictures().float(), word_map, 3, 6)) == len(LENGTHS)


# --- In the lab ---


@pytest.mark.parametrize(('decoder', 'options'), [
    ('DecoderWithSpatialAttention', {}), ('DecoderWithAdaptiveAttention', {}), ('DecoderWithBahdanauAttention', {}),
    ('CaptionNet', dict(heads=2)), ('DecoderWithCell', dict(cell='RNN')), ('DecoderWithCell', dict(cell='GRU')),
    ('DecoderWithCell', dict(cell='LSTM'))])
def test_trained_by_the_same_loop(tiny_cfg, decoder, options):
    cfg = {**tiny_cfg, 'decoder': f'extensions.{decoder}', 'decoder_options': options, 'epochs': 12, 'decoder_lr': 2e-2,
           'dropout': 0.1}
    history = train(cfg)
    assert history[-1]['train_loss'] < 0.65 * history[0]['train_loss']
    model = load_model(f"{cfg['output_folder']}/BEST_checkpoint_{decoder}.pth.tar", 'cpu')
    assert model.name == decoder and model.settings['decoder_options'] == options
    found = caption_split(model, 'TEST', beam_size=3, max_len=20)
    assert len(found) == 6
    for caption in found:
        shape = None if decoder == 'DecoderWithCell' else (len(caption['caption']), 4, 4)
        assert shape == (caption['alphas'].shape if caption['alphas'] is not None else None)


def test_a_decoder_without_its_file(tiny_cfg):
    with pytest.raises(ValueError, match="like 'my_decoder.MyDecoder', or 'extensions.CaptionNet', and there is no"):
        train({**tiny_cfg, 'decoder': 'CaptionNet'})


def test_options_that_a_decoder_does_not_have(tiny_cfg):
    with pytest.raises(ValueError, match="decoder_options has 'head', but CaptionNet takes 'heads' there"):
        train({**tiny_cfg, 'decoder': 'extensions.CaptionNet', 'decoder_options': dict(head=2)})
    with pytest.raises(ValueError, match="decoder_options has 'cell', but DecoderWithAttention takes nothing there"):
        train({**tiny_cfg, 'decoder_options': dict(cell='GRU')})


def test_a_killed_training_goes_on_the_same(tiny_cfg):
    cfg = {**tiny_cfg, 'decoder': 'extensions.DecoderWithBahdanauAttention', 'teacher_forcing': (0.9, 0.6), 'epochs': 3}
    straight = train(cfg)
    parts = {**cfg, 'output_folder': cfg['output_folder'] + '_parts'}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('solver.STOP_AFTER', 0)  # it stops before anything: then after one epoch
        assert train(parts) == []
    stopped = copy.deepcopy(parts)
    import solver
    real, epochs = solver.validate, []

    def validate(*args):
        epochs.append(1)
        if len(epochs) == 2:
            raise KeyboardInterrupt
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, 'validate', validate)
        with pytest.raises(KeyboardInterrupt):
            train(stopped)
    latest = f"{parts['output_folder']}/checkpoint_{parts['data_name']}_DecoderWithBahdanauAttention.pth.tar"
    resumed = train({**parts, 'checkpoint': latest})
    assert [{**epoch, 'seconds': 0} for epoch in resumed] == [{**epoch, 'seconds': 0} for epoch in straight]


def test_the_resnet_encoder_is_torchvisions_resnet_50(tmp_path):
    original = torchvision.models.resnet50(weights=None)
    with torch.no_grad():
        original.layer4[2].conv3.weight.fill_(0.25)
    torch.save(original.state_dict(), tmp_path / 'resnet50.pth')
    encoder = ResNetEncoder(weights=str(tmp_path / 'resnet50.pth')).eval()
    layers = {name: tuple(value.shape) for name, value in original.named_parameters() if not name.startswith('fc.')}
    assert sorted(layers.values()) == sorted(tuple(value.shape) for value in encoder.parameters())
    assert (list(encoder.parameters())[-3] == 0.25).all()
    with torch.no_grad():
        assert encoder(torch.zeros(1, 3, 96, 160, dtype=torch.uint8)).shape == (1, 3, 5, 2048)  # native, whatever size


def test_encoder_for_the_bahdanau_decoder_is_the_labs():
    assert isinstance(ResNetEncoder(weights=None), Encoder)


def test_other_heads_are_another_function(tiny_cfg, tmp_path, capsys):
    """Though the weights would fit."""
    cfg = {**tiny_cfg, 'decoder': 'extensions.CaptionNet', 'decoder_dim': 16, 'attention_dim': 8, 'epochs': 1}
    train(cfg)
    latest, best = checkpoint_paths({**DEFAULTS, **cfg})
    two = {**cfg, 'decoder_options': dict(heads=2), 'epochs': 2}
    with pytest.raises(ValueError, match=r"decoder_options=\{\}, and the settings say \{.heads.: 2\}: set them as"):
        train({**two, 'checkpoint': str(latest)})
    train({**two, 'start_from': str(best), 'output_folder': str(tmp_path / 'second')})
    assert "was trained with decoder_options={}; from here on they are {'heads': 2}." in capsys.readouterr().out
