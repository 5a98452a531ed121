"""The decoders of lab/more: each does what its paper's equations say, and trains by the same loop as others."""

import copy
import functools
import inspect
import traceback
from pathlib import Path

import pytest
import torch
import torchvision
from small import (
    ATTENTION,
    EMBED,
    ENCODER,
    KINDS,
    LENGTHS,
    PIXELS,
    READ,
    SIZES,
    STATE,
    WORDS,
    before_a_step,
    captions,
    looks,
    make,
    pictures,
    some_attention,
    some_weights,
    states,
)
from torch.nn.utils.rnn import pad_packed_sequence
from verdicts import as_array, by_hand, called, check, same

from datasets import CaptionDataset
from lab.decode.beam_search import beam_search, greedy_search
from lab.decode.evaluate import caption_split
from lab.more.adaptive import DecoderWithAdaptiveAttention
from lab.more.bahdanau import BahdanauAttention, DecoderWithBahdanauAttention, EncoderDecoder, ResNetEncoder
from lab.more.captionnet import ScaledDotProductAttention
from lab.more.cells import DecoderWithCell
from lab.more.decoder import Decoder, true_or_own
from lab.train.batches import Batches
from lab.train.checkpoints import checkpoint_paths, load_model
from lab.train.forward import true_words
from models import DecoderWithRNN, Encoder
from solver import DEFAULTS, caption_loss, check_settings, train

WHERE = {'spatial': 'TODO 6, DecoderWithSpatialAttention', 'adaptive': 'TODO 7, DecoderWithAdaptiveAttention',
         'bahdanau': 'TODO 9, DecoderWithBahdanauAttention', 'captionnet': 'TODO 10, CaptionNet',
         'two_heads': 'TODO 10, CaptionNet', **dict.fromkeys(('rnn', 'gru', 'lstm'), 'TODO 8, DecoderWithCell')}
ATTENDING = [name for name, (_, options) in KINDS.items() if 'attention_dim' in options]


def run(decoder, encoder_out=None, tokens=None, **options):
    """Predictions and alphas, padded, in the order in which the captions went in."""
    predictions, sorted_captions, lengths, *alphas, sort_ind = decoder(
        pictures() if encoder_out is None else encoder_out, captions() if tokens is None else tokens,
        torch.tensor(LENGTHS).unsqueeze(1), **options)
    assert lengths == sorted((n - 1 for n in LENGTHS), reverse=True)
    assert torch.equal(sorted_captions, (captions() if tokens is None else tokens)[sort_ind])
    back = sort_ind.argsort()
    return [values[back] for values in (pad_packed_sequence(predictions, batch_first=True)[0], *alphas)]


@functools.cache
def returned(kind, method):
    test_what_comes_back(kind, method)


@functools.cache
def parts_of(kind):
    """Stop at the first part that is wrong: what is made of it would blame another."""
    of_both = [lambda: test_layers_of_knowing_when_to_look('spatial', 6), test_how_spatial_attention_sees_the_picture,
               test_a_step_of_spatial_attention_around_attend]
    attention = test_heads_look_at_parts_of_their_own if kind == 'two_heads' else (
        test_scaled_dot_product_attention_by_hand)
    for part in {
            'spatial': [*of_both, lambda: test_attend_by_hand('spatial')],
            'adaptive': [*of_both, lambda: test_layers_of_knowing_when_to_look('adaptive', 7),
                         lambda: test_attend_by_hand('adaptive')],
            'bahdanau': [test_bahdanau_attention_with_elu, test_the_bahdanau_decoders_gate_and_first_state],
            'captionnet': [attention, test_captionnets_deep_output],
            'two_heads': [attention, test_captionnets_deep_output]}.get(kind, [lambda: test_cells_by_hand(kind)]):
        part()


def stand_in(owner, name, function):
    """In place of a method, however its caller hands over the arguments: by position or by name."""
    signature = inspect.signature(getattr(owner, name))

    def bound(*args, **named):
        arguments = signature.bind(*args, **named)
        arguments.apply_defaults()
        return function(*arguments.args)

    setattr(owner, name, bound)


# --- What comes back from each TODO, for two captions ---


def ones(*shape):
    return torch.ones(*shape, dtype=torch.float64)


def shapes(value):
    """'[2, 9]' of a tensor (or of that list), '([2, 9], [2, 6])' of a tuple, else the type's name."""
    if isinstance(value, tuple):
        return f"({', '.join(map(shapes, value))})"
    if isinstance(value, list) and value and isinstance(value[0], int):
        return str(value)
    return str(list(value.shape)) if torch.is_tensor(value) else type(value).__name__


GRID, LOOKS, KEYS, STATES = [2, PIXELS, ENCODER], [2, PIXELS], [2, PIXELS, ATTENTION], [2, STATE]
GRIDS = {'': pictures()[:2], ', its pixels in one row already': pictures()[:2].flatten(1, 2)}


def attend(decoder, *steps):
    return decoder.attend(ones(2, PIXELS, STATE), ones(*KEYS), ones(2, *steps, STATE), ones(2, *steps, 2 * EMBED),
                          ones(2, *steps, STATE), ones(2, *steps, STATE))


RETURNED = {  # kind, method (of the decoder or its attention) -> TODO, call, names and shapes of what comes back
    ('spatial', 'look'): (6, lambda d: d.look(ones(*GRID)), '(V, W_v of V, v_g)', (
        [2, PIXELS, STATE], KEYS, [2, EMBED])),
    ('spatial', 'attend'): (6, attend, '(c, alpha)', (STATES, LOOKS)),
    ('spatial', 'attend, 3 steps at once'): (6, lambda d: attend(d, 3), '(c, alpha)', ([2, 3, STATE], [2, 3, PIXELS])),
    ('spatial', 'one_step'): (6, lambda d: d.one_step(
        ones(2, EMBED), ones(2, PIXELS, STATE), ones(*KEYS), ones(2, EMBED), *[ones(*STATES)] * 2),
        '(predictions, alpha, h, m)', ([2, WORDS], LOOKS, STATES, STATES)),
    ('adaptive', 'sentinel'): (7, lambda d: d.sentinel(ones(2, 2 * EMBED), ones(*STATES), ones(*STATES)), 's', STATES),
    ('adaptive', 'attend'): (7, attend, '(c, alpha)', (STATES, LOOKS)),
    ('adaptive', 'attend, 3 steps at once'): (7, lambda d: attend(d, 3), '(c, alpha)', ([2, 3, STATE], [2, 3, PIXELS])),
    ('rnn', 'one_step'): (8, lambda d: d.one_step(ones(2, EMBED), ones(*STATES)), '(h,)', (STATES,)),
    ('gru', 'one_step'): (8, lambda d: d.one_step(ones(2, EMBED), ones(*STATES)), '(h,)', (STATES,)),
    ('lstm', 'one_step'): (8, lambda d: d.one_step(ones(2, EMBED), *[ones(*STATES)] * 2), '(h, c)', (STATES, STATES)),
    **{(kind, 'one_step, without a state'): (8, lambda d: d.one_step(ones(2, EMBED)), names, parts)
       for kind, names, parts in (('rnn', '(h,)', (STATES,)), ('gru', '(h,)', (STATES,)),
                                  ('lstm', '(h, c)', (STATES, STATES)))},
    ('bahdanau', 'attention.forward'): (9, lambda d: d.attention(ones(*GRID), ones(*STATES)), '(context, alpha)', (
        [2, ENCODER], LOOKS)),
    ('bahdanau', 'one_step'): (
        9, lambda d: d.one_step(ones(2, EMBED), ones(*GRID), ones(*KEYS), *[ones(*STATES)] * 2), '(alpha, h, c)', (
            LOOKS, STATES, STATES)),
    **{('bahdanau', f'start{of}'): (9, lambda d, grid=grid: d.start(grid), '((h, c), (pixels, keys))', (
        (STATES, STATES), (GRID, KEYS))) for of, grid in GRIDS.items()},
    **{(kind, 'attention.forward'): (10, lambda d: d.attention(ones(*GRID), ones(*STATES)), '(context, alpha)', (
        [2, ENCODER], LOOKS)) for kind in ('captionnet', 'two_heads')},
    ('captionnet', 'one_step'): (
        10, lambda d: d.one_step(ones(2, EMBED), ones(*GRID), ones(*KEYS), *[ones(*STATES)] * 2),
        '([h; context; embedding], alpha, h, c)', ([2, STATE + ENCODER + EMBED], LOOKS, STATES, STATES)),
    **{('captionnet', f'start{of}'): (10, lambda d, grid=grid: d.start(grid), '((h, c), (cells, keys))', (
        (STATES, STATES), (GRID, KEYS))) for of, grid in GRIDS.items()},
    ('captionnet', 'word_scores'): (10, lambda d: d.word_scores(ones(2, STATE + ENCODER + EMBED)), 'scores', [
        2, WORDS])}


@pytest.mark.parametrize(('kind', 'method'), RETURNED, ids=map(' '.join, RETURNED))
@torch.no_grad()
def test_what_comes_back(kind, method):
    todo, call, names, expected = RETURNED[kind, method]
    for number in range(6, todo + 1) if todo < 8 else ():  # a layer that is missing would blame the method
        test_layers_of_knowing_when_to_look({6: 'spatial', 7: 'adaptive'}[number], number)
    decoder = make(kind)
    if method == 'one_step' and hasattr(decoder, 'attention'):
        stand_in(decoder.attention, 'forward', some_attention)
    elif method == 'one_step' and hasattr(decoder, 'attend'):
        stand_in(decoder, 'attend', lambda V, keys, h, *_: (h, some_weights(V, h)))
    owner, method = (decoder.attention, 'forward') if 'attention.' in method else (decoder, method)
    where, stopped = f'TODO {todo}, {type(owner).__name__}.{method.partition(",")[0]}', None
    try:
        found = call(decoder)
    except Exception as error:
        if 'is still to do' in str(error):
            raise
        where += ''.join(method.partition(',')[1:])
        lines = [f' in line {frame.lineno} of {Path(frame.filename).name}' for frame in traceback.extract_tb(
            error.__traceback__) if Path(frame.filename).parent.name == 'more']
        stopped = f'it stops{"".join(lines[-1:])} with {type(error).__name__}: {error}'
    if stopped:
        pytest.fail(f'{where}: expected {names} of shapes {shapes(expected)}; here {stopped}', pytrace=False)
    if isinstance(found, list) and method != 'start' and todo != 8:
        found = tuple(found)  # who calls it takes it apart at once
    where += ''.join(method.partition(',')[1:])
    check(not isinstance(found, list), where, f'{names} of shapes {shapes(expected)}', 'a list',
          'square brackets: a tuple is expected')
    check(shapes(found) == shapes(expected), where, f'{names} of shapes {shapes(expected)}', shapes(found),
          'something is not returned, or in another order, or a dimension is not where it should be')


# --- Knowing when to look ---


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
            for name in wrong) + '. Likely cause: in and out exchanged, bias=False missing or out of place, or another '
            'kind of layer.', pytrace=False)
    same(make(kind, dropout=0.25).dropout.p, 0.25, f'TODO {todo}, {KINDS[kind][0].__name__}.__init__: dropout.p', '',
         'nn.Dropout(dropout)', {'nn.Dropout without its argument': 0.5})


@torch.no_grad()
def test_how_spatial_attention_sees_the_picture():
    returned('spatial', 'look')
    decoder, pixels = make('spatial'), pictures()[1].flatten(0, 1)
    where = 'TODO 6, DecoderWithSpatialAttention.look'
    (V,), (keys,), (v_g,) = called(where, decoder.look, encoder_out=pixels.unsqueeze(0))
    right = by_hand('look')
    same(V, right['V'], f'{where}: V', 'num_pixels, decoder_dim', 'V = ReLU(W_a a_i)')
    same(keys, right['keys'], f'{where}: W_v of V', 'num_pixels, attention_dim', 'W_v of V')
    same(v_g, right['v_g'], f'{where}: v_g', 'embed_dim', 'v_g = ReLU(W_b mean(a))')


@torch.no_grad()
def test_the_adaptive_decoders_sentinel_by_hand():
    returned('adaptive', 'sentinel')
    given, where = looks(), 'TODO 7, DecoderWithAdaptiveAttention.sentinel'
    s = called(where, make('adaptive').sentinel, **{name: given[name] for name in ('x', 'h_before', 'tanh_m')})
    same(s, by_hand('sentinel')['s'], f'{where}: s', 'batch_size, steps, decoder_dim',
         's = g * tanh_m, with g = sigmoid(W_x x + W_h h_before)')


@pytest.mark.parametrize('kind', ['spatial', 'adaptive'])
@torch.no_grad()
def test_attend_by_hand(kind):
    """Of one step, and of three at once."""
    if kind == 'adaptive':
        test_the_adaptive_decoders_sentinel_by_hand()
    returned(kind, 'attend')
    decoder, right, where = make(kind), by_hand('attended', kind), f'{WHERE[kind]}.attend'
    cause = dict(alpha='softmax of self.score over the pixels, the last dimension', c='weighted_sum(alpha, V)')
    if kind == 'adaptive':
        cause = dict(alpha='the pixels\' part of the softmax over their scores and, last, the sentinel\'s',
                     c='beta s + weighted_sum(the others, V)')
    for steps, of, names in (0, '', 'batch_size'), (slice(None), ', 3 steps at once', 'batch_size, steps'):
        if of:
            returned(kind, 'attend, 3 steps at once')
        given = {name: value if name in ('V', 'keys') else value[:, steps] for name, value in looks().items()}
        found = dict(zip(('c', 'alpha'), called(where, decoder.attend, **given), strict=True))
        for name, size in (('alpha', 'num_pixels'), ('c', 'decoder_dim')):
            value = right[name]
            mistakes = {sentence: as_array(wrong)[:, steps] for sentence, wrong in value.mistakes.items()}
            same(found[name], as_array(value.right)[:, steps], f'{where}{of}: {name}', f'{names}, {size}', cause[name],
                 mistakes)


@torch.no_grad()
def test_a_step_of_spatial_attention_around_attend():
    """The old hidden state and the new cell state go to attend: the sentinel of the adaptive decoder lives on them."""
    returned('spatial', 'one_step')
    decoder, given, seen, where = make('spatial'), before_a_step(), [], 'TODO 6, DecoderWithSpatialAttention.one_step'

    def attend(V, keys, h, x, h_before, tanh_m):
        seen.append(dict(x=x, h=h, h_before=h_before, tanh_m=tanh_m, V=V, keys=keys))
        alpha = some_weights(V, h)
        return (alpha.unsqueeze(2) * V).sum(dim=1), alpha

    stand_in(decoder, 'attend', attend)
    scores, alpha, h, m = called(where, decoder.one_step, **given)
    check(seen, where, 'a call of self.attend', 'none', 'c and alpha are computed in one_step itself')
    the_same_twice(where, lambda: decoder.one_step(*given.values())[0])
    right, seen = by_hand('step_around_attend'), seen[-1]
    same(seen['x'], right['x'], f'{where}: x', 'batch_size, 2 embed_dim', '[w_t; v_g]')
    same(h, right['h'], f'{where}: h', 'batch_size, decoder_dim',
         'the LSTM on x from (h, m); one_step returns predictions, alpha, h, m, in this order')
    same(m, right['m'], f'{where}: m', 'batch_size, decoder_dim', 'the LSTM on x from (h, m); first h, then m')
    same(seen['h'], h, f'{where}, what attend gets: h', 'batch_size, decoder_dim', 'the new hidden state', {
        'the new hidden state looks (eq. 6), not the old one': given['h']}, 1e-12)
    for name, cause in (('h_before', 'the old hidden state'), ('tanh_m', 'tanh of the new cell state')):
        same(seen[name], right[name], f'{where}, what attend gets: {name}', 'batch_size, decoder_dim', cause)
    for name in ('V', 'keys'):
        same(seen[name], given[name], f'{where}, what attend gets: {name}', '', f'{name} as one_step gets it')
    same(alpha, right['alpha'], f'{where}: alpha', 'batch_size, num_pixels', 'it is what attend gives')
    same(scores, right['scores'], f'{where}: predictions', 'batch_size, vocab_size',
         'fc(dropout(c + h)), without softmax')


def the_same_twice(where, call):
    check(torch.equal(call(), call()), f'{where}, the same twice in eval()', 'the same', 'others',
          'dropout as F.dropout without self.training, not self.dropout')


@pytest.mark.parametrize(('kind', 'todo'), [('spatial', 6), ('adaptive', 7)])
@torch.no_grad()
def test_a_step_of_knowing_when_to_look(kind, todo):
    """A step from a state that is not zero, beside another picture, from another state."""
    parts_of(kind)
    decoder, (h, m) = make(kind), states()
    (_, scores), ((_, new_h), (_, new_m)), (_, alpha) = decoder.step(
        torch.tensor([2, READ]), (torch.stack([m, h]), torch.stack([h, m])), decoder.start(pictures()[:2])[1])
    right, where = by_hand('knowing_when_to_look', kind), f'TODO {todo}, {type(decoder).__name__}'
    cause = 'each part is right for other inputs: something counts on their values or sizes'
    for name, found, size in (('h', new_h, 'decoder_dim'), ('m', new_m, 'decoder_dim'), ('alpha', alpha, 'num_pixels'),
                              ('scores', scores, 'vocab_size')):
        same(found, right[name], f'{where}, a step: {name}', size, cause)


@pytest.mark.parametrize('kind', KINDS)
def test_dropout_is_before_the_vocabulary_layer_and_nowhere_else(kind):
    """With all entries dropped, the bias is what remains of the scores; state and alphas are as without."""
    parts_of(kind)
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
    where = {'captionnet': f'{WHERE["captionnet"]}.word_scores', 'two_heads': f'{WHERE["captionnet"]}.word_scores',
             **dict.fromkeys(('spatial', 'adaptive'), f'{WHERE["spatial"]}.one_step')}.get(kind, WHERE[kind])
    same(scores[0], decoder.fc.bias, f'{where}, a step with dropout=1: scores', 'vocab_size', cause)
    predictions, *dropped_alphas = run(decoder)
    for i, length in enumerate(LENGTHS):
        same(predictions[i, :length - 1], decoder.fc.bias.expand(length - 1, -1),
             f'{WHERE[kind]}.forward with dropout=1: predictions', 'steps, vocab_size', cause)
    for one, other in zip([*dropped_state, *dropped_alpha, *dropped_alphas], [*state, *alpha, *alphas], strict=True):
        if one is not None:
            same(one, other, f'{WHERE[kind]} with dropout=1: state and alphas', '', 'there is dropout in another place')


@pytest.mark.parametrize('kind', KINDS)
@torch.no_grad()
def test_what_is_dropped_goes_into_the_vocabulary_layer_and_nothing_else_is(kind):
    """With something else in the place of dropout: it is called once, and what it gives is what fc gets."""
    parts_of(kind)
    if kind == 'adaptive':
        test_what_is_dropped_goes_into_the_vocabulary_layer_and_nothing_else_is('spatial')
    decoder, given = make(kind, dropout=0.25), []

    def instead(values, p=0.5, training=True, inplace=False):
        if training:
            given.append(values.clone())
            values = values * torch.linspace(-1, 2, values.shape[-1], dtype=values.dtype) + 1
        return values

    start = decoder.start(pictures()[1:2])
    right = decoder.step(torch.tensor([READ]), *start)[0]
    decoder.train()
    for module in decoder.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.eval()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, 'dropout', instead)
        scores, *_ = decoder.step(torch.tensor([READ]), *start)
    where = {'captionnet': f'{WHERE["captionnet"]}.word_scores', 'two_heads': f'{WHERE["captionnet"]}.word_scores',
             'spatial': f'{WHERE["spatial"]}.one_step', 'adaptive': f'{WHERE["adaptive"]}.attend'}
    where = where.get(kind, WHERE[kind])
    check(len(given) == 1, f'{where}, a step in train()', 'one dropout, of what goes into fc', f'{len(given)} of them',
          'dropout in another place as well, or none')
    cause = 'the dropout is not the last thing before fc'
    same(decoder.fc(given[0]), right, f'{where}, fc of what goes into the dropout: scores', '1, vocab_size', cause)
    same(scores, decoder.fc(instead(given[0])), f'{where}, fc of what comes out of the dropout: scores',
         '1, vocab_size', cause)


@pytest.mark.parametrize('kind', KINDS)
def test_gradients_are_those_of_finite_differences(kind):
    """Of the picture and of each parameter, along a direction: nothing on the way is detached."""
    parts_of(kind)
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
    parts_of(kind)
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
                    check(all(part.requires_grad for part in state), f'{WHERE["spatial"]}.one_step: new h and m',
                          'a gradient', 'none', 'detach(), data or no_grad()')
                    predictions.append(scores.sin().sum())
                    alphas.append(alpha.sin().sum())
            predictions, alphas = torch.stack(predictions), torch.stack(alphas)
        total = predictions.sin().sum() + alphas.sin().sum() if at_once else predictions.sum() + alphas.sum()
        found.append(torch.autograd.grad(total, [encoder_out, *decoder.parameters()]))
    names = ['the picture', *(name for name, _ in decoder.named_parameters())]
    for name, one, other in zip(names, *found, strict=True):
        where = f'TODO {todo}, {type(decoder).__name__}: gradient of {name}'
        check(other.abs().max() > 1e-6, where, 'one', 'nothing but zeros', 'something is detached on the way')
        same(one, other, where, '', 'attend does not work with a dimension of steps as without', tolerance=1e-8)


def looked(where, attention, cells, *keys):
    """Context and alpha of :func:`small.states`' first."""
    h = states()[0].repeat(len(cells), 1)
    return called(where, attention, cells=cells, h=h, **(dict(keys=keys[0]) if keys else {}))


def same_with_keys(where, found, attention, cells, keys):
    """With the keys handed over, and with those of the pixels in another order."""
    cause = 'the keys that are handed over must be taken as they are'
    for name, one, other in zip(('context', 'alpha'), found, looked(where, attention, cells, keys), strict=True):
        same(other, one, f'{where}, with keys: {name}', '', cause)
    _, alpha = looked(where, attention, cells, keys.flip(1))
    same(alpha, found[1].flip(1), f'{where}, with other keys: alpha', 'batch_size, num_pixels', cause, {
        'keys are made anew, though some are handed over': found[1]})


def attention_given_keys(decoder, where, keys):
    """``some_attention`` in the place of the decoder's, which must be handed the picture's keys."""
    def attention(cells, h, given=None):
        check(torch.is_tensor(given) and torch.equal(given, keys), where, 'that its attention is handed the keys',
              'none' if given is None else 'others', 'without them it makes them anew at every word')
        return some_attention(cells, h)

    stand_in(decoder.attention, 'forward', attention)


@pytest.mark.parametrize('gate', ['open', 'closed'])
def test_the_adaptive_decoders_sentinel_is_from_the_new_cell_state_in_training_too(gate):
    """h is o * tanh(m): behind a closed output gate the cell state can't be had from h."""
    parts_of('adaptive')
    decoder = make('adaptive')
    if gate == 'closed':
        with torch.no_grad():
            decoder.decode_step.bias_ih.chunk(4)[3].fill_(-1000)
    seen, attend = [], decoder.attend
    decoder.attend = lambda *args: (seen.append(args[-1]), attend(*args))[1]
    run(decoder)
    del decoder.attend
    longest = LENGTHS.index(max(LENGTHS))
    state, memory = decoder.start(pictures()[longest:longest + 1])
    for t in range(max(LENGTHS) - 1):
        _, state, _ = decoder.step(captions()[longest:longest + 1, t], state, memory)
        assert state[0].any() == (gate == 'open') and state[1].any()
        same(seen[0][0, t], torch.tanh(state[1][0]), f'TODO 6, {type(decoder).__name__}.one_step: tanh(m) at step {t}',
             'decoder_dim', 'one_step goes on from another state than forward')  # the longest caption comes first


def test_the_adaptive_decoder_in_half_precision():
    parts_of('adaptive')
    decoder, found = make('adaptive').float(), []
    for bf16 in (False, True):
        with torch.autocast('cpu', torch.bfloat16, enabled=bf16):
            packed, _, _, alphas, _ = decoder(pictures().float(), captions(), torch.tensor(LENGTHS).unsqueeze(1))
        found.append((packed.data, alphas))
    for whole, half in zip(*found, strict=True):
        assert 0 < (whole - half).abs().max() < 0.05 * whole.abs().max()


def test_large_weights_of_the_adaptive_decoder_are_not_clipped(tiny_cfg):
    """``grad_clip`` clips gradients: a weight may be as large as it likes."""
    parts_of('adaptive')
    cfg = {**tiny_cfg, 'decoder': 'lab.more.adaptive.DecoderWithAdaptiveAttention', 'grad_clip': 0.1, 'epochs': 1}
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


@torch.no_grad()
def test_bahdanau_attention_with_elu():
    returned('bahdanau', 'attention.forward')
    attention, cells = make('bahdanau').attention, pictures().flatten(1, 2)
    right, where = by_hand('additive_attention'), 'TODO 9, BahdanauAttention.forward'
    assert isinstance(attention, BahdanauAttention)
    context, alpha = looked(where, attention, cells)
    same(alpha[2], right['alpha'], f'{where}: alpha', 'num_pixels',
         'softmax over the pixels of v(ELU(W(h) + U(a_i)))')
    same(context[2], right['context'], f'{where}: context', 'encoder_dim', 'the sum over the pixels of alpha_i a_i')
    same_with_keys(where, (context, alpha), attention, cells, attention.U(cells))


@torch.no_grad()
def test_the_bahdanau_decoders_gate_and_first_state():
    for of in GRIDS:
        returned('bahdanau', f'start{of}')
    decoder, where = make('bahdanau'), 'TODO 9, DecoderWithBahdanauAttention'
    ((h,), (c,)), memory = decoder.start(pictures()[1:2])
    right = by_hand('first_state', 'bahdanau')
    for name, one in (('h', h), ('c', c)):
        same(one, right[name], f'{where}.start: {name}', 'decoder_dim', f'tanh(init_{name}(mean of the pixels))')
    same(memory[0][0], pictures()[1].flatten(0, 1), f'{where}.start: pixels', 'num_pixels, encoder_dim',
         'the pixels in one row, as they are')
    same(memory[1][0], by_hand('keys_of_the_pixels')['keys'], f'{where}.start: keys', 'num_pixels, attention_dim',
         'the keys are U of the pixels')
    returned('bahdanau', 'one_step')
    attention_given_keys(decoder, f'{where}.one_step', memory[1])  # so that this is about what is around it
    h, c = (state.unsqueeze(0) for state in states())
    (alpha,), (new_h,), (new_c,) = called(
        f'{where}.one_step', decoder.one_step, embeddings=decoder.embedding(torch.tensor([READ])),
        encoder_out=memory[0], keys=memory[1], h=h, c=c)
    right = by_hand('gated_step')
    same(alpha, right['alpha'], f'{where}.one_step: alpha', 'num_pixels', 'it is what the attention gives')
    for name, one in (('h', new_h), ('c', new_c)):
        same(one, right[name], f'{where}.one_step: {name}', 'decoder_dim',
             'the LSTM reads [embedding; gated context], from the old (h, c)')


def test_the_whole_bahdanau_model():
    parts_of('bahdanau')
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
    parts_of('bahdanau')
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


@pytest.mark.slow
def test_resnet_50_and_the_bahdanau_decoder_by_settings(tiny_cfg, tmp_path):
    """Its own 8 x 8 grid, from training to the attention maps."""
    parts_of('bahdanau')
    torch.save(torchvision.models.resnet50().state_dict(), tmp_path / 'resnet50.pth')
    cfg = {**tiny_cfg, 'encoder': 'resnet50', 'encoder_weights': str(tmp_path / 'resnet50.pth'), 'epochs': 1,
           'encoded_image_size': None, 'decoder': 'lab.more.bahdanau.DecoderWithBahdanauAttention'}
    train(cfg)
    model = load_model(f"{cfg['output_folder']}/BEST_checkpoint_DecoderWithBahdanauAttention.pth.tar", 'cpu')
    for caption in caption_split(model, 'TEST', beam_size=2, max_len=5):
        assert caption['alphas'].shape == (len(caption['caption']), 8, 8)


# --- Scheduled sampling ---


def test_a_teacher_forcing_of_one_is_plain_teacher_forcing():
    """In training: what people's words give, read one by one; and no random number is drawn."""
    parts_of('bahdanau')
    own_words()
    decoder = make('bahdanau').train()
    decoder.dropout.p = 0.0
    random = torch.get_rng_state()
    predictions = run(decoder)[0]
    assert torch.equal(torch.get_rng_state(), random)
    for i, length in enumerate(LENGTHS):
        state, memory = decoder.start(pictures()[i:i + 1])
        for t in range(length - 1):
            scores, state, _ = decoder.step(captions()[i:i + 1, t], state, memory)
            assert (scores[0] - predictions[i, t]).abs().max() < 1e-12
    check((run(decoder, teacher_forcing=0.0)[0] - predictions).abs().max() > 1e-3, 'TODO 11, true_or_own',
          'other predictions with teacher_forcing=0 than with 1', 'the same', 'own words are never taken')


def own_words():
    """What true_or_own gives can be fed, or what is fed with it stops."""
    where = 'TODO 11, true_or_own'
    found = called(where, lambda words, scores: true_or_own(words, scores, 0.25),
                   true_words=torch.full((50,), 2), scores=torch.tensor([0.5, 0.3, 0.2]).log().repeat(50, 1))
    kind = type(found).__name__
    check(torch.is_tensor(found), where, 'a tensor of 50 words', f'{kind}', 'the return is missing')
    check(found.shape == (50,), where, 'shape (50,) for 50 words', f'it is {tuple(found.shape)}',
          'torch.multinomial gives (n, 1)')
    check(found.dtype == torch.long, where, 'words, torch.int64', f'{found.dtype}', 'they are indices, as true_words')


@pytest.mark.parametrize('ratio', [0.0, 0.3])
def test_the_ratio_is_that_of_true_words(ratio):
    parts_of('bahdanau')
    own_words()
    decoder, fed, where = make('bahdanau').train(), [], 'TODO 11, true_or_own'
    original = decoder.step
    decoder.step = lambda words, state, memory: fed.append(words) or original(words, state, memory)
    # own words: always the last in the vocabulary, which no caption holds
    with torch.no_grad():
        decoder.fc.bias.fill_(-1e3)
        decoder.fc.bias[WORDS - 1] = 1e3
    torch.manual_seed(0)
    tokens = captions() % (WORDS - 2) + 1
    n = 300
    decoder(pictures()[:1].expand(n, -1, -1, -1), tokens[1:2].expand(n, -1), torch.full((n, 1), max(LENGTHS)),
            teacher_forcing=ratio)
    assert torch.equal(fed[0], tokens[1, 0].expand(n))  # <start> is always fed
    share = torch.stack([words == tokens[1, t] for t, words in enumerate(fed[1:], 1)]).double().mean().item()
    same(share, ratio, f'{where}: share of true words with teacher_forcing={ratio}', '',
         'a random number for each row; where it is below teacher_forcing, the true word', {
             'it is the share of own words': 1 - ratio}, tolerance=0.03)
    check(torch.stack([(words == tokens[1, t]) | (words == WORDS - 1) for t, words in enumerate(fed[1:], 1)]).all(),
          where, 'the true word or the one word that has a score', 'another',
          'the own word is not drawn from the softmax of the scores')


def test_own_words_are_drawn_from_the_softmax():
    """Of each row its own: every other one has other scores, and another true word. Known mistakes as shares of own
    words (a row of each kind, five words), and what share of rows takes the true one."""
    own_words()
    torch.manual_seed(0)
    where, kinds = 'TODO 11, true_or_own', torch.tensor([[0.5, 0.3, 0.2, 0, 0], [0.1, 0.2, 0.7, 0, 0]])
    drawn = true_or_own(torch.tensor([3, 4]).repeat(20_000), kinds.log().clamp_min(-1e4).repeat(20_000, 1), 0.25)
    shares = torch.stack([torch.bincount(drawn[kind::2], minlength=5) / 20_000 for kind in (0, 1)])

    def fed(own, of_true=0.25, true_words=(3, 4)):
        return (1 - of_true) * own + of_true * torch.eye(5)[list(true_words)]

    check(shares.shape == (2, 5) and shares[0, 4] == shares[1, 3] == 0, where, 'the true word of a row in this row',
          'that of another', 'the rows get mixed')
    best = torch.eye(5)[[0, 2]]
    same(shares, fed(kinds), f'{where}: shares of the words that are fed', 'kind of row, word',
         'draw from the softmax of the row\'s scores, and take the true word with the probability teacher_forcing', {
             'teacher_forcing is the probability of the true word, not of the own one': fed(kinds, 0.75),
             'the best word is taken in place of one that is drawn': fed(best),
             'all words are drawn alike, whatever their scores': fed(torch.full((2, 5), 0.2)),
             'a row gets the word of another row: draw one for each, and keep them in order': fed(kinds.flip(0)),
             'a row gets the word of any row: draw one for each, and keep them in order': fed(
                 kinds.mean(dim=0).expand(2, 5)),
             'all words are drawn from the scores of the first row': fed(kinds[[0, 0]]),
             'all rows take the true word: each needs a random number of its own': fed(kinds, 1.0),
             'no row takes the true word: each needs a random number of its own': fed(kinds, 0.0)}, tolerance=0.015)


def test_the_ratio_falls_over_the_epochs(tiny_cfg, monkeypatch):
    parts_of('bahdanau')
    own_words()
    seen = []
    original = Decoder.forward
    monkeypatch.setattr(Decoder, 'forward', lambda self, *args, teacher_forcing=1.0: (
        seen.append(teacher_forcing) if self.training else None, original(self, *args, teacher_forcing))[1])
    train({**tiny_cfg, 'decoder': 'lab.more.bahdanau.DecoderWithBahdanauAttention', 'teacher_forcing': (0.9, 0.5),
           'epochs': 3})
    assert sorted(set(seen), reverse=True) == pytest.approx([0.9, 0.7, 0.5])


def test_scheduled_sampling_is_refused_where_there_is_none(tiny_cfg):
    with pytest.raises(ValueError, match="'teacher_forcing' is 0.5, but DecoderWithAttention is always fed the true"):
        train({**tiny_cfg, 'teacher_forcing': 0.5})
    for value in (1.5, (1.0,), (1, 1, 1), 'no', True, (0.5, None)):
        with pytest.raises(ValueError, match="setting 'teacher_forcing'"):
            check_settings({'teacher_forcing': value})


# --- Scaled dot-product attention ---


@torch.no_grad()
def test_scaled_dot_product_attention_by_hand():
    returned('captionnet', 'attention.forward')
    attention, cells = make('captionnet').attention, pictures().flatten(1, 2)
    right, where = by_hand('scaled_dot_product'), 'TODO 10, ScaledDotProductAttention.forward'
    context, alpha = looked(where, attention, cells)
    same(alpha[3], right['alpha'], f'{where}: alpha', 'num_pixels',
         'softmax over the keys of q k^T / sqrt(its channels)')
    same(context[3], right['context'], f'{where}: context', 'encoder_dim', 'the values are the cells themselves')
    same_with_keys(where, (context, alpha), attention, cells, attention.key(cells))


@torch.no_grad()
def test_heads_look_at_parts_of_their_own():
    returned('two_heads', 'attention.forward')
    attention, cells = make('two_heads').attention, pictures().flatten(1, 2)
    right, where = by_hand('two_heads'), 'TODO 10, ScaledDotProductAttention.forward, two heads'
    context, alpha = looked(where, attention, cells)
    for name, found, shape in (('alpha', alpha, 'batch_size, num_pixels'),
                               ('context', context, 'batch_size, encoder_dim')):
        same(found, right[name], f'{where}: {name}', shape,
             'each head has its own part of q, k and v; alpha is the mean')
    same_with_keys(where, (context, alpha), attention, cells, attention.key(cells))


def test_heads_that_do_not_fit():
    for heads, attention in *((heads, ATTENTION) for heads in (3, 4, 0, -1, True)), (5, 6):
        with pytest.raises(ValueError, match=f'heads is {heads}; it must be a whole number that divides attention_dim'):
            ScaledDotProductAttention(ENCODER, STATE, attention, heads=heads)


def test_captionnet_takes_features_with_the_channels_first():
    parts_of('captionnet')
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
    for method in *(f'start{of}' for of in GRIDS), 'one_step', 'word_scores':
        returned('captionnet', method)
    decoder, where = make('captionnet'), 'TODO 10, CaptionNet'
    ((h,), (c,)), memory = decoder.start(pictures()[1:2])
    right = by_hand('first_state', 'captionnet')
    for name, one in (('h', h), ('c', c)):
        same(one, right[name], f'{where}.start: {name}', 'decoder_dim', f'tanh(init_{name}(mean of the cells))')
    cells = pictures()[1:2].flatten(1, 2)
    same(memory[0], cells, f'{where}.start: cells', '1, num_cells, encoder_dim', 'self.cells of the grid')
    same(memory[1], decoder.attention.key(cells), f'{where}.start: keys', '1, num_cells, attention_dim',
         'the attention\'s keys of the cells')
    attention_given_keys(decoder, f'{where}.one_step', memory[1])
    h, c = (state.unsqueeze(0) for state in states())
    (output,), (alpha,), (new_h,), (new_c,) = called(
        f'{where}.one_step', decoder.one_step, embeddings=decoder.embedding(torch.tensor([READ])), cells=cells,
        keys=memory[1], h=h, c=c)
    right = by_hand('deep_output')
    same(alpha, right['alpha'], f'{where}.one_step: alpha', 'num_cells', 'it is what the attention gives')
    for name, one in (('h', new_h), ('c', new_c)):
        same(one, right[name], f'{where}.one_step: {name}', 'decoder_dim',
             'the LSTM reads [embedding; context], from the old (h, c)')
    same(output, right['output'], f'{where}.one_step: [h; context; embedding]', '', 'the new h, context, embedding')
    output, where = output.unsqueeze(0), f'{where}.word_scores'
    the_same_twice(where, lambda: decoder.word_scores(output))
    scores, = called(where, decoder.word_scores, output=output)
    same(scores, right['scores'], f'{where}: scores', 'vocab_size', 'fc(dropout(tanh(deep([h; context; word]))))')


# --- Cells ---


@pytest.mark.parametrize('kind', ['rnn', 'gru', 'lstm'])
@torch.no_grad()
def test_cells_by_hand(kind):
    for method in 'one_step', 'one_step, without a state':
        returned(kind, method)
    decoder, right, where = make(kind), by_hand('cell_step', kind), 'TODO 8, DecoderWithCell.one_step'
    x = torch.linspace(-1, 1, EMBED, dtype=torch.float64).unsqueeze(0)
    found = called(where, decoder.one_step, embeddings=x, **{
        name: state.unsqueeze(0) for name, state in zip(right, states(), strict=False)})
    for (name, value), (one,) in zip(right.items(), found, strict=True):
        same(one, value, f'{where}, {kind.upper()}: {name}', 'decoder_dim', {
            'rnn': 'h = tanh(W x + U h)', 'gru': 'h = (1 - z) * n + z * h',
            'lstm': 'the cell takes and gives (h, c)'}[kind])
    zeros = [torch.zeros(1, STATE, dtype=x.dtype)] * len(right)
    for name, one, other in zip(right, decoder.one_step(x), decoder.one_step(x, *zeros), strict=True):
        same(one, other, f'{where}, {kind.upper()}, without a state: {name}', '1, decoder_dim', 'it starts from zeros')


def test_the_lstm_cell_is_the_plain_decoder():
    parts_of('lstm')
    one, other = make('lstm'), DecoderWithRNN(**SIZES).double().eval()
    other.load_state_dict(one.state_dict())
    predictions, _, lengths, sort_ind = other(pictures(), captions(), torch.tensor(LENGTHS).unsqueeze(1))
    predictions = predictions[sort_ind.argsort()] if torch.is_tensor(predictions) else predictions
    same(run(one)[0], predictions, f'{WHERE["lstm"]}, an LSTM: predictions', 'batch_size, steps, vocab_size',
         'without a state the cell starts from zeros', tolerance=1e-12)


def test_the_cell_without_options_and_its_batch_norm():
    parts_of('gru')
    decoder = DecoderWithCell(**SIZES).double().train()
    assert isinstance(decoder.decode_step, torch.nn.GRUCell)
    before = decoder.bn.running_mean.clone()
    run(decoder)
    assert not torch.equal(decoder.bn.running_mean, before)


def test_an_unknown_cell():
    with pytest.raises(ValueError, match="cell is 'gru'; it must be one of 'RNN', 'GRU', 'LSTM'"):
        DecoderWithCell(**SIZES, cell='gru')


# --- What all of them have in common ---


def agree(kind, dtype, tolerance):
    """``forward``, of captions of all lengths at once, and ``step``, word by word."""
    parts_of(kind)
    decoder, encoder_out = make(kind).to(dtype), pictures().to(dtype)
    predictions, *alphas = run(decoder, encoder_out)
    for i, length in enumerate(LENGTHS):
        state, memory = decoder.start(encoder_out[i:i + 1])
        for t in range(length - 1):
            scores, state, alpha = decoder.step(captions()[i:i + 1, t], state, memory)
            where, cause = f'{WHERE[kind]}, step {t} of forward against step', 'they treat words, state or steps unlike'
            check(scores.dtype == dtype, where, dtype, scores.dtype, 'the scores are made double or single')
            same(predictions[i, t], scores[0], f'{where}: predictions', 'vocab_size', cause, tolerance=tolerance)
            if alphas:
                same(alphas[0][i, t], alpha[0], f'{where}: alpha', 'num_pixels', cause, tolerance=tolerance)
        for values in (predictions, *alphas):
            assert (values[i, length - 1:] == 0).all()


@pytest.mark.parametrize('kind', KINDS)
def test_teacher_forcing_equals_step_repeated(kind):
    agree(kind, torch.float64, 1e-10)


@pytest.mark.parametrize('kind', KINDS)
@torch.no_grad()
def test_forward_and_steps_agree_in_single_precision(kind):
    agree(kind, torch.float32, 1e-5)


@pytest.mark.parametrize('kind', KINDS)
def test_a_prediction_does_not_see_the_word_to_come(kind):
    parts_of(kind)
    decoder, tokens = make(kind), captions()
    predictions = run(decoder)[0]
    for t in range(1, max(LENGTHS) - 1):
        changed = tokens.clone()
        changed[:, t:] = changed[:, t:] % (WORDS - 1) + 1
        now = run(decoder, tokens=changed)[0]
        check(torch.equal(now[:, :t], predictions[:, :t]), WHERE[kind], f'predictions that do not see word {t} before '
              'it is read', 'they change with it', 'steps or captions are mixed: a sum, mean or softmax over them')
        check((now[1, t] - predictions[1, t]).abs().max() > 1e-6, WHERE[kind], f'a prediction that depends on word {t}',
              'it does not', 'the word vector is not read')


@pytest.mark.parametrize('kind', ATTENDING)
def test_alphas_move_with_the_pixels(kind):
    parts_of(kind)
    decoder, order = make(kind), torch.tensor([3, 0, 5, 1, 4, 2])
    predictions, alphas = run(decoder)
    moved, alphas_moved = run(decoder, pictures().flatten(1, 2)[:, order].view_as(pictures()))
    where, cause = f'{WHERE[kind]}, pixels in another order', 'the place of a pixel counts, not only what is in it'
    same(moved, predictions, f'{where}: predictions', 'batch_size, steps, vocab_size', cause)
    same(alphas_moved, alphas[..., order], f'{where}: alphas', 'batch_size, steps, num_pixels', cause)
    check(alphas.std(dim=2)[0, 0] > 1e-3, WHERE[kind], 'alphas that differ from pixel to pixel', 'they are all alike',
          'the pixels do not go into the scores')


@pytest.mark.parametrize('kind', ATTENDING)
def test_alphas_are_weights(kind):
    parts_of(kind)
    _, alphas = run(make(kind))
    running = torch.arange(alphas.shape[1]) < torch.tensor(LENGTHS).unsqueeze(1) - 1
    sums, where = alphas.sum(dim=2), f'{WHERE[kind]}: alphas'
    check((alphas >= 0).all(), where, 'no weight below 0', f'{alphas.min():.3g}', 'there is no softmax')
    assert (sums[~running] == 0).all()
    if kind == 'adaptive':  # the rest is beta
        check(((sums[running] > 0.05) & (sums[running] < 0.999)).all(), where, 'sums between 0 and 1, 1 - beta',
              f'from {sums[running].min():.3g} to {sums[running].max():.3g}', 'the sentinel is not in the softmax')
    else:
        same(sums[running], torch.ones_like(sums[running]), f'{where}: their sums over the pixels', 'words',
             'the softmax is over another dimension')


@pytest.mark.parametrize('kind', KINDS)
def test_every_parameter_gets_a_gradient_and_the_picture_matters(kind):
    parts_of(kind)
    decoder = make(kind).train()
    for module in decoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    returned = decoder(pictures(), captions(), torch.tensor(LENGTHS).unsqueeze(1))
    caption_loss(*true_words(returned)[:3], alpha_c=1.0).backward()
    for name, parameter in decoder.named_parameters():
        if name not in ('init.bias', 'attention.key.bias'):  # batch norm or softmax takes it out again
            check(parameter.grad is not None and parameter.grad.abs().max() > 1e-9, WHERE[kind],
                  f'a gradient of {name}', 'none', 'it is not used, or something is detached on the way')
    decoder.eval()
    check((run(decoder)[0] - run(decoder, -pictures())[0]).abs().max() > 1e-3, WHERE[kind],
          'other predictions for other pictures', 'the same', 'the picture is not used')


@pytest.mark.parametrize('kind', KINDS)
def test_dropout_is_off_in_eval_and_on_in_training(kind):
    parts_of(kind)
    decoder = make(kind, dropout=0.5)
    the_same_twice(WHERE[kind], lambda: run(decoder)[0])
    decoder.train()
    check(not torch.equal(run(decoder)[0], run(decoder)[0]), f'{WHERE[kind]}, predictions of the same twice in train()',
          'others', 'the same', 'the dropout is missing')


@pytest.mark.parametrize('kind', KINDS)
@torch.no_grad()
def test_scores_of_beams_are_those_of_their_words(kind):
    """Each beam keeps its own state, as one tensor or two."""
    parts_of(kind)
    decoder, end = make(kind), WORDS - 1
    for layer in (decoder.embedding, decoder.decode_step, decoder.fc):  # so that beams overtake one another
        for weight in layer.parameters():
            weight *= 3
    decoder.fc.bias[end] -= 3  # or some say nothing
    word_map = {'<pad>': 0, **{f'word{i}': i for i in range(1, end - 2)}, '<unk>': end - 2, '<start>': end - 1,
                '<end>': end}
    for picture, found in enumerate(beam_search(decoder, pictures(), word_map, 4, 6)):
        state, memory = decoder.start(pictures()[picture:picture + 1])
        said, total = [*found.words, *[end] * found.finished], 0.0
        for word, then in zip([word_map['<start>'], *said], said, strict=False):
            scores, state, _ = decoder.step(torch.tensor([word]), state, memory)
            total += scores.log_softmax(dim=1)[0, then].item()
        same(found.score, total, f'{WHERE[kind]}, beam search: score', '',
             'a caption\'s state depends on others in the batch, or is changed in place', tolerance=1e-4)
        check(len(found.words) > 1, WHERE[kind], 'captions of more than a word', f'{len(found.words)}',
              'the words are not read')


@pytest.mark.parametrize('kind', KINDS)
def test_five_captions_are_learned_by_heart(kind):
    parts_of(kind)
    torch.manual_seed(0)
    cls, options = KINDS[kind]
    decoder = cls(**{**SIZES, 'decoder_dim': 40, 'embed_dim': 20}, **options, dropout=0.0)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.02)
    for _ in range(200):
        returned = decoder(pictures().float(), captions(), torch.tensor(LENGTHS).unsqueeze(1))
        loss = caption_loss(*true_words(returned)[:2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    check(loss < 0.1, f'{WHERE[kind]}, five captions learned by heart', 'a loss below 0.1', f'{loss:.3f}',
          'something is detached on the way, or words are not read')
    word_map = {'<pad>': 0, '<unk>': 0, '<start>': int(captions()[0, 0]), '<end>': int(captions()[0, 4])}
    found = greedy_search(decoder, pictures()[:1].float(), word_map, 8)
    check(found[0].words == captions()[0, 1:4].tolist(), f'{WHERE[kind]}, what was learned by heart',
          captions()[0, 1:4].tolist(), found[0].words, 'step does something else than forward')
    assert len(beam_search(decoder, pictures().float(), word_map, 3, 6)) == len(LENGTHS)


# --- In the lab ---


@pytest.mark.parametrize(('decoder', 'options'), [
    ('DecoderWithSpatialAttention', {}), ('DecoderWithAdaptiveAttention', {}), ('DecoderWithBahdanauAttention', {}),
    ('CaptionNet', dict(heads=2)), ('DecoderWithCell', dict(cell='RNN')), ('DecoderWithCell', dict(cell='GRU')),
    ('DecoderWithCell', dict(cell='LSTM'))])
def test_trained_by_the_same_loop(tiny_cfg, decoder, options):
    kind = next(kind for kind, (cls, own) in KINDS.items()
                if cls.__name__ == decoder and options == {key: own.get(key) for key in options})
    parts_of(kind)
    cfg = {**tiny_cfg, 'decoder': f'{KINDS[kind][0].__module__}.{decoder}', 'decoder_options': options, 'epochs': 12,
           'decoder_lr': 2e-2, 'dropout': 0.1}
    history = train(cfg)
    first, last = history[0]['train_loss'], history[-1]['train_loss']
    check(last < 0.65 * first, f'{WHERE[kind]}, trained for 12 epochs', f'a loss below {0.65 * first:.3f}',
          f'{last:.3f}', 'something is detached on the way, or words are not read')
    model = load_model(f"{cfg['output_folder']}/BEST_checkpoint_{decoder}.pth.tar", 'cpu')
    assert model.name == decoder and model.settings['decoder_options'] == options
    found = caption_split(model, 'TEST', beam_size=3, max_len=20)
    assert len(found) == 6
    for caption in found:
        shape = None if decoder == 'DecoderWithCell' else (len(caption['caption']), 4, 4)
        assert shape == (caption['alphas'].shape if caption['alphas'] is not None else None)


def test_a_decoder_without_its_file(tiny_cfg):
    said = "'decoder' is 'CaptionNet'; it must be like 'my_decoder.MyDecoder', the file's name before a dot"
    with pytest.raises(ValueError, match=said):
        train({**tiny_cfg, 'decoder': 'CaptionNet'})


def test_options_that_a_decoder_does_not_have(tiny_cfg):
    with pytest.raises(TypeError, match="CaptionNet.*unexpected keyword argument 'head'"):
        train({**tiny_cfg, 'decoder': 'lab.more.captionnet.CaptionNet', 'decoder_options': dict(head=2)})
    with pytest.raises(TypeError, match="DecoderWithAttention.*unexpected keyword argument 'cell'"):
        train({**tiny_cfg, 'decoder_options': dict(cell='GRU')})


def test_a_killed_training_goes_on_the_same(tiny_cfg):
    parts_of('bahdanau')
    own_words()
    cfg = {**tiny_cfg, 'decoder': 'lab.more.bahdanau.DecoderWithBahdanauAttention', 'teacher_forcing': (0.9, 0.6),
           'epochs': 3}
    straight = train(cfg)
    parts = {**cfg, 'output_folder': cfg['output_folder'] + '_parts'}
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
    parts_of('two_heads')
    cfg = {**tiny_cfg, 'decoder': 'lab.more.captionnet.CaptionNet', 'decoder_dim': 16, 'attention_dim': 8, 'epochs': 1}
    train(cfg)
    latest, best = checkpoint_paths({**DEFAULTS, **cfg})
    two = {**cfg, 'decoder_options': dict(heads=2), 'epochs': 2}
    with pytest.raises(ValueError, match=r"decoder_options=\{\}, and the settings say \{.heads.: 2\}: set it as"):
        train({**two, 'checkpoint': str(latest)})
    train({**two, 'start_from': str(best), 'output_folder': str(tmp_path / 'second')})
    assert "was trained with decoder_options={}; from here on they are {'heads': 2}." in capsys.readouterr().out
