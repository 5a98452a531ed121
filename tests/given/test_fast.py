"""``fast_forward`` gives what ``forward`` gives, and takes its place only where that is so."""

import copy
from functools import partial

import pytest
import torch
from test_papers import DECODERS, run
from torch import nn

from lab.train.fast import difference, fast_forward
from lab.train.model import build_decoder
from solver import train

LENGTHS = [[4, 11, 2, 7, 11], [9], [6, 6, 6], [2, 2], [3, 20, 4]]
every_kind = pytest.mark.parametrize('kind', ['plain', 'attention'])


def decoder_of(kind, dropout=0.0):
    torch.manual_seed(1)
    cfg = dict(embed_dim=6, decoder_dim=8, attention_dim=9, dropout=dropout, decoder=DECODERS[kind][0],
               decoder_options={})
    return build_decoder(cfg, 17, 7)


def batch_of(lengths, pictures=None):
    generator = torch.Generator().manual_seed(2)
    pictures = torch.randn(pictures or len(lengths), 3, 4, 7, generator=generator)
    captions = torch.randint(1, 17, (len(lengths), max(lengths) + 3), generator=generator)
    return pictures, captions, torch.tensor(lengths).unsqueeze(1)


def results(forward, decoder, pictures, captions, lengths):
    """All that comes out, and the gradients of a loss of it, the pictures' among them."""
    pictures = pictures.clone().requires_grad_()
    outputs = run(partial(forward, decoder), pictures, captions, lengths.flatten().tolist())
    loss = sum((values * torch.arange(values.numel()).double().sin().to(values.dtype).view(values.shape)).sum()
               for values in outputs)
    gradients = torch.autograd.grad(loss, [pictures, *decoder.parameters()], allow_unused=True)
    return [*outputs, *gradients]


# --- It gives the same ---


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize(('lengths', 'image_of'), [
    *((lengths, None) for lengths in LENGTHS),
    *((LENGTHS[0], image_of) for image_of in ([0, 2, 0, 0, 2], [4, 0, 2, 5, 1], [1] * 5, [1, 0, 1, 0, 1]))], ids=str)
@every_kind
def test_outputs_and_gradients_are_those_of_the_textbook_loop(kind, lengths, image_of, dtype):
    """Also where captions share pictures."""
    decoder = decoder_of(kind).to(dtype)
    if len(lengths) == 1:
        decoder.eval()  # batch norm cannot train on one caption
    image_of = torch.arange(len(lengths)) if image_of is None else torch.tensor(image_of)
    pictures, captions, caplens = batch_of(lengths, int(image_of.max()) + 1)

    def textbook(decoder, pictures, *rest):
        return decoder(pictures[image_of], *rest)

    one, other = (results(forward, decoder, pictures.to(dtype), captions, caplens)
                  for forward in (textbook, partial(fast_forward, image_of=image_of)))
    torch.testing.assert_close(other, one, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)


@every_kind
def test_half_precision_comes_close(kind):
    """Outputs and gradients, of captions that share pictures."""
    decoder, image_of, found = decoder_of(kind), torch.tensor([1, 0, 1, 0, 1]), []
    for half in (False, True):
        with torch.autocast('cpu', torch.bfloat16, enabled=half):
            values = results(partial(fast_forward, image_of=image_of), decoder, *batch_of(LENGTHS[0], 2))
        found.append(torch.cat([value.flatten().float() for value in values]))
    assert 0 < (found[0] - found[1]).norm() < 0.05 * found[0].norm()


# --- A decoder that differs runs as it is written ---


@every_kind
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


def changed_logits(function):
    return changed('forward', lambda old: lambda self, *a: (function(self, (all_ := old(self, *a))[0]), *all_[1:]))


def drop(self, values):
    return nn.functional.dropout(values, 0.5, self.training)


def without_bias(decoder):
    decoder.decode_step = nn.LSTMCell(decoder.decode_step.input_size, 8, bias=False)


DIFFERENT = {  # beside the known mistakes, which instructor/tests/test_fast.py has
    'other in eval()': changed_logits(lambda self, logits: logits if self.training else 0.9 * logits),
    'logits dropped': changed_logits(drop),
    'pictures dropped': changed('forward', lambda old: lambda self, a, *rest: old(self, drop(self, a), *rest)),
    'word vectors dropped as well': changed('one_step', lambda old: lambda self, x, *a: old(self, self.dropout(x), *a)),
    'nothing dropped': changed('forward', lambda old: lambda self, *a: old(self.eval(), *a)),
    'no gradient': changed('forward', lambda old: torch.no_grad()(lambda *a: old(*a))),
    'pictures changed in place': changed('forward', lambda old: lambda self, a, *rest: old(
        self, a.div_(a.norm(dim=-1, keepdim=True)), *rest)),
    'too few': changed('forward', lambda old: lambda *a: old(*a)[1:]),
    'stops': changed('forward', lambda old: lambda *a: 1 / 0),
    'a layer without bias': without_bias,
}


@pytest.mark.parametrize('change', DIFFERENT)
@every_kind
def test_another_decoder_is_left_as_it_is(kind, change):
    decoder = decoder_of(kind, dropout=0.5)
    DIFFERENT[change](decoder)
    assert difference(decoder, *batch_of(LENGTHS[0]))


def test_another_forward_is_trained_as_it_is_written(tiny_cfg, tmp_path, capsys, monkeypatch):
    kind = type(decoder_of('attention'))
    monkeypatch.setattr(kind, 'one_step', lambda self, x, *rest, old=kind.one_step: old(self, 2 * x, *rest))
    one, other = (train({**tiny_cfg, 'epochs': 1, 'fast': fast, 'output_folder': str(tmp_path / str(fast))})[0]
                  for fast in (True, False))
    assert 'as it is written' in capsys.readouterr().out
    assert one['train_loss'] == other['train_loss']
