"""``lean_forward`` gives what ``forward`` gives, and takes its place only where that is so."""

import copy
import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lab.train import fast
from lab.train.fast import lean_forward, objection
from models import DecoderWithAttention, DecoderWithRNN
from solver import caption_loss, train

LENGTHS = [[4, 11, 2, 7, 11], [9], [6, 6, 6], [2, 2], [3, 20, 4]]
PLAIN, ATTENTIVE = 'DecoderWithRNN', 'DecoderWithAttention'
KINDS = [pytest.param(PLAIN, id='rnn'), pytest.param(ATTENTIVE, id='attention')]


def decoder_of(kind, dropout=0.0, **sizes):
    torch.manual_seed(1)
    sizes = {**dict(embed_dim=6, decoder_dim=8, vocab_size=17, encoder_dim=7), **sizes}
    if kind == PLAIN:
        return DecoderWithRNN(**sizes, dropout=dropout)
    return DecoderWithAttention(**sizes, attention_dim=9, dropout=dropout)


def batch_of(lengths, encoder_dim=7, words=17):
    generator = torch.Generator().manual_seed(2)
    pictures = torch.randn(len(lengths), 3, 4, encoder_dim, generator=generator)
    captions = torch.randint(1, words, (len(lengths), max(lengths) + 3), generator=generator)
    return pictures, captions, torch.tensor(lengths).unsqueeze(1)


def results(forward, decoder, pictures, captions, lengths):
    """All that comes out, and the gradients of a loss of it, the pictures' among them."""
    pictures = pictures.clone().requires_grad_()
    predictions, captions, lengths, *alphas, sort_ind = forward(decoder, pictures, captions, lengths)
    if not torch.is_tensor(predictions):
        predictions, _ = pad_packed_sequence(predictions, batch_first=True)
    outputs = [values[sort_ind.argsort()] for values in (predictions, *alphas)]
    loss = sum((values * torch.arange(values.numel(), dtype=values.dtype).sin().view(values.shape)).sum()
               for values in outputs)
    gradients = torch.autograd.grad(loss, [pictures, *decoder.parameters()], allow_unused=True)
    return outputs, gradients, (captions[sort_ind.argsort()].tolist(), list(lengths))


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('lengths', LENGTHS, ids=str)
@pytest.mark.parametrize('kind', KINDS)
def test_outputs_and_gradients_are_those_of_the_textbook_loop(kind, lengths, dtype):
    decoder = decoder_of(kind).to(dtype)
    if len(lengths) == 1:
        decoder.eval()  # batch norm cannot train on one caption
    pictures, captions, caplens = batch_of(lengths)
    textbook = results(type(decoder).forward, decoder, pictures.to(dtype), captions, caplens)
    lean = results(lean_forward, decoder, pictures.to(dtype), captions, caplens)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert lean[2] == textbook[2]
    for one, other in zip([*lean[0], *lean[1]], [*textbook[0], *textbook[1]], strict=True):
        assert one.shape == other.shape and (one - other).abs().max() <= tolerance


@pytest.mark.parametrize('image_of', [[0, 2, 0, 0, 2], [4, 0, 2, 5, 1], [1] * 5, [1, 0, 1, 0, 1]], ids=str)
@pytest.mark.parametrize('kind', KINDS)
def test_captions_may_share_pictures(kind, image_of):
    decoder, image_of = decoder_of(kind).double(), torch.tensor(image_of)
    pictures = torch.randn(int(image_of.max()) + 1, 3, 4, 7, dtype=torch.float64,
                           generator=torch.Generator().manual_seed(4))
    _, captions, caplens = batch_of(LENGTHS[0])
    textbook = results(lambda decoder, pictures, *rest: type(decoder).forward(decoder, pictures[image_of], *rest),
                       decoder, pictures, captions, caplens)
    lean = results(lambda *batch: lean_forward(*batch, image_of), decoder, pictures, captions, caplens)
    assert lean[2] == textbook[2]
    for one, other in zip([*lean[0], *lean[1]], [*textbook[0], *textbook[1]], strict=True):
        assert one.shape == other.shape and (one - other).abs().max() <= 1e-12


def test_half_precision_with_shared_pictures():
    decoder, image_of = decoder_of(ATTENTIVE), torch.tensor([1, 0, 1, 0, 1])
    _, captions, caplens = batch_of(LENGTHS[0])
    pictures = torch.randn(2, 3, 4, 7, generator=torch.Generator().manual_seed(4))
    with torch.autocast('cpu', torch.bfloat16):
        shared, alone = (results(forward, decoder, pictures, captions, caplens) for forward in (
            lambda *batch: lean_forward(*batch, image_of),
            lambda decoder, pictures, *rest: lean_forward(decoder, pictures[image_of], *rest)))
    for one, other in zip((*shared[0], *shared[1]), (*alone[0], *alone[1]), strict=True):
        assert one.dtype == other.dtype
        if one.abs().max() > 1e-6:  # that of att.bias is nothing but rounding
            assert torch.cosine_similarity(one.flatten().float(), other.flatten().float(), dim=0) > 0.999


@pytest.mark.parametrize('sizes', [[4, 4, 2, 1], [3], [1, 1]], ids=str)
def test_the_plain_lstm_is_torchs(sizes):
    torch.manual_seed(3)
    cell = nn.LSTMCell(5, 3).double()
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True)
              for shape in ((sum(sizes), 5), (sizes[0], 3), (sizes[0], 3))]
    ours, torchs = (fast.plain_states(cell, *inputs, torch.tensor(sizes), one_call) for one_call in (False, True))
    assert ours.grad_fn.name() == 'PackedLSTMBackward' != torchs.grad_fn.name()
    assert (ours - torchs).abs().max() < 1e-12
    weights = torch.randn_like(ours)
    for one, other in zip(*(torch.autograd.grad((states * weights).sum(), [*inputs, *cell.parameters()])
                            for states in (ours, torchs)), strict=True):
        assert (one - other).abs().max() < 1e-12


def test_the_plain_lstm_multiplies_in_half_precision_where_it_is_on(monkeypatch):
    torch.manual_seed(3)
    cell, sizes, found = nn.LSTMCell(50, 30), torch.tensor([4, 4, 2, 1]), []
    inputs = [torch.randn(shape, requires_grad=True) for shape in ((11, 50), (4, 30), (4, 30))]
    multiplied, product = [], fast.product
    monkeypatch.setattr(fast, 'product', lambda x, weight, *bias: (
        multiplied.append((x.dtype, weight.dtype)), product(x, weight, *bias))[1])
    for half in (False, True):
        multiplied.clear()
        with torch.autocast('cpu', torch.bfloat16, enabled=half):
            states = fast.plain_states(cell, *inputs, sizes, one_call=False)
        found.append([states, *torch.autograd.grad(states.sin().sum(), [*inputs, *cell.parameters()])])
    assert multiplied == [(torch.bfloat16, torch.bfloat16)] * 2 * len(sizes)
    for single, half in zip(*found, strict=True):
        assert half.dtype == torch.float32 and (single - half).abs().max() > 0
        assert torch.cosine_similarity(single.flatten(), half.flatten(), dim=0) > 0.999


@pytest.mark.parametrize('of', ['h', 'tanh(c)', 'both'])
def test_gradient_of_the_lstm_by_finite_differences(of):
    torch.manual_seed(3)
    sizes, d = [3, 2, 2, 1], 2
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True)
              for shape in ((sum(sizes), 4 * d), (3, d), (3, d), (4 * d, d))]
    wanted = {'h': slice(0, 1), 'tanh(c)': slice(1, 2), 'both': slice(2)}[of]
    assert torch.autograd.gradcheck(lambda *tensors: fast.PackedLSTM.apply(*tensors, sizes)[wanted], inputs)


@pytest.mark.parametrize('picture_of', [[0, 1, 2], [1, 0, 1], [0, 0, 0]], ids=str)
def test_gradient_of_the_recurrence_by_finite_differences(picture_of):
    from lab.train.fast import AttentiveLSTM, Together
    torch.manual_seed(3)
    batch, pixels, e, a, d, sizes = 3, 4, 5, 6, 2, [3, 2, 2, 1]
    shapes = [(max(picture_of) + 1, pixels, e), (batch, pixels, a), (sum(sizes), 4 * d), (batch, d), (batch, d),
              (a + e + 4 * d, d), (a + e,), (a,), (4 * d, e)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    together = Together(torch.tensor(picture_of), max(picture_of) + 1)
    assert together.shared == (len(set(picture_of)) < batch)
    assert torch.autograd.gradcheck(lambda *tensors: AttentiveLSTM.apply(*tensors, sizes, together), inputs)


@pytest.mark.parametrize('kernel', ['found', 'missing'])
@pytest.mark.parametrize('weight', ['contiguous', 'transposed', 'slice'])
def test_products_are_those_of_nn_linear(kernel, weight, monkeypatch):
    if kernel == 'missing':
        monkeypatch.setattr(fast, 'find_kernel', lambda: None)
    torch.manual_seed(0)
    weights = {'contiguous': torch.randn(30, 20), 'transposed': torch.randn(20, 30).T,
               'slice': torch.randn(30, 28)[:, 5:25]}
    x, bias, dy = torch.randn(3, 7, 20), torch.randn(30), torch.randn(3, 7, 30)
    found = []
    for function in (nn.functional.linear, fast.linear):
        inputs = [tensor.detach().requires_grad_() for tensor in (x, weights[weight], bias)]
        y = function(*inputs)
        found.append([y, *torch.autograd.grad(y, inputs, dy)])
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape and torch.allclose(one, other, atol=1e-5)
    without = weights[weight].detach().requires_grad_()
    fast.linear(x, without).sum().backward()
    assert torch.allclose(without.grad, x.detach().sum(dim=(0, 1)).expand_as(without), atol=1e-5)


def test_oneDNN_is_asked_where_torch_has_it(monkeypatch):
    """A training step takes a sixth less with it: a torch that renames the operation should be noticed."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip('this torch is built without oneDNN')
    asked = []
    kernel = fast.find_kernel()
    monkeypatch.setattr(fast, 'find_kernel', lambda: lambda *args: (asked.append(args), kernel(*args))[1])
    decoder = decoder_of(ATTENTIVE)
    predictions, *_ = lean_forward(decoder, *batch_of(LENGTHS[0]))
    forward = len(asked)
    predictions.data.sum().backward()
    steps = max(LENGTHS[0]) - 1
    assert forward == 3 + 2 * steps and len(asked) - forward >= 2 * steps


@pytest.mark.parametrize('label_smoothing', [0.0, 0.2])
def test_cross_entropy_is_torchs(label_smoothing):
    torch.manual_seed(0)
    scores, targets = 5 * torch.randn(50, 13, dtype=torch.float64), torch.randint(0, 13, (50,))
    found = []
    for function in (functools.partial(nn.functional.cross_entropy, reduction='sum'), fast.cross_entropy):
        own = scores.clone().requires_grad_()
        loss = function(own, targets, label_smoothing=label_smoothing)
        (3 * loss).backward()
        found.append((loss.detach(), own.grad))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    with pytest.raises(ValueError, match=r'batch_size \(50\) to match target batch_size \(49\)'):
        fast.cross_entropy(scores, targets[1:])
    again = fast.cross_entropy(scores.clone().requires_grad_(), targets, label_smoothing)
    again.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        again.backward()


@pytest.mark.parametrize('kind', KINDS)
def test_loss_is_the_same(kind):
    decoder, batch = decoder_of(kind), batch_of(LENGTHS[0])
    loss, top5, words = caption_loss(decoder(*batch), 0.7)
    lean_loss, lean_top5, lean_words = caption_loss(lean_forward(decoder, *batch), 0.7)
    assert lean_loss.item() == pytest.approx(loss.item(), abs=1e-5)
    assert (lean_top5, lean_words) == (pytest.approx(top5), words)


@pytest.mark.parametrize('kind', KINDS)
def test_dropout_is_on_h_before_fc_in_training_only(kind, monkeypatch):
    decoder, batch = decoder_of(kind, dropout=0.4), batch_of([5] * 400)
    given = []
    linear = fast.linear
    monkeypatch.setattr(fast, 'linear', lambda x, weight, bias: (
        given.append(x) if weight is decoder.fc.weight else None, linear(x, weight, bias))[1])
    lean_forward(decoder, *batch)
    decoder.eval()
    lean_forward(decoder, *batch)
    dropped, whole = given
    off = dropped == 0
    assert off.float().mean().item() == pytest.approx(0.4, abs=0.02) and not (whole == 0).any()
    if kind == ATTENTIVE:  # the plain decoder's batch norm sees other statistics in training
        assert torch.allclose(dropped[~off], whole[~off] / 0.6, atol=1e-5)


@pytest.mark.parametrize('kind', KINDS)
def test_no_objection_to_the_papers_way_and_nothing_changes(kind):
    decoder, batch = decoder_of(kind, dropout=0.5), batch_of(LENGTHS[0])
    before, state = copy.deepcopy(decoder.state_dict()), torch.get_rng_state()
    assert objection(decoder, *batch) is None
    assert decoder.training and decoder.dropout.p == 0.5 and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in decoder.state_dict().items())
    assert all(p.grad is None for p in decoder.parameters())


def changed(name, function):
    """A change of one method, as students' own decoders have it."""
    def change(decoder):
        decoder.__class__ = type('Changed', (type(decoder),), {name: function(getattr(type(decoder), name))})
    return change


def other_layer(decoder):
    decoder.decode_step = nn.GRUCell(6, 8)


OBJECTIONS = {
    'half the predictions': changed('forward', lambda old: lambda *a: (old(*a)[0] / 2, *old(*a)[1:])),
    'another order': changed('forward', lambda old: lambda *a: (*old(*a)[:-1], old(*a)[-1].flip(0))),
    'no gradient': changed('forward', lambda old: torch.no_grad()(lambda *a: old(*a))),
    'too few': changed('forward', lambda old: lambda *a: old(*a)[1:]),
    'words dropped': changed('forward', lambda old: lambda self, pictures, captions, lengths: old(
        self, nn.functional.dropout(pictures, self.dropout.p, self.training), captions, lengths)),
    'stops': changed('forward', lambda old: lambda *a: 1 / 0),
    'another layer': other_layer,
    'pictures changed in place': changed('forward', lambda old: lambda self, pictures, *a: old(
        self, pictures.div_(pictures.norm(dim=-1, keepdim=True)), *a)),
    'captions changed in place': changed('forward', lambda old: lambda self, pictures, captions, lengths: old(
        self, pictures, captions.clamp_(max=5), lengths)),
    'logits dropped': changed('forward', lambda old: lambda self, *a: on_logits(
        old(self, *a), lambda logits: nn.functional.dropout(logits, self.dropout.p, self.training))),
    'other in eval()': changed('forward', lambda old: lambda self, *a: on_logits(
        old(self, *a), lambda logits: logits if self.training else 0.9 * logits)),
    'random words': changed('forward', lambda old: lambda self, pictures, captions, lengths: old(
        self, pictures, captions.masked_fill(torch.rand(captions.shape) < 1e-9, 3), lengths)),
    'dropout unused': changed('one_step', lambda old: lambda self, *a: undropped(self, old, *a)),
}


def on_logits(results, function):
    return function(results[0]), *results[1:]


def undropped(decoder, old, *inputs):
    dropout, decoder.__dict__['dropout'] = decoder._modules.pop('dropout'), nn.Identity()
    try:
        return old(decoder, *inputs)
    finally:
        decoder._modules['dropout'] = dropout
        del decoder.__dict__['dropout']


@pytest.mark.parametrize('change', OBJECTIONS)
@pytest.mark.parametrize('kind', KINDS)
def test_another_decoder_is_left_as_it_is(kind, change):
    decoder = decoder_of(kind, dropout=0.5)
    OBJECTIONS[change](decoder)
    assert objection(decoder, *batch_of(LENGTHS[0]))


@pytest.mark.parametrize(('draw', 'state'), [
    (random.random, random.getstate), (np.random.random, lambda: np.random.get_state()[1].tolist()),
    (lambda: torch.rand(()).item(), lambda: torch.get_rng_state().tolist())], ids=['python', 'numpy', 'torch'])
@pytest.mark.parametrize('kind', KINDS)
def test_random_numbers_of_any_kind_are_seen_and_kept(kind, draw, state):
    def seldom(forward):
        def with_luck(self, encoder_out, *captions):
            return forward(self, encoder_out * 0 if draw() < 1e-9 else encoder_out, *captions)
        return with_luck

    decoder = decoder_of(kind)
    changed('forward', seldom)(decoder)
    before = state()
    assert objection(decoder, *batch_of(LENGTHS[0])) == 'it draws random numbers'
    assert state() == before


@pytest.mark.parametrize('kind', KINDS)
def test_other_layers_are_named_as_the_reason(kind):
    decoder = decoder_of(kind, dropout=0.5)
    inputs, state = decoder.decode_step.input_size, decoder.decode_step.hidden_size
    decoder.decode_step = nn.LSTMCell(inputs, state, bias=False)
    assert objection(decoder, *batch_of(LENGTHS[0])) == 'its layers are not those that the TODOs ask for'


@pytest.mark.parametrize('kind', KINDS)
def test_training_goes_the_same_way(tiny_cfg, tmp_path, capsys, kind):
    cfg = {**tiny_cfg, 'attention': kind == ATTENTIVE, 'dropout': 0.0}
    histories = [train({**cfg, 'lean': lean, 'output_folder': str(tmp_path / str(lean))}) for lean in (True, False)]
    for one, other in zip(*histories, strict=True):
        for key in ('train_loss', 'val_loss', 'train_top5', 'val_top5', 'val_bleu4', 'val_greedy_bleu4'):
            assert one[key] == pytest.approx(other[key], rel=2e-3, abs=1e-3)
    assert 'as it is written' not in capsys.readouterr().out


def test_another_forward_is_trained_as_it_is_written(tiny_cfg, capsys, monkeypatch):
    calls, old = [], DecoderWithAttention.one_step

    @functools.wraps(old)
    def one_step(self, embeddings, encoder_out, h, c, keys=None):
        calls.append(len(h))
        return old(self, 2 * embeddings, encoder_out, h, c, keys)

    monkeypatch.setattr(DecoderWithAttention, 'one_step', one_step)
    train({**tiny_cfg, 'epochs': 1})
    assert ('Training runs the forward of DecoderWithAttention as it is written, not the faster one of fast.py '
            '(its predictions are others).') in capsys.readouterr().out
    assert sum(calls) > 1000


def test_packed_and_padded_predictions_say_the_same():
    decoder, batch = decoder_of(ATTENTIVE), batch_of(LENGTHS[0])
    predictions, _, lengths, *_ = decoder(*batch)
    packed = pack_padded_sequence(predictions, lengths, batch_first=True)
    assert torch.equal(packed.batch_sizes, lean_forward(decoder, *batch)[0].batch_sizes)
