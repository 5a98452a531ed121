"""``fast_forward`` gives what ``forward`` gives, and takes its place only where that is so."""

import copy
import functools
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lab.train import fast
from lab.train.fast import difference, fast_forward
from lab.train.forward import true_words
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
    ours = results(fast_forward, decoder, pictures.to(dtype), captions, caplens)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert ours[2] == textbook[2]
    for one, other in zip([*ours[0], *ours[1]], [*textbook[0], *textbook[1]], strict=True):
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
    ours = results(lambda *batch: fast_forward(*batch, image_of), decoder, pictures, captions, caplens)
    assert ours[2] == textbook[2]
    for one, other in zip([*ours[0], *ours[1]], [*textbook[0], *textbook[1]], strict=True):
        assert one.shape == other.shape and (one - other).abs().max() <= 1e-12


def test_half_precision_with_shared_pictures():
    decoder, image_of = decoder_of(ATTENTIVE), torch.tensor([1, 0, 1, 0, 1])
    _, captions, caplens = batch_of(LENGTHS[0])
    pictures = torch.randn(2, 3, 4, 7, generator=torch.Generator().manual_seed(4))
    with torch.autocast('cpu', torch.bfloat16):
        shared, alone = (results(forward, decoder, pictures, captions, caplens) for forward in (
            lambda *batch: fast_forward(*batch, image_of),
            lambda decoder, pictures, *rest: fast_forward(decoder, pictures[image_of], *rest)))
    for one, other in zip((*shared[0], *shared[1]), (*alone[0], *alone[1]), strict=True):
        assert one.dtype == other.dtype
        if one.abs().max() > 1e-6:  # that of att.bias is nothing but rounding
            assert torch.cosine_similarity(one.flatten().float(), other.flatten().float(), dim=0) > 0.999


def test_the_plain_lstm_multiplies_in_half_precision_where_it_is_on():
    torch.manual_seed(3)
    cell, sizes, found = nn.LSTMCell(50, 30), torch.tensor([4, 4, 2, 1]), []
    inputs = [torch.randn(shape, requires_grad=True) for shape in ((11, 50), (4, 30), (4, 30))]
    for half in (False, True):
        with torch.autocast('cpu', torch.bfloat16, enabled=half):
            states = fast.plain_states(cell, *inputs, sizes)
        found.append([states, *torch.autograd.grad(states.sin().sum(), [*inputs, *cell.parameters()])])
    for single, half in zip(*found, strict=True):
        assert half.dtype == torch.float32 and (single - half).abs().max() > 0
        assert torch.cosine_similarity(single.flatten(), half.flatten(), dim=0) > 0.999


@pytest.mark.parametrize('steps', [1, 4])
def test_gradient_of_a_weight_over_all_steps_by_finite_differences(steps):
    def all_steps(x, weight):
        left, states = {}, []
        for step in range(steps):
            x = fast.Product.apply(x[:4 - step], weight, step, left).sin()  # a caption less at each step
            states.append(x)
        return torch.cat(states)

    torch.manual_seed(3)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 3), (3, 3))]
    assert torch.autograd.gradcheck(all_steps, inputs)


def test_gradient_of_the_scores_by_finite_differences():
    def all_steps(keys, query, w):
        left, scores = {}, []
        for step, n in enumerate([3, 2, 2, 1]):
            scores.append(fast.Score.apply(keys, query[:n], w, step, left).softmax(dim=1))
            query = query[:n].sin() + scores[-1].sum(dim=1, keepdim=True) * scores[-1][:, :1]
        return torch.cat(scores)

    torch.manual_seed(3)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4, 5), (3, 5), (5,))]
    assert torch.autograd.gradcheck(all_steps, inputs)


def test_gradients_of_a_part_leave_nothing_behind():
    """A way back that stops before step 0 must not be counted into the next."""
    decoder, batch = decoder_of(ATTENTIVE), batch_of(LENGTHS[0])
    predictions, *_ = fast_forward(decoder, *batch)
    loss, parameters = predictions.data.sin().sum(), list(decoder.parameters())
    torch.autograd.grad(loss, decoder.embedding.weight, retain_graph=True)
    first, second = (torch.autograd.grad(loss, parameters, retain_graph=True) for _ in range(2))
    wanted = torch.autograd.grad(fast_forward(decoder, *batch)[0].data.sin().sum(), parameters)
    for one, other, right in zip(first, second, wanted, strict=True):
        assert torch.equal(one, right) and torch.equal(other, right)


@pytest.mark.parametrize('picture_of', [[0, 1, 2], [5, 3, 5, 3, 3], [4, 2, 4], [0, 0, 0, 0, 1, 2]], ids=str)
def test_captions_of_a_picture_lie_side_by_side(picture_of):
    chosen, captions_each, place, pictures_of = fast.side_by_side(torch.tensor(picture_of))
    assert len(set(place.tolist())) == len(place)
    assert chosen[place // captions_each].tolist() == picture_of
    assert pictures_of == [int((place[:n] // captions_each).max()) + 1 if n else 0 for n in range(len(place) + 1)]
    assert place.max() < len(chosen) * captions_each and len(chosen) == len(set(picture_of))


@pytest.mark.parametrize('kind', KINDS)
def test_loss_is_the_same(kind):
    decoder, batch = decoder_of(kind), batch_of(LENGTHS[0])
    own, other = (true_words(forward(*batch)) for forward in (decoder, partial(fast_forward, decoder)))
    loss, fast_loss = (caption_loss(*decoded[:3], alpha_c=0.7) for decoded in (own, other))
    assert fast_loss.item() == pytest.approx(loss.item(), abs=1e-5)
    assert torch.equal(own.targets, other.targets) and torch.equal(own.sizes, other.sizes)


@pytest.mark.parametrize('kind', KINDS)
def test_dropout_is_on_h_before_fc_in_training_only(kind):
    decoder, batch = decoder_of(kind, dropout=0.4), batch_of([5] * 400)
    given = []
    decoder.fc.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    fast_forward(decoder, *batch)
    decoder.eval()
    fast_forward(decoder, *batch)
    dropped, whole = given
    off = dropped == 0
    assert off.float().mean().item() == pytest.approx(0.4, abs=0.02) and not (whole == 0).any()
    if kind == ATTENTIVE:  # the plain decoder's batch norm sees other statistics in training
        assert torch.allclose(dropped[~off], whole[~off] / 0.6, atol=1e-5)


@pytest.mark.parametrize('kind', KINDS)
def test_the_papers_way_agrees_and_nothing_changes(kind):
    decoder, batch = decoder_of(kind, dropout=0.5), batch_of(LENGTHS[0])
    before, state = copy.deepcopy(decoder.state_dict()), torch.get_rng_state()
    assert difference(decoder, *batch) is None
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


DIFFERENT = {
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
    'word vectors dropped as well': changed('one_step', lambda old: lambda self, embeddings, *a: old(
        self, self.dropout(embeddings), *a)),
    'dropout by a function': changed('one_step', lambda old: lambda self, *a: undropped(
        self, old, *a, in_its_place=lambda h: nn.functional.dropout(h, 0.5, self.training))),
    'dropout unused': changed('one_step', lambda old: lambda self, *a: undropped(self, old, *a)),
}


def on_logits(results, function):
    return function(results[0]), *results[1:]


def undropped(decoder, old, *inputs, in_its_place=lambda h: h):
    dropout, decoder.__dict__['dropout'] = decoder._modules.pop('dropout'), in_its_place
    try:
        return old(decoder, *inputs)
    finally:
        decoder._modules['dropout'] = dropout
        del decoder.__dict__['dropout']


@pytest.mark.parametrize('change', DIFFERENT)
@pytest.mark.parametrize('kind', KINDS)
def test_another_decoder_is_left_as_it_is(kind, change):
    decoder = decoder_of(kind, dropout=0.5)
    DIFFERENT[change](decoder)
    assert difference(decoder, *batch_of(LENGTHS[0]))


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
    assert difference(decoder, *batch_of(LENGTHS[0])) == 'it draws random numbers elsewhere than in nn.Dropout'
    assert state() == before


@pytest.mark.parametrize('kind', KINDS)
def test_other_layers_are_named_as_the_reason(kind):
    decoder = decoder_of(kind, dropout=0.5)
    inputs, state = decoder.decode_step.input_size, decoder.decode_step.hidden_size
    decoder.decode_step = nn.LSTMCell(inputs, state, bias=False)
    assert difference(decoder, *batch_of(LENGTHS[0])) == 'its layers are not those that the TODOs ask for'


@pytest.mark.parametrize('kind', KINDS)
def test_training_goes_the_same_way(tiny_cfg, tmp_path, capsys, kind):
    cfg = {**tiny_cfg, 'attention': kind == ATTENTIVE, 'dropout': 0.0}
    histories = [train({**cfg, 'fast': how, 'output_folder': str(tmp_path / str(how))}) for how in (True, False)]
    for one, other in zip(*histories, strict=True):
        for key in ('train_loss', 'val_loss', 'train_top5', 'val_top5', 'val_bleu4', 'val_greedy_bleu4'):
            assert one[key] == pytest.approx(other[key], rel=2e-3, abs=1e-3)
    said = ("Your forward agrees with the formulas: training runs the lab's faster form (lab/train/fast.py). "
            'fast=False runs yours.')
    assert capsys.readouterr().out.count(said) == 1  # where it is on


def test_another_forward_is_trained_as_it_is_written(tiny_cfg, capsys, monkeypatch):
    calls, old = [], DecoderWithAttention.one_step

    @functools.wraps(old)
    def one_step(self, embeddings, encoder_out, h, c, keys=None):
        calls.append(len(h))
        return old(self, 2 * embeddings, encoder_out, h, c, keys)

    monkeypatch.setattr(DecoderWithAttention, 'one_step', one_step)
    train({**tiny_cfg, 'epochs': 1})
    said = 'Training runs your forward of DecoderWithAttention as it is written: its predictions are others.'
    assert said in capsys.readouterr().out
    assert sum(calls) > 1000


def test_packed_and_padded_predictions_say_the_same():
    decoder, batch = decoder_of(ATTENTIVE), batch_of(LENGTHS[0])
    predictions, _, lengths, *_ = decoder(*batch)
    packed = pack_padded_sequence(predictions, lengths, batch_first=True)
    assert torch.equal(packed.batch_sizes, fast_forward(decoder, *batch)[0].batch_sizes)
