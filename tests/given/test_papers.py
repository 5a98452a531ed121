"""The decoders of lab/more do what their papers' equations say, written out pixel by pixel and word by word."""

import math

import pytest
import torch
from small import ATTENTION, LENGTHS, PIXELS, READ, STATE, make, pictures, run, states
from torch.nn import functional as F

from lab.more.self_critical import surrogate_loss

PICTURE = 1


def linear(layer, x):
    return layer.weight @ x + (0 if layer.bias is None else layer.bias)


def pixels():
    return pictures()[PICTURE].flatten(0, 1)


def lstm(cell, x, h, c):
    """Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000."""
    of_x, of_h = cell.weight_ih @ x + cell.bias_ih, cell.weight_hh @ h + cell.bias_hh
    i, f, g, o = (of_x + of_h).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def knowing_when_to_look(decoder, h, m, sentinel):
    """Lu et al. 2017, eqs. 3 to 16: scores, new state, alpha."""
    V = [linear(decoder.W_a, a).relu() for a in pixels()]
    v_g = linear(decoder.W_b, pixels().mean(0)).relu()
    x = torch.cat([decoder.embedding.weight[READ], v_g])
    new_h, new_m = lstm(decoder.decode_step, x, h, m)

    def score(layer, v):
        return linear(decoder.w_h, torch.tanh(linear(layer, v) + linear(decoder.W_g, new_h)))[0]

    z = torch.stack([score(decoder.W_v, v) for v in V])
    alpha = z.softmax(dim=0)
    context = sum(a * v for a, v in zip(alpha, V, strict=True))
    if sentinel:
        s = torch.sigmoid(linear(decoder.W_x, x) + linear(decoder.W_h, h)) * new_m.tanh()
        beta = torch.cat([z, score(decoder.W_s, s).unsqueeze(0)]).softmax(dim=0)[-1]
        alpha, context = (1 - beta) * alpha, beta * s + (1 - beta) * context
    return linear(decoder.fc, context + new_h), (new_h, new_m), alpha


def bahdanau(decoder, h, c):
    """Bahdanau et al. 2015, A.1.2, with ELU; the gate of Xu et al. 2015, sec. 4.2.1."""
    attention = decoder.attention
    e = torch.stack([linear(attention.v, F.elu(linear(attention.W, h) + linear(attention.U, a)))[0] for a in pixels()])
    alpha = e.softmax(dim=0)
    context = torch.sigmoid(linear(decoder.f_beta, h)) * (alpha @ pixels())
    h, c = lstm(decoder.decode_step, torch.cat([decoder.embedding.weight[READ], context]), h, c)
    return linear(decoder.fc, h), (h, c), alpha


def captionnet(decoder, h, c):
    """Vaswani et al. 2017, eq. 1; Xu et al. 2015, eq. 7 with a tanh."""
    attention, word, heads = decoder.attention, decoder.embedding.weight[READ], decoder.attention.heads
    q, k = linear(attention.query, h), torch.stack([linear(attention.key, a) for a in pixels()])
    alphas, contexts = [], []
    for head in range(heads):
        own = slice(head * ATTENTION // heads, (head + 1) * ATTENTION // heads)
        channels = pixels().chunk(heads, dim=1)[head]
        alphas.append((k[:, own] @ q[own] / math.sqrt(ATTENTION / heads)).softmax(dim=0))
        contexts.append(alphas[-1] @ channels)
    context = torch.cat(contexts)
    h, c = lstm(decoder.decode_step, torch.cat([word, context]), h, c)
    scores = linear(decoder.fc, linear(decoder.deep, torch.cat([h, context, word])).tanh())
    return scores, (h, c), sum(alphas) / heads


def rnn(decoder, h):
    """Elman 1990."""
    cell = decoder.decode_step
    x = decoder.embedding.weight[READ]
    h = torch.tanh(cell.weight_ih @ x + cell.bias_ih + cell.weight_hh @ h + cell.bias_hh)
    return linear(decoder.fc, h), (h,), None


def gru(decoder, h):
    """Cho et al. 2014, eqs. 5 to 8."""
    cell, x = decoder.decode_step, decoder.embedding.weight[READ]
    rx, zx, nx = (cell.weight_ih @ x + cell.bias_ih).chunk(3)
    rh, zh, nh = (cell.weight_hh @ h + cell.bias_hh).chunk(3)
    r, z = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
    h = (1 - z) * torch.tanh(nx + r * nh) + z * h
    return linear(decoder.fc, h), (h,), None


def plain_lstm(decoder, h, c):
    h, c = lstm(decoder.decode_step, decoder.embedding.weight[READ], h, c)
    return linear(decoder.fc, h), (h, c), None


EQUATIONS = {'spatial': lambda *given: knowing_when_to_look(*given, False),
             'adaptive': lambda *given: knowing_when_to_look(*given, True), 'bahdanau': bahdanau,
             'captionnet': captionnet, 'two_heads': captionnet, 'rnn': rnn, 'gru': gru, 'lstm': plain_lstm}


@pytest.mark.parametrize('kind', EQUATIONS)
@torch.no_grad()
def test_a_step_follows_the_equations(kind):
    """From a state that is not zero, beside another picture."""
    decoder = make(kind)
    state, memory = decoder.start(pictures()[:2])
    own = states()[:len(state)]
    found, new, alpha = decoder.step(torch.tensor([2, READ]), tuple(torch.stack([s.flip(0), s]) for s in own), memory)
    scores, expected, weights = EQUATIONS[kind](decoder, *own)
    assert (found[PICTURE] - scores).abs().max() < 1e-12
    for one, other in zip(new, expected, strict=True):
        assert (one[PICTURE] - other).abs().max() < 1e-12
    assert alpha is None if weights is None else (alpha[PICTURE] - weights).abs().max() < 1e-12


@pytest.mark.parametrize('kind', ['bahdanau', 'captionnet'])
@torch.no_grad()
def test_first_state_of_show_attend_and_tell(kind):
    """Xu et al. 2015, sec. 3.1.2; zeros in *Knowing when to look*."""
    decoder, mean = make(kind), pixels().mean(0)
    (h, c), _ = decoder.start(pictures())
    assert (h[PICTURE] - linear(decoder.init_h, mean).tanh()).abs().max() < 1e-12
    assert (c[PICTURE] - linear(decoder.init_c, mean).tanh()).abs().max() < 1e-12
    assert not any(part.any() for part in make('adaptive').start(pictures())[0])


def test_softmax_over_the_queries_would_look_everywhere_alike():
    """There is one query, so that slip gives every pixel the weight 1."""
    attention, cells = make('captionnet').attention, pictures().flatten(1, 2)
    h = torch.linspace(-1, 1, len(LENGTHS) * STATE, dtype=torch.float64).view(-1, STATE)
    scores = attention.query(h).unsqueeze(1) @ attention.key(cells).transpose(1, 2) / math.sqrt(ATTENTION)
    assert (scores.softmax(dim=1) == 1).all()
    context, alpha = attention(cells, h)
    assert (alpha.sum(dim=1) - 1).abs().max() < 1e-12 and alpha.shape == (len(LENGTHS), PIXELS)
    assert (context - cells.sum(dim=1)).abs().max() > 1


@pytest.mark.parametrize('kind', EQUATIONS)
def test_gradients_are_those_of_finite_differences(kind):
    """Of the picture and of each parameter, along a direction."""
    decoder, encoder_out = make(kind), pictures()
    values = dict(decoder.named_parameters()) | {'the picture': encoder_out.requires_grad_()}

    def total():
        return sum(values.sin().sum() for values in run(decoder, encoder_out))

    gradients = torch.autograd.grad(total(), list(values.values()))
    for (name, value), gradient in zip(values.items(), gradients, strict=True):
        direction = torch.linspace(1, 9, value.numel(), dtype=torch.float64).sin().view(value.shape)
        sums = []
        with torch.no_grad():
            for step in (1e-5, -2e-5):
                value += step * direction
                sums.append(total())
            value += 1e-5 * direction
        assert (gradient * direction).sum().item() == pytest.approx(((sums[0] - sums[1]) / 2e-5).item(), abs=1e-6), name


@pytest.mark.parametrize('baseline', ['greedy', 'mean'])
def test_the_surrogates_gradient_is_advantage_times_gradient_of_log_p(baseline):
    """Rennie et al. 2017, eqs. 5 and 6; Luo 2020."""
    log_p = torch.tensor([[-1.0, -2.0, -4.0], [-3.0, -0.5, -1.5]], requires_grad=True)
    reward, greedy = torch.tensor([[1.0, 2.0, 6.0], [0.5, 0.0, 1.0]]), torch.tensor([2.0, 0.25])
    weights = torch.tensor([0.35, 0.15])
    loss = surrogate_loss(log_p, reward, greedy if baseline == 'greedy' else None, weights)
    loss.backward()
    for i in range(2):
        for j in range(3):
            others = [reward[i, k].item() for k in range(3) if k != j]
            b = greedy[i] if baseline == 'greedy' else sum(others) / 2
            assert log_p.grad[i, j].item() == pytest.approx((-(reward[i, j] - b) * weights[i] / 3).item())
    assert loss.item() == pytest.approx((log_p.grad * log_p).sum().item())
