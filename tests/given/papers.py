"""The papers' equations, written out cell by cell and word by word, and what known mistakes make of them.

A bonus task (``python -m instructor.bonus``) holds the numbers that come out, not this file. Each function of ``CASES``
returns a dict: part -> ``verdicts.Value``, of the decoders, pictures and captions of ``small.py``.
"""

import math

import numpy as np
import torch
from small import ATTENTION, DRAWN, PIXELS, READ, make, pictures, some_attention, states
from torch.nn import functional as F
from verdicts import Value, as_array


def linear(layer, x):
    return layer.weight @ x + (0 if layer.bias is None else layer.bias)


def linear_rows(layer, rows):
    return torch.stack([linear(layer, row) for row in rows])


# --- Knowing when to look ---

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
ONLY_IN_THE_SCORES = ('h left out of the scores', 'the context counted down twice', 'the context added twice')


def paper_step(decoder, picture, word, h, m, sentinel, slip=None):
    """Lu et al. 2017, eqs. 4 to 13 for one caption: scores, alpha, new h, new m.

    :param sentinel: whether there is one
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
    if sentinel:
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


def knowing_when_to_look(kind):
    """A step from a state that is not zero."""
    decoder, (h, m) = make(kind), states()
    slips = ADAPTIVE_SLIPS if kind == 'adaptive' else SLIPS

    def paper(slip=None):
        return paper_step(decoder, pictures()[1], READ, h, m, kind == 'adaptive', slip)

    scores, alpha, new_h, new_m = paper()
    of_alpha = {sentence: paper(slip)[1] for slip, sentence in slips.items() if slip not in ONLY_IN_THE_SCORES}
    if kind == 'adaptive':
        of_alpha['alpha sums to 1 - beta: return the pixels\' part of the softmax as it is'] = paper(
            'alphas that sum to 1')[1]
    other = 'x the other way round'
    return dict(h=Value(new_h, {SLIPS[other]: paper(other)[2]}), m=Value(new_m, {}), alpha=Value(alpha, of_alpha),
                scores=Value(scores, {sentence: paper(slip)[0] for slip, sentence in slips.items()}))


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
    attention, cells, h = make('bahdanau').attention, pictures().flatten(1, 2)[2], states()[0]

    def weights(activation):
        added = torch.stack([linear(attention.U, a) + linear(attention.W, h) for a in cells])
        return torch.stack([linear(attention.v, activation(row))[0] for row in added]).softmax(dim=0)

    right = weights(F.elu)
    return dict(
        alpha=Value(right, {
            'tanh in place of ELU': weights(torch.tanh), 'ReLU in place of ELU': weights(torch.relu),
            'the activation is missing': weights(lambda x: x),
            'the softmax is over another dimension than the pixels': torch.ones(PIXELS)}),
        context=Value(right @ cells, {'the mean over the pixels in place of the sum': right @ cells / PIXELS}))


def first_state(kind):
    """tanh of a Linear layer on the mean of the cells, for h and for c."""
    decoder, mean = make(kind), pictures()[1].flatten(0, 1).mean(0)
    h, c = linear(decoder.init_h, mean), linear(decoder.init_c, mean)
    return {name: Value(own.tanh(), {
        'tanh is missing': own, 'it comes from the other\'s layer: h from init_h, c from init_c': other.tanh()})
        for name, own, other in (('h', h, c), ('c', c, h))}


def keys_of_the_pixels():
    return dict(keys=Value(linear_rows(make('bahdanau').attention.U, pictures()[1].flatten(0, 1)), {}))


def lstm_step(decoder, *parts):
    """The new (h, c) from the old ones of ``states``, and these inputs."""
    (new_h,), (new_c,) = decoder.decode_step(torch.cat(parts).unsqueeze(0), tuple(s.unsqueeze(0) for s in states()))
    return dict(h=new_h, c=new_c)


def gated_step():
    """With ``some_attention``."""
    decoder, (h, c) = make('bahdanau'), states()
    cells, word = pictures()[1].flatten(0, 1).unsqueeze(0), decoder.embedding.weight[READ]
    (context,), (alpha,) = some_attention(cells, h.unsqueeze(0))
    gate = linear(decoder.f_beta, h)
    right = lstm_step(decoder, word, gate.sigmoid() * context)
    mistakes = {
        'the context goes in without the gate': lstm_step(decoder, word, context),
        'the gate is f_beta(h) without sigmoid': lstm_step(decoder, word, gate * context),
        'c looks, in place of h': lstm_step(
            decoder, word, gate.sigmoid() * some_attention(cells, c.unsqueeze(0))[0][0])}
    return dict(alpha=Value(alpha, {})) | {
        name: Value(right[name], {sentence: found[name] for sentence, found in mistakes.items()}) for name in 'hc'}


# --- Scaled dot-product attention ---


def scaled_dot_product():
    attention, cells, h = make('captionnet').attention, pictures().flatten(1, 2)[3], states()[0]
    e = linear_rows(attention.key, cells) @ linear(attention.query, h)
    right = (e / math.sqrt(ATTENTION)).softmax(dim=0)
    over_queries = 'the softmax is over the queries, of which there is only one'
    return dict(
        alpha=Value(right, {
            'q k^T is not divided by the root of the channels': e.softmax(dim=0),
            'q k^T is divided by the channels, not by their root': (e / ATTENTION).softmax(dim=0),
            over_queries: torch.ones(PIXELS)}),
        context=Value(right @ cells, {over_queries: cells.sum(dim=0)}))


def two_heads():
    """For all pictures."""
    attention, cells = make('two_heads').attention, pictures().flatten(1, 2)
    q, k = linear(attention.query, states()[0]), torch.stack([linear_rows(attention.key, own) for own in cells])

    def looked(parts, channels):
        weights = [(k[..., part] @ q[part] / math.sqrt(ATTENTION / 2)).softmax(dim=1) for part in parts]
        seen = torch.zeros_like(cells[:, 0])
        for own, values in zip(weights, channels, strict=True):
            seen[:, values] = (own.unsqueeze(2) * cells[..., values]).sum(dim=1)
        return sum(weights) / 2, seen

    right = looked((slice(0, 2), slice(2, 4)), (slice(0, 5), slice(5, 10)))
    every_second = looked((slice(0, 4, 2), slice(1, 4, 2)), (slice(0, 10, 2), slice(1, 10, 2)))
    return {name: Value(right[i], {
        'a head has every second channel: unflatten into (heads, channels of a head), in this order': every_second[i]})
        for i, name in enumerate(('alpha', 'context'))}


def deep_output():
    """A step of CaptionNet, with ``some_attention``."""
    decoder, h = make('captionnet'), states()[0]
    cells, word = pictures()[1].flatten(0, 1).unsqueeze(0), decoder.embedding.weight[READ]
    (context,), _ = some_attention(cells, h.unsqueeze(0))
    right = lstm_step(decoder, word, context)

    def deep(state, activation=torch.tanh):
        return linear(decoder.fc, activation(linear(decoder.deep, torch.cat([state, context, word]))))

    return dict(h=Value(right['h'], {}), c=Value(right['c'], {}), scores=Value(deep(right['h']), {
        'tanh is missing': deep(right['h'], lambda x: x),
        'the old h goes into the output, not the new one': deep(h)}))


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
        right, swapped = lstm(h, c), lstm(c, h)
        return {name: Value(right[i], {'h and c are returned in the wrong order': right[1 - i],
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


CASES = [(knowing_when_to_look, 'spatial'), (knowing_when_to_look, 'adaptive'), (look,), (additive_attention,),
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
