"""The papers' equations, written out cell by cell and word by word, and what known mistakes make of them.

A bonus task (``python -m instructor.bonus``) holds the numbers that come out, not this file. Each function of ``CASES``
returns a dict: part -> ``verdicts.Value``, of the decoders, pictures and captions of ``small.py``.
"""

import math

import numpy as np
import torch
from small import (
    ATTENTION,
    DRAWN,
    PIXELS,
    READ,
    before_a_step,
    looks,
    make,
    pictures,
    some_attention,
    some_weights,
    states,
)
from torch.nn import functional as F
from verdicts import Value, as_array, close


def linear(layer, x):
    return layer.weight @ x + (0 if layer.bias is None else layer.bias)


def linear_rows(layer, rows):
    return torch.stack([linear(layer, row) for row in rows])


# --- Knowing when to look ---


def paper_step(decoder, picture, word, h, m, sentinel):
    """Lu et al. 2017, eqs. 4 to 13 for one caption: scores, alpha, new h, new m.

    :param sentinel: whether there is one
    """
    pixels = picture.flatten(0, 1)
    V = [torch.relu(linear(decoder.W_a, a)) for a in pixels]
    v_g = torch.relu(linear(decoder.W_b, pixels.mean(0)))
    x = torch.cat([decoder.embedding.weight[word], v_g])
    (new_h,), (new_m,) = decoder.decode_step(x.unsqueeze(0), (h.unsqueeze(0), m.unsqueeze(0)))

    def score(projection, v):
        return linear(decoder.w_h, torch.tanh(linear(projection, v) + linear(decoder.W_g, new_h)))[0]

    z = torch.stack([score(decoder.W_v, v) for v in V])
    alpha = z.softmax(dim=0)
    context = sum(a * v for a, v in zip(alpha, V, strict=True))
    if sentinel:
        g = torch.sigmoid(linear(decoder.W_x, x) + linear(decoder.W_h, h))
        s = g * new_m.tanh()
        beta = torch.cat([z, score(decoder.W_s, s).unsqueeze(0)]).softmax(dim=0)[-1]
        alpha, context = (1 - beta) * alpha, beta * s + (1 - beta) * context   # eq. 11
    return linear(decoder.fc, context + new_h), alpha, new_h, new_m


def knowing_when_to_look(kind):
    """A step from a state that is not zero, from the picture on."""
    scores, alpha, h, m = paper_step(make(kind), pictures()[1], READ, *states(), kind == 'adaptive')
    return dict(h=Value(h, {}), m=Value(m, {}), alpha=Value(alpha, {}), scores=Value(scores, {}))


def project(layer, x):
    return x @ layer.weight.T + (0 if layer.bias is None else layer.bias)


def sentinel():
    """Eqs. 9 and 10 for ``small.looks``."""
    decoder, given = make('adaptive'), looks()
    of_x, of_h, tanh_m = project(decoder.W_x, given['x']), project(decoder.W_h, given['h_before']), given['tanh_m']
    g = torch.sigmoid(of_x + of_h)
    return dict(s=Value(g * tanh_m, {
        'tanh_m is tanh(m_t) already (eq. 10), here tanh is taken twice': g * tanh_m.tanh(),
        'the gate is tanh, it must be sigmoid (eq. 9)': (of_x + of_h).tanh() * tanh_m,
        'the gate has no sigmoid (eq. 9)': (of_x + of_h) * tanh_m,
        'the gate is returned, not s_t = g_t * tanh(m_t) (eq. 10)': g,
        'the gate is 1 - g_t, it must be g_t (eq. 10)': (1 - g) * tanh_m,
        'the gate has only W_x x, W_h h_{t-1} is missing (eq. 9)': torch.sigmoid(of_x) * tanh_m,
        'the gate has only W_h h_{t-1}, W_x x is missing (eq. 9)': torch.sigmoid(of_h) * tanh_m}))


def attended(kind):
    """Eqs. 6 to 8, or 11 and 12, for ``small.looks``: c and alpha at each step."""
    decoder, given = make(kind), looks()
    V, keys, h_before = given['V'], given['keys'], given['h_before']

    def scores(h, activation=torch.tanh):
        return project(decoder.w_h, activation(keys.unsqueeze(1) + project(decoder.W_g, h).unsqueeze(2))).squeeze(3)

    def seen(alpha, beta=0.0, s=0.0):
        return beta * s + torch.einsum('ntp,npd->ntd', alpha, V), alpha

    h = given['h']
    z = scores(h)
    over_steps = 'the softmax is over the steps, not the pixels: dim=-1'
    over_batch = 'the softmax is over the captions of the batch, not the pixels: dim=-1'
    old = 'the new hidden state looks (eq. 6), not the old one'
    if kind == 'spatial':
        right = seen(z.softmax(dim=2))
        slips = {over_steps: seen(z.softmax(dim=1)), over_batch: seen(z.softmax(dim=0)),
                 old: seen(scores(h_before).softmax(dim=2)),
                 'the tanh of the scores is missing (eq. 6)': seen(scores(h, lambda x: x).softmax(dim=2)),
                 'the softmax is missing': seen(z),
                 'the mean over the pixels in place of the sum': (right[0] / PIXELS, right[1])}
    else:
        s = sentinel()['s'].right

        def with_sentinel(h=h, projection=decoder.W_s, activation=torch.tanh, without_h=False, dim=2):
            of_h = 0 if without_h else project(decoder.W_g, h)
            z_s = project(decoder.w_h, activation(project(projection, s) + of_h))
            alpha = torch.cat([scores(h), z_s], dim=2).softmax(dim=dim)
            return alpha[..., :-1], alpha[..., -1:], z_s

        alpha, beta, z_s = with_sentinel()
        right, of_pixels = seen(alpha, beta, s), z.softmax(dim=2)
        wrong = {'W_g h is missing in the sentinel\'s score (eq. 12)': with_sentinel(without_h=True),
                 'tanh is missing in the sentinel\'s score (eq. 12)': with_sentinel(activation=lambda x: x),
                 'the sentinel\'s score has W_s (eq. 12), not W_v': with_sentinel(projection=decoder.W_v),
                 over_steps: with_sentinel(dim=1), over_batch: with_sentinel(dim=0), old: with_sentinel(h=h_before)}
        slips = {sentence: seen(weights, of_s, s) for sentence, (weights, of_s, _) in wrong.items()}
        first = torch.cat([z_s, z], dim=2).softmax(dim=2)
        slips['the pixels\' scores come first and the sentinel\'s last (eq. 12), not the other way round'] = seen(
            first[..., :-1], first[..., -1:], s)
        slips['beta is the last entry of alpha^ (eq. 12), not the first'] = seen(
            torch.cat([alpha, beta], dim=2)[..., 1:], alpha[..., :1], s)
        slips['beta is the last entry of alpha^ (eq. 12), here c has the first in its place'] = seen(
            alpha, alpha[..., :1], s)
        slips['beta goes with the sentinel and the pixels have theirs already (eq. 11), here it is (1 - beta) s'] = (
            right[0] + (1 - 2 * beta) * s, alpha)
        for sentence, own in (
                ('beta is the last entry of the softmax over pixels and sentinel (eq. 12), not a sigmoid of its own',
                 torch.sigmoid(z_s)),
                ('beta is the last entry of the one softmax over all scores (eq. 12), not of a second one over the '
                 'weights and the sentinel\'s score', torch.cat([of_pixels, z_s], dim=2).softmax(dim=2)[..., -1:]),
                ('beta is the last entry of alpha^ (eq. 12), over pixels and sentinel; alpha, as the paper prints it, '
                 'has no entry for the sentinel', of_pixels[..., -1:])):
            slips[sentence] = seen((1 - own) * of_pixels, own, s)
        slips |= {
            'alpha sums to 1 - beta: return the pixels\' part of the softmax as it is': (right[0], of_pixels),
            'the pixels\' weights in c must sum to 1 - beta (eq. 11), here to 1': (
                beta * s + seen(of_pixels)[0], right[1]),
            'the sentinel is missing in c (eq. 11)': seen(alpha),
            'the sentinel is in c without beta (eq. 11)': seen(alpha, 1.0, s),
            'the context is in twice: c^ = beta s + (1 - beta) c is all of it (eq. 11)': (
                right[0] + seen(of_pixels)[0], alpha),
            'the pixels\' weights of that softmax sum to 1 - beta already: (1 - beta) is in twice': (
                beta * s + (1 - beta) * seen(alpha)[0], alpha)}
    return {name: Value(right[i], {sentence: wrong[i] for sentence, wrong in slips.items()
                                   if not close(as_array(wrong[i]), as_array(right[i]), 1e-9)})
            for i, name in enumerate(('c', 'alpha'))}


def step_around_attend():
    """A step of *Knowing when to look* for ``small.before_a_step``, with ``some_weights`` in place of ``attend``."""
    decoder, given = make('spatial'), before_a_step()
    w, v_g, h, m = (given[name] for name in ('embeddings', 'v_g', 'h', 'm'))
    x, reversed_x = torch.cat([w, v_g], dim=1), torch.cat([v_g, w], dim=1)
    new_h, new_m = decoder.decode_step(x, (h, m))
    wrong = {'x is [w_t; v_g], the word first': decoder.decode_step(reversed_x, (h, m)),
             'the LSTM is not given its old state (h, m)': decoder.decode_step(x),
             'h and m go in in the wrong order': decoder.decode_step(x, (m, h)),
             'h and m come out of the LSTM in this order: here they are exchanged': (new_m, new_h),
             'the old state is returned, not the new one': (h, m)}
    alpha = some_weights(given['V'], new_h)
    c = (alpha.unsqueeze(2) * given['V']).sum(dim=1)
    scores = project(decoder.fc, c + new_h)
    return dict(
        x=Value(x, {'x is [w_t; v_g], the word first': reversed_x}),
        **{name: Value((new_h, new_m)[i], {sentence: found[i] for sentence, found in wrong.items()})
           for i, name in enumerate('hm')},
        h_before=Value(h, {'it is the new one': new_h}),
        tanh_m=Value(new_m.tanh(), {'tanh is missing': new_m, 'it is the hidden state': new_h,
                                    's_t comes from the new cell state m_t (eq. 10), not from the old one': m.tanh()}),
        alpha=Value(alpha, {}),
        scores=Value(scores, {
            'the scores are of c + h, h is missing (eq. 13)': project(decoder.fc, c),
            'the scores are of c + h, c is missing (eq. 13)': project(decoder.fc, new_h),
            'the scores are of c + h with the new h (eq. 13), not the old one': project(decoder.fc, c + h),
            'the scores are those before softmax': scores.softmax(dim=1),
            'the scores are those before softmax, here it is log_softmax': scores.log_softmax(dim=1)}))


def look():
    """How spatial attention sees the picture."""
    decoder, pixels = make('spatial'), pictures()[1].flatten(0, 1)
    rows, mean = linear_rows(decoder.W_a, pixels), pixels.mean(0)
    return dict(
        V=Value(rows.relu(), {'the ReLU is missing': rows}),
        keys=Value(linear_rows(decoder.W_v, rows.relu()), {
            'it is W_v of V without its ReLU': linear_rows(decoder.W_v, rows)}),
        v_g=Value(linear(decoder.W_b, mean).relu(), {
            'the ReLU is missing': linear(decoder.W_b, mean),
            'the mean is taken after the ReLU': linear_rows(decoder.W_b, pixels).relu().mean(0)}))


# --- Bahdanau attention ---


def additive_attention():
    attention, all_cells, h = make('bahdanau').attention, pictures().flatten(1, 2), states()[0]
    cells = all_cells[2]

    def scores(activation, cells=cells):
        added = torch.stack([linear(attention.U, a) + linear(attention.W, h) for a in cells])
        return torch.stack([linear(attention.v, activation(row))[0] for row in added])

    def weights(activation):
        return scores(activation).softmax(dim=0)

    right = weights(F.elu)
    over_batch = torch.stack([scores(F.elu, own) for own in all_cells]).softmax(dim=0)[2]
    of_batch = 'the softmax is over the pictures of the batch, not over the pixels'
    return dict(
        alpha=Value(right, {
            'tanh in place of ELU': weights(torch.tanh), 'ReLU in place of ELU': weights(torch.relu),
            'the activation is missing': weights(lambda x: x),
            of_batch: over_batch, 'the softmax is missing': scores(F.elu),
            'the softmax is over another dimension than the pixels': torch.ones(PIXELS)}),
        context=Value(right @ cells, {
            of_batch: over_batch @ cells, 'the mean over the pixels in place of the sum': right @ cells / PIXELS}))


def first_state(kind):
    """tanh of a Linear layer on the mean of the cells, for h and for c."""
    decoder, mean = make(kind), pictures()[1].flatten(0, 1).mean(0)
    h, c = linear(decoder.init_h, mean), linear(decoder.init_c, mean)
    return {name: Value(own.tanh(), {
        'tanh is missing': own, 'it comes from the other\'s layer: h from init_h, c from init_c': other.tanh()})
        for name, own, other in (('h', h, c), ('c', c, h))}


def keys_of_the_pixels():
    return dict(keys=Value(linear_rows(make('bahdanau').attention.U, pictures()[1].flatten(0, 1)), {}))


def lstm_step(decoder, *parts, state=None):
    """The new (h, c) from the old ones of ``states``, or another order of them, and these inputs."""
    (new_h,), (new_c,) = decoder.decode_step(torch.cat(parts).unsqueeze(0),
                                             tuple(s.unsqueeze(0) for s in state or states()))
    return dict(h=new_h, c=new_c)


def slips_of_the_state(decoder, *parts):
    """What goes wrong around the LSTM, whatever it reads."""
    h, c = states()
    right = lstm_step(decoder, *parts)
    return {'the LSTM gets (c, h), it must be (h, c)': lstm_step(decoder, *parts, state=(c, h)),
            'the LSTM is not given its old state (h, c)': lstm_step(decoder, *parts, state=(h * 0, c * 0)),
            'h and c come out of the LSTM in this order: here they are exchanged': dict(h=right['c'], c=right['h']),
            'the old one is returned, not the new one': dict(h=h, c=c)}


def gated_step():
    """With ``some_attention``."""
    decoder, (h, c) = make('bahdanau'), states()
    cells, word = pictures()[1].flatten(0, 1).unsqueeze(0), decoder.embedding.weight[READ]
    (context,), (alpha,) = some_attention(cells, h.unsqueeze(0))
    gate = linear(decoder.f_beta, h)
    right = lstm_step(decoder, word, gate.sigmoid() * context)
    of_c = linear(decoder.f_beta, c)
    mistakes = {
        **slips_of_the_state(decoder, word, gate.sigmoid() * context),
        'the input is [embedding; gated context], the word first': lstm_step(decoder, gate.sigmoid() * context, word),
        'the gate is f_beta(c), it must be f_beta(h)': lstm_step(decoder, word, of_c.sigmoid() * context),
        'the context goes in without the gate': lstm_step(decoder, word, context),
        'the gate is f_beta(h) without sigmoid': lstm_step(decoder, word, gate * context),
        'c looks, in place of h': lstm_step(
            decoder, word, gate.sigmoid() * some_attention(cells, c.unsqueeze(0))[0][0])}
    by_c = some_attention(cells, c.unsqueeze(0))[1][0]
    return dict(alpha=Value(alpha, {'c looks, in place of h': by_c})) | {
        name: Value(right[name], {sentence: found[name] for sentence, found in mistakes.items()}) for name in 'hc'}


# --- Scaled dot-product attention ---


def scaled_dot_product():
    attention, cells, h = make('captionnet').attention, pictures().flatten(1, 2)[3], states()[0]
    e = linear_rows(attention.key, cells) @ linear(attention.query, h)
    right = (e / math.sqrt(ATTENTION)).softmax(dim=0)
    of_batch = torch.stack([linear_rows(attention.key, own) @ linear(attention.query, h) / math.sqrt(ATTENTION)
                            for own in pictures().flatten(1, 2)]).softmax(dim=0)[3]
    over_queries = 'the softmax is over the queries, of which there is only one'
    return dict(
        alpha=Value(right, {
            'q k^T is not divided by the root of the channels': e.softmax(dim=0),
            'q k^T is divided by the channels, not by their root': (e / ATTENTION).softmax(dim=0),
            'the softmax is missing': e / math.sqrt(ATTENTION),
            'the softmax is over the pictures of the batch, not over the keys': of_batch,
            over_queries: torch.ones(PIXELS)}),
        context=Value(right @ cells, {over_queries: cells.sum(dim=0)}))


def two_heads():
    """For all pictures."""
    attention, cells = make('two_heads').attention, pictures().flatten(1, 2)
    q, k = linear(attention.query, states()[0]), torch.stack([linear_rows(attention.key, own) for own in cells])

    def looked(parts, channels, scale=ATTENTION / 2):
        weights = [(k[..., part] @ q[part] / math.sqrt(scale)).softmax(dim=1) for part in parts]
        seen = torch.zeros_like(cells[:, 0])
        for own, values in zip(weights, channels, strict=True):
            seen[:, values] = (own.unsqueeze(2) * cells[..., values]).sum(dim=1)
        return sum(weights) / 2, seen, weights

    parts, channels = (slice(0, 2), slice(2, 4)), (slice(0, 5), slice(5, 10))
    alpha, context, (first, second) = looked(parts, channels)
    every_second = looked((slice(0, 4, 2), slice(1, 4, 2)), (slice(0, 10, 2), slice(1, 10, 2)))
    too_small = looked(parts, channels, ATTENTION)
    unscaled = looked(parts, channels, 1)
    one_for_all = [(own.unsqueeze(2) * cells).sum(dim=1) for own in (first, second, alpha)]
    of_all = 'as if it were one head: each head has its own part of q, k and v'
    together = (k @ q / math.sqrt(ATTENTION)).softmax(dim=1)
    a_head = 'a head has every second channel: unflatten into (heads, channels of a head), in this order'
    full_width = 'q k^T is divided by the root of all channels, not of one head\'s (attention_dim / heads)'
    return dict(
        alpha=Value(alpha, {
            a_head: every_second[0], full_width: too_small[0], of_all: together,
            'q k^T is not divided by the root of a head\'s channels': unscaled[0],
            'the sum over the heads in place of their mean': 2 * alpha, 'the first head only': first,
            'the last head only': second}),
        context=Value(context, {
            a_head: every_second[1], full_width: too_small[1], of_all: (together.unsqueeze(2) * cells).sum(dim=1),
            'q k^T is not divided by the root of a head\'s channels': unscaled[1],
            'the first head\'s weights for all channels': one_for_all[0],
            'the mean of the heads\' weights for all channels: each sums up its own part': one_for_all[2],
            'the heads\' parts are in the wrong order': context.roll(5, dims=1)}))


def deep_output():
    """A step of CaptionNet, with ``some_attention``."""
    decoder, h = make('captionnet'), states()[0]
    cells, word = pictures()[1].flatten(0, 1).unsqueeze(0), decoder.embedding.weight[READ]
    (context,), (alpha,) = some_attention(cells, h.unsqueeze(0))
    right = lstm_step(decoder, word, context)

    def deep(output, activation=torch.tanh):
        return linear(decoder.fc, activation(linear(decoder.deep, output)))

    by_c, alpha_by_c = (found[0] for found in some_attention(cells, states()[1].unsqueeze(0)))
    mistakes = {**slips_of_the_state(decoder, word, context), 'c looks, in place of h': lstm_step(decoder, word, by_c),
                'the input is [embedding; context], the word first': lstm_step(decoder, context, word)}
    output = torch.cat([right['h'], context, word])
    return dict(
        alpha=Value(alpha, {'c looks, in place of h': alpha_by_c}),
        **{name: Value(right[name], {sentence: found[name] for sentence, found in mistakes.items()}) for name in 'hc'},
        output=Value(output, {
            'the old h goes into the output, not the new one': torch.cat([h, context, word]),
            'the cell state c goes into the output, not h': torch.cat([right['c'], context, word])}),
        scores=Value(deep(output), {'tanh is missing': deep(output, lambda x: x),
                                    'ReLU in place of tanh': deep(output, torch.relu),
                                    'the scores are those before softmax': deep(output).softmax(dim=0)}))


# --- Cells ---


def cell_step(kind):
    """From the states of ``states``: h, of an LSTM also c."""
    cell, (h, c) = make(kind).decode_step, states()
    x = torch.linspace(-1, 1, cell.input_size, dtype=torch.float64)
    wx = (cell.weight_ih @ x + cell.bias_ih).split(cell.hidden_size)

    def wh(h):
        return (cell.weight_hh @ h + cell.bias_hh).split(cell.hidden_size)

    def gru(h):
        (rx, zx, nx), (rh, zh, nh) = wx, wh(h)
        r, z = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
        return (1 - z) * torch.tanh(nx + r * nh) + z * h

    def lstm(h, c):
        i, f, g, o = (a + b for a, b in zip(wx, wh(h), strict=True))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    if kind == 'lstm':
        right, swapped, from_zeros = lstm(h, c), lstm(c, h), lstm(h * 0, c * 0)
        return {name: Value(right[i], {'the old state is not handed to the cell': from_zeros[i],
                                       'h and c are returned in the wrong order': right[1 - i],
                                       'h and c go in in the wrong order': swapped[i]}) for i, name in enumerate('hc')}
    one = gru if kind == 'gru' else lambda h: torch.tanh(wx[0] + wh(h)[0])
    return dict(h=Value(one(h), {'the old state is not handed to the cell': one(torch.zeros_like(h))}))


# --- Self-critical training ---


def surrogate(baseline):
    """The loss and its gradient by log_p, for ``small.DRAWN``."""
    log_p, reward, greedy, weights = DRAWN
    n, k = reward.shape
    of_others = torch.stack([reward[:, [j for j in range(k) if j != i]].mean(dim=1) for i in range(k)], dim=1)
    base = greedy.unsqueeze(1) if baseline == 'greedy' else of_others

    def gradient(advantage, of_picture=weights, samples=k):
        return -advantage * of_picture.unsqueeze(1) / samples

    right = gradient(reward - base)
    mistakes = {
        'there is no baseline': gradient(reward),
        'the sign is wrong: what scores above the baseline must become more probable': -right,
        'the sum over the samples in place of their mean': gradient(reward - base, samples=1),
        'the weights of the pictures are left out': gradient(reward - base, torch.ones(n)),
        'the mean over the pictures, which their weights take already': right / n,
        'the sum is divided by that of the weights, which may be less than 1': right / weights.sum(),
        'the mean over the pictures in place of the sum of each times its weight': gradient(
            reward - base, torch.ones(n) / n)}
    if baseline == 'greedy':
        mistakes['the baseline is the mean of the samples, not the reward of the greedy caption'] = gradient(
            reward - of_others)
    else:
        mistakes['the baseline of a sample is the mean of the others: its own reward is in it'] = gradient(
            reward - reward.mean(dim=1, keepdim=True))
        mistakes['the others are one fewer than the samples: their sum is divided by one too many'] = gradient(
            reward - of_others * (k - 1) / k)
    return dict(gradient=Value(right, mistakes), loss=Value((right * log_p).sum(), {}))


CASES = [(knowing_when_to_look, 'spatial'), (knowing_when_to_look, 'adaptive'), (look,), (sentinel,),
         (attended, 'spatial'), (attended, 'adaptive'), (step_around_attend,), (additive_attention,),
         (first_state, 'bahdanau'), (first_state, 'captionnet'), (keys_of_the_pixels,), (gated_step,),
         (scaled_dot_product,), (two_heads,), (deep_output,), (cell_step, 'rnn'), (cell_step, 'gru'),
         (cell_step, 'lstm'), (surrogate, 'greedy'), (surrogate, 'mean')]


@torch.no_grad()
def numbers():
    """What all of them give, for a bonus task: function and argument -> part -> [right, {mistake: what it makes}]."""
    def plain(value):  # the last of the digits differ from machine to machine
        return np.vectorize(lambda number: float(f'{number:.14g}'))(as_array(value)).tolist()

    return {' '.join([function.__name__, *arguments]): {
        part: [plain(value.right), {sentence: plain(wrong) for sentence, wrong in value.mistakes.items()}]
        for part, value in function(*arguments).items()} for function, *arguments in CASES}
