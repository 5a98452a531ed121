"""What a ``models.py`` computes on known inputs: the raw material of the checks in ``test_todo*.py``.

A probe fills layers and inputs with closed forms (no random numbers: the same in every version of torch), runs
one part of ``models.py`` and returns plain arrays and texts. It judges nothing. So that one mistake counts once,
a probe of a later TODO does not use what an earlier one asked for: in its place it puts a *stand-in*, some other
small formula with the same shapes. Each dimension has a size of its own, so that none can be taken for another.
"""

import contextlib
import dataclasses
import functools
import inspect
import linecache
import math
import os
import re
import time
import traceback
import zlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lab.decode.beam_search import greedy_search

PAD, UNK, START, END = 0, -3, -2, -1  # the last three words of a vocabulary
DROPOUT = 0.35


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Sizes, and a shift of all waves; the default is what the public checks use."""

    batch: int = 5
    height: int = 3
    width: int = 4
    encoder_dim: int = 7
    embed_dim: int = 6
    decoder_dim: int = 8
    attention_dim: int = 9
    vocab_size: int = 17
    lengths: tuple = (4, 11, 2, 7, 11)  # <start> and <end> counted: the third caption has no words
    columns: int = 14                   # of the padded captions
    shift: float = 0.0
    stand_ins: bool = True              # for what earlier TODOs asked for

    @property
    def num_pixels(self):
        return self.height * self.width

    def wave(self, *shape, shift=0.0):
        """Numbers in -1 ... 1, double precision, without a pattern in rows or columns."""
        n = math.prod(shape)
        i = torch.linspace(0, max(n - 1, 0), n, dtype=torch.float64)
        return torch.sin(0.37 * i ** 2 + shift + self.shift).view(shape)

    def pictures(self):
        return 2 * self.wave(self.batch, self.num_pixels, self.encoder_dim, shift=0.3)

    def captions(self, columns=None):
        """(batch, columns) word indices and (batch,) lengths."""
        columns, words = columns or self.columns, self.vocab_size - 4
        start, end = self.vocab_size + START, self.vocab_size + END
        rows = [[start, *((3 * i + (i + 2) * t) % words + 1 for t in range(length - 2)), end]
                + [PAD] * (columns - length) for i, length in enumerate(self.lengths)]
        return torch.tensor(rows), torch.tensor(self.lengths)

    def states(self):
        size = self.batch, self.decoder_dim
        return self.wave(*size, shift=1.1), 2 * self.wave(*size, shift=1.2)

    def words(self):
        """Vectors of one word per caption."""
        return self.wave(self.batch, self.embed_dim, shift=1.3)

    def fill(self, module, scale=0.6):
        """Waves for all parameters and statistics, for each name another."""
        with torch.no_grad():
            for name, tensor in module.state_dict().items():
                if tensor.is_floating_point():
                    values = self.wave(*tensor.shape, shift=zlib.crc32(name.replace('_l0', '').encode()) % 1000)
                    tensor.copy_(1.5 + values if name.endswith('running_var') else scale * values)
        return module

    @property
    def word_map(self):
        special = {'<pad>': PAD, '<unk>': self.vocab_size + UNK, '<start>': self.vocab_size + START,
                   '<end>': self.vocab_size + END}
        return {**{f'w{i}': i for i in range(1, self.vocab_size - 3)}, **special}


# ------------------------------------------------------------------------------- layers and stand-ins


def shapes_in(module):
    """Name of each parameter -> shape; the weights of nn.LSTM and nn.LSTMCell have the same names here."""
    return {name.replace('_l0', ''): tuple(parameter.shape) for name, parameter in module.named_parameters()}


def fresh(models, inputs, kind, dropout=0.0):
    """A new layer as ``models.py`` makes it."""
    sizes = dict(embed_dim=inputs.embed_dim, decoder_dim=inputs.decoder_dim, vocab_size=inputs.vocab_size,
                 encoder_dim=inputs.encoder_dim, dropout=dropout)
    if kind == 'attention':
        return models.Attention(inputs.encoder_dim, inputs.decoder_dim, inputs.attention_dim)
    if kind == 'plain':
        return models.DecoderWithRNN(**sizes)
    return models.DecoderWithAttention(attention_dim=inputs.attention_dim, **sizes)


class StandInAttention(nn.Module):
    """In place of TODO 3: weights and a mean of some kind, from another formula."""

    def __init__(self, inputs):
        super().__init__()
        self.encoder_att = nn.Linear(inputs.encoder_dim, inputs.attention_dim)
        self.decoder_att = nn.Linear(inputs.decoder_dim, inputs.attention_dim)
        self.att = nn.Linear(inputs.attention_dim, 1)
        self.calls = 0

    def forward(self, encoder_out, decoder_hidden, keys=None):
        self.calls += 1
        pixels = self.encoder_att(encoder_out) if keys is None else keys
        closeness = (pixels * self.decoder_att(decoder_hidden)[:, None]).sum(2) + self.att.bias
        alpha = 0.1 + closeness ** 2 * self.att.weight.abs().sum()
        alpha = alpha / alpha.sum(1, keepdim=True)
        return encoder_out.amax(1) * (0.5 + alpha.amax(1, keepdim=True)), alpha


def layers_asked_for(inputs, kind, dropout=0.0):
    """Layer name -> module, as a TODO asks for it: what is checked, and used where a ``models.py`` lacks its own."""
    if kind == 'attention':
        return dict(StandInAttention(inputs).named_children())
    e, d, n, v = inputs.embed_dim, inputs.decoder_dim, inputs.encoder_dim, inputs.vocab_size
    shared = {'embedding': (nn.Embedding, v, e), 'dropout': (nn.Dropout, dropout), 'fc': (nn.Linear, d, v)}
    if kind == 'plain':
        wanted = {'init': (nn.Linear, n, e), 'bn': (nn.BatchNorm1d, e), 'decode_step': (nn.LSTMCell, e, d)}
    else:
        wanted = {'attention': (StandInAttention, inputs), 'decode_step': (nn.LSTMCell, e + n, d),
                  'init_h': (nn.Linear, n, d), 'init_c': (nn.Linear, n, d), 'f_beta': (nn.Linear, d, n)}
    return {name: make(*sizes) for name, (make, *sizes) in {**wanted, **shared}.items()}


def layer_shapes(inputs, kind):
    """Name of each parameter of these layers -> shape; those of the attention are TODO 3's."""
    return {f'{name}.{parameter}': shape for name, layer in layers_asked_for(inputs, kind).items()
            if name != 'attention' for parameter, shape in shapes_in(layer).items()}


def decoder_for(models, inputs, kind, dropout=0.0, stand_in=True):
    """A decoder whose layers are right even if the TODO of its ``__init__`` is open or wrong.

    With ``stand_in`` the attention (for TODO 4 and 5) does not come from ``models.py`` either.
    """
    base = models.DecoderWithRNN if kind == 'plain' else models.DecoderWithAttention
    decoder = object.__new__(base)
    nn.Module.__init__(decoder)
    for name in ('embed_dim', 'decoder_dim', 'attention_dim', 'vocab_size', 'encoder_dim'):
        setattr(decoder, name, getattr(inputs, name))
    with contextlib.suppress(Exception):  # what is wrong here is TODO 1's or TODO 4's, and found there
        own = fresh(models, inputs, kind, dropout)
        decoder.__dict__.update(own.__dict__)
    for name, layer in layers_asked_for(inputs, kind, dropout).items():
        found = decoder._modules.get(name)
        right = found is not None and shapes_in(found) == shapes_in(layer)
        if name == 'dropout':
            right = isinstance(found, nn.Dropout) and found.p == dropout
        if name == 'attention':
            right = not stand_in
        if not right:
            decoder._modules.pop(name, None)
            decoder.__dict__.pop(name, None)
            setattr(decoder, name, layer)
    return inputs.fill(decoder.double()).eval()


def with_stand_ins(models, inputs, kind, dropout=0.0):
    """A decoder whose first state and single step are stand-ins: what is left to check is ``forward``.

    A plain recurrence on the decoder's own weights.
    """
    decoder = decoder_for(models, inputs, kind, dropout)
    base, d = type(decoder), inputs.decoder_dim

    def weights(decoder):
        return {name.replace('_l0', ''): weight for name, weight in decoder.decode_step.named_parameters()}

    class StandIn(base):
        called = set()

        def init_hidden_state(self, encoder_out):
            StandIn.called.add('init_hidden_state')
            brightest = encoder_out.amax(1)
            if kind == 'attentive':
                return torch.tanh(self.init_h(brightest)), torch.tanh(self.init_c(brightest))
            start = torch.tanh(F.linear(self.init(brightest), weights(self)['weight_ih'][:d]))
            return start, start / 2

        def _recur(self, inputs, h, c):
            w = {name: weight[:d] for name, weight in weights(self).items()}
            h = torch.tanh(F.linear(inputs, w['weight_ih'], w['bias_ih']) + F.linear(h, w['weight_hh'])) + c / 10
            return F.linear(h, self.fc.weight, self.fc.bias), h, 0.9 * c + h / 10

        def _look_and_recur(self, embeddings, h, c, seen):
            scores, h, c = self._recur(torch.cat([embeddings, seen[0]], 1), h, c)
            return scores, seen[1], h, c

    if kind == 'plain':
        def one_step(self, embeddings, h, c):
            StandIn.called.add('one_step')
            return self._recur(embeddings, h, c)
    elif 'keys' in inspect.signature(base.one_step).parameters:
        def one_step(self, embeddings, encoder_out, h, c, keys=None):
            StandIn.called.add('one_step')
            return self._look_and_recur(embeddings, h, c, self.attention(encoder_out, h, keys))
    else:
        def one_step(self, embeddings, encoder_out, h, c):
            StandIn.called.add('one_step')
            return self._look_and_recur(embeddings, h, c, self.attention(encoder_out, h))
    StandIn.one_step = one_step
    decoder.__class__ = StandIn
    return decoder


# ------------------------------------------------------------------------------- running and recording


PROBES = {}  # name -> function(models, inputs)


def probe(*kinds):
    """Register a function under its name, or once per kind as kind_name."""
    def register(function):
        for kind in kinds:
            PROBES[f'{kind}_{function.__name__}'] = functools.partial(function, kind=kind)
        if not kinds:
            PROBES[function.__name__] = function
        return function
    return register


def run(name, models, inputs=None):
    """Run one probe.

    :param models: the module to look at
    :return: dict: what the probe found, name -> array, text or number; or {'error': ...} with 'todo' (open: its
        text), 'kind' and 'text' of an exception and 'line' of models.py where it came from
    """
    torch.set_num_threads(1)
    try:
        found = PROBES[name](models, inputs or Inputs())
    except Exception as error:
        return describe(error, models)
    return {key: plain(value) for key, value in found.items()}


def describe(error, models):
    """An exception as plain values."""
    file = getattr(models, '__file__', None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    text = re.sub(r'0x[0-9a-f]+', '', str(error)).strip().splitlines()
    found = {'error': f'{type(error).__name__}: {text[0] if text else ""}'[:300], 'line': lines[-1] if lines else None}
    if lines:
        found['code'] = linecache.getline(file, lines[-1]).strip()[:100]
    if isinstance(error, NotImplementedError) and 'TODO' in str(error):
        found['todo'] = str(error)
    return found


def plain(value):
    if torch.is_tensor(value):
        return value.detach().cpu().double().numpy() if value.is_floating_point() else value.detach().cpu().numpy()
    if isinstance(value, (list, tuple)):
        return np.array([int(v) for v in value])
    return value


def is_tensor(value, what):
    if not torch.is_tensor(value):
        raise TypeError(f'{what} must be a tensor, not {type(value).__name__}')
    return value


def amount(value):
    if value is None:
        return 'nothing (is the return missing?)'
    return f'{len(value)} values' if isinstance(value, (tuple, list)) else f'one {type(value).__name__}'


def several(value, names, what):
    """Unpack what a method returned."""
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        raise TypeError(f'{what} must give back {", ".join(names)}, {len(names)} values; it gave {amount(value)}')
    return {name: is_tensor(v, name) for name, v in zip(names, value, strict=True)}


def gradients(inputs, outputs, tensors):
    """Gradients of a mixture of the outputs: name -> (length, a mixture of its entries), zeros where there is none."""
    loss = sum((value * inputs.wave(*value.shape, shift=0.1 * i)).sum()
               for i, value in enumerate(outputs) if value.requires_grad)
    found = [None] * len(tensors)
    if torch.is_tensor(loss):
        found = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    return {f"gradient of {name.replace('_l0', '')}": torch.zeros(2) if gradient is None else mixture(inputs, gradient)
            for name, gradient in zip(tensors, found, strict=True)}


def mixture(inputs, tensor):
    """A tensor in two numbers: its length and a mixture of its entries."""
    tensor = tensor.double()  # a sum of thousands in single precision differs by more than its entries do
    return torch.stack([tensor.norm(), (tensor * inputs.wave(*tensor.shape, shift=0.5)).sum()])


class Devices(torch.overrides.TorchFunctionMode):
    """Notes tensors that were made on the CPU without looking where the batch is.

    A GPU need not be there: what counts is a ``torch.zeros`` and the like without ``device``, or with 'cpu', whose
    result was never moved.
    """

    MAKERS = {torch.zeros, torch.ones, torch.empty, torch.full, torch.rand, torch.randn}

    def __init__(self):
        super().__init__()
        self.homeless = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function in self.MAKERS and isinstance(kwargs.get('device', 'cpu'), str):
            self.homeless[id(result)] = result
        elif getattr(function, '__name__', '') in ('to', 'cuda', 'type_as', 'cpu') and torch.is_tensor(result):
            self.homeless.pop(id(result), None)
        return result

    def made_on_cpu(self, value):
        return id(value) in self.homeless


# ------------------------------------------------------------------------------- TODO 1


@contextlib.contextmanager
def recorded_attention(models):
    """Within the block ``models.Attention`` only notes the sizes it is made with: TODO 3 has a check of its own."""
    sizes = []

    class Recorder(nn.Module):
        def __init__(self, encoder_dim, decoder_dim, attention_dim):
            super().__init__()
            sizes[:] = encoder_dim, decoder_dim, attention_dim

    original, models.Attention = models.Attention, Recorder
    try:
        yield sizes
    finally:
        models.Attention = original


@probe('plain', 'attention', 'attentive')
def layers(models, inputs, kind):
    if kind == 'attention':
        module = fresh(models, inputs, kind)
    else:
        with recorded_attention(models) as attention_sizes:
            module = fresh(models, inputs, kind, DROPOUT)
    found = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    if kind != 'attention':
        # LSTM weights of nn.LSTM are right as well
        found = {name.replace('_l0', ''): shape for name, shape in found.items()}
        dropout = module._modules.get('dropout')
        found['dropout.p'] = float(dropout.p) if isinstance(dropout, nn.Dropout) else -1.0
    if kind == 'attentive':
        found['attention made with'] = attention_sizes if 'attention' in module._modules else []
    return found


@probe()
def plain_start(models, inputs):
    decoder = decoder_for(models, inputs, 'plain', dropout=1.0)  # there must be none here
    found = several(decoder.init_hidden_state(inputs.pictures()), ['h', 'c'], 'init_hidden_state')
    decoder.train()
    trained = several(decoder.init_hidden_state(inputs.pictures()), ['h', 'c'], 'init_hidden_state')
    return {**found, 'h in training': trained['h'], 'c in training': trained['c'],
            'running mean of bn after it': decoder.bn.running_mean}


@probe()
def plain_step(models, inputs):
    decoder = decoder_for(models, inputs, 'plain')
    return several(decoder.one_step(inputs.words(), *inputs.states()), ['predictions', 'h', 'c'], 'one_step')


@probe()
def plain_step_gradient(models, inputs):
    decoder = decoder_for(models, inputs, 'plain')
    embeddings, (h, c) = inputs.words().requires_grad_(), (s.requires_grad_() for s in inputs.states())
    out = decoder.one_step(embeddings, h, c)
    used = {name: p for name, p in decoder.named_parameters() if name.startswith(('decode_step', 'fc'))}
    return gradients(inputs, out, {'embeddings': embeddings, 'h': h, 'c': c, **used})


@probe()
def plain_start_gradient(models, inputs):
    decoder = decoder_for(models, inputs, 'plain')
    encoder_out = inputs.pictures().requires_grad_()
    out = decoder.init_hidden_state(encoder_out)
    used = {name: p for name, p in decoder.named_parameters() if name.startswith(('decode_step', 'init', 'bn'))}
    return gradients(inputs, out, {'encoder_out': encoder_out, **used})


@probe('plain', 'attentive')
def dropout(models, inputs, kind):
    """Everything is dropped (probability 1): in training only fc's bias is left, in eval() nothing is missing."""
    decoder = decoder_for(models, inputs, kind, dropout=1.0)
    pictures = () if kind == 'plain' else (inputs.pictures(),)
    found = {}
    for mode in ('eval()', 'training'):
        decoder.train(mode == 'training')
        predictions, *alpha, h, c = decoder.one_step(inputs.words(), *pictures, *inputs.states())
        found |= {f'predictions in {mode}': predictions, f'h in {mode}': h, f'c in {mode}': c}
        again, *_ = decoder.one_step(inputs.words(), *pictures, *inputs.states())
        found[f'repeatable in {mode}'] = bool(torch.equal(predictions, again))
    decoder = decoder_for(models, inputs, kind, dropout=0.5).train()
    with torch.no_grad():
        decoder.fc.bias.zero_()
        decoder.fc.weight.copy_(torch.eye(inputs.vocab_size, inputs.decoder_dim))  # the scores are what goes into fc
    predictions, *alpha, h, c = decoder.one_step(inputs.words(), *pictures, *inputs.states())
    times = (predictions[:, :inputs.decoder_dim] / h).detach()
    found['0 or 2 times h'] = bool(((times.abs() < 1e-6) | ((times - 2).abs() < 1e-6)).all() and 0 < times.mean() < 2)
    return found


# ------------------------------------------------------------------------------- TODO 3


def attend(attention, pictures, h, **keys):
    return several(attention(pictures, h, **keys), ['z', 'alpha'], 'Attention.forward')


def new_attention(models, inputs):
    """``Attention`` with its own layers, or with the right ones where those are wrong."""
    try:
        attention = fresh(models, inputs, 'attention')
    except Exception:
        attention = object.__new__(models.Attention)
        nn.Module.__init__(attention)
    for name, layer in layers_asked_for(inputs, 'attention').items():
        if shapes_in(attention._modules.get(name, nn.Identity())) != shapes_in(layer):
            attention.__dict__.pop(name, None)
            setattr(attention, name, layer)
    return inputs.fill(attention.double()).eval()


@probe()
def attention_forward(models, inputs):
    return attend(new_attention(models, inputs), inputs.pictures(), inputs.states()[0])


@probe()
def attention_pixels(models, inputs):
    """The same pixels in another order, one picture alone, equal pixels, and pixels far apart."""
    attention, (h, _), pictures = new_attention(models, inputs), inputs.states(), inputs.pictures()
    order = torch.arange(inputs.num_pixels).roll(3).flip(0)
    moved = attend(attention, pictures[:, order], h)
    alone = attend(attention, pictures[:1], h[:1])
    return {'z, pixels in another order': moved['z'],
            'alpha, pixels in another order': moved['alpha'][:, order.argsort()],
            'z of one picture': alone['z'], 'alpha of one picture': alone['alpha'],
            'alpha of equal pixels': attend(attention, pictures[:, :1].expand_as(pictures), h)['alpha'],
            'alpha of strong pixels': attend(attention, 50 * pictures, h)['alpha']}


@probe()
def attention_keys(models, inputs):
    attention, (h, _) = new_attention(models, inputs), inputs.states()
    if 'keys' not in inspect.signature(attention.forward).parameters:
        return {'takes keys': False}
    keys = attention.encoder_att(inputs.pictures())
    return {'takes keys': True, **attend(attention, inputs.pictures(), h, keys=keys)}


@probe()
def attention_gradient(models, inputs):
    attention = new_attention(models, inputs)
    pictures, h = inputs.pictures().requires_grad_(), inputs.states()[0].requires_grad_()
    out = attend(attention, pictures, h)
    return gradients(inputs, out.values(), {'encoder_out': pictures, 'h': h, **dict(attention.named_parameters())})


# ------------------------------------------------------------------------------- TODO 4


ATTENTIVE_STEP = ['predictions', 'alpha', 'h', 'c']


@probe()
def attentive_start(models, inputs):
    decoder = decoder_for(models, inputs, 'attentive', dropout=1.0)  # there must be none here
    found = several(decoder.init_hidden_state(inputs.pictures()), ['h', 'c'], 'init_hidden_state')
    trained = several(decoder.train().init_hidden_state(inputs.pictures()), ['h', 'c'], 'init_hidden_state')
    return {**found, 'h in training': trained['h'], 'c in training': trained['c']}


def step_decoder(models, inputs):
    """With a stand-in for the attention, if one_step uses it; else, where it does that itself, without."""
    decoder = decoder_for(models, inputs, 'attentive')
    decoder.attention = inputs.fill(StandInAttention(inputs).double())
    with torch.no_grad():
        decoder.one_step(inputs.words(), inputs.pictures(), *inputs.states())
    if decoder.attention.calls and inputs.stand_ins:
        return decoder, 'stand-in'
    return decoder_for(models, inputs, 'attentive', stand_in=False), 'own'


@probe()
def attentive_step(models, inputs):
    decoder, mode = step_decoder(models, inputs)
    out = decoder.one_step(inputs.words(), inputs.pictures(), *inputs.states())
    return {**several(out, ATTENTIVE_STEP, 'one_step'), 'mode': mode}


@probe()
def attentive_gate(models, inputs):
    """The gate shut, half open and open: its layer gives -1000, 0, 1000, whatever h is."""
    decoder, mode = step_decoder(models, inputs)
    layer, found = decoder.f_beta, {'mode': mode}
    with torch.no_grad():
        layer.weight.zero_()
        for name, bias in (('shut', -1000), ('half open', 0), ('open', 1000)):
            layer.bias.fill_(bias)
            out = decoder.one_step(inputs.words(), inputs.pictures(), *inputs.states())
            found[f'h, gate {name}'] = several(out, ATTENTIVE_STEP, 'one_step')['h']
    return found


@probe()
def attentive_step_gradient(models, inputs):
    decoder, mode = step_decoder(models, inputs)
    words, pictures, (h, c) = (inputs.words().requires_grad_(), inputs.pictures().requires_grad_(),
                               (s.requires_grad_() for s in inputs.states()))
    out = several(decoder.one_step(words, pictures, h, c), ATTENTIVE_STEP, 'one_step')
    tensors = {'embeddings': words, 'encoder_out': pictures, 'h': h, 'c': c, **dict(decoder.named_parameters())}
    return {**gradients(inputs, out.values(), tensors), 'mode': mode}


# ------------------------------------------------------------------------------- TODO 2 and 5: forward


def call_forward(decoder, encoder_out, tokens, lengths):
    """forward's values by name, and the tensors once more in the order of the batch."""
    attends = hasattr(decoder, 'attention')
    names = ['predictions', 'encoded_captions', 'decode_lengths'] + ['alphas'] * attends + ['sort_ind']
    out = decoder(encoder_out, tokens, lengths)
    if not isinstance(out, (tuple, list)) or len(out) != len(names):
        raise TypeError(f'forward must give back {", ".join(names)}, {len(names)} values; it gave {amount(out)}')
    out = dict(zip(names, out, strict=True))
    for name in names:
        if name != 'decode_lengths':
            is_tensor(out[name], name)
    out['decode_lengths'] = [int(n) for n in out['decode_lengths']]
    if out['sort_ind'].is_floating_point():
        raise TypeError(f"sort_ind must hold whole numbers, one per caption; it has {out['sort_ind'].dtype} of shape "
                        f"{tuple(out['sort_ind'].shape)}: is the order of what forward returns right?")
    sort_ind = out['sort_ind'].flatten().tolist()
    if sorted(sort_ind) != list(range(len(tokens))):
        raise ValueError(f'sort_ind must hold each of 0 ... {len(tokens) - 1} once; it is {sort_ind}')
    back = torch.tensor(sort_ind).argsort()
    for name in ('predictions', 'alphas')[:1 + attends]:
        if len(out[name]) != len(tokens):
            raise ValueError(f'{name} has {len(out[name])} rows for a batch of {len(tokens)} captions')
        out[name] = out[name][back]
    return out


def forward_decoder(models, inputs, kind, dropout=0.0):
    """With stand-ins for first state and single step, if forward uses them; else, where it is on its own, without."""
    decoder = with_stand_ins(models, inputs, kind, dropout)
    with torch.no_grad():
        decoder(inputs.pictures(), *inputs.captions())
    if len(type(decoder).called) == 2 and inputs.stand_ins:
        return decoder, 'stand-in'
    return decoder_for(models, inputs, kind, dropout, stand_in=False), 'own'


@probe('plain', 'attentive')
def forward(models, inputs, kind):
    decoder, mode = forward_decoder(models, inputs, kind, dropout=1.0)  # the stand-in for one_step has none
    tokens, lengths = inputs.captions()
    pictures = inputs.pictures()
    kept = pictures.clone(), tokens.clone(), lengths.clone()
    with torch.no_grad():
        out = call_forward(decoder, pictures, tokens, lengths.unsqueeze(1))
    # captions of equal length may come in any order
    out['encoded_captions'] = out['encoded_captions'][out['sort_ind'].argsort()]
    out['sorted lengths'] = [int(n) - 1 for n in lengths[out.pop('sort_ind').cpu()]]
    out['inputs untouched'] = all(map(torch.equal, kept, (pictures, tokens, lengths)))
    with torch.no_grad():
        trained = call_forward(decoder.train(), pictures, tokens, lengths)
    return {**out, 'predictions in training': trained['predictions'], 'mode': mode}


@probe('plain', 'attentive')
def forward_batch(models, inputs, kind):
    """The same captions in other company: another order, each alone, other padding, pictures as grids."""
    decoder, mode = forward_decoder(models, inputs, kind)
    tokens, lengths = inputs.captions()
    pictures = inputs.pictures()
    order = torch.arange(inputs.batch).roll(2).flip(0)
    after_end = torch.arange(inputs.columns) >= lengths.unsqueeze(1)
    grid = pictures.view(inputs.batch, inputs.height, inputs.width, -1)
    variants = {
        'in another order': (pictures[order], tokens[order], lengths[order]),
        'first caption alone': (pictures[:1], tokens[:1], lengths[:1]),
        'padded with another word': (pictures, tokens.masked_fill(after_end, 3), lengths),
        'padded to the longest': (pictures, tokens[:, :max(inputs.lengths)], lengths),
        'pictures as grids': (grid, tokens, lengths.unsqueeze(1)),
    }
    found = {'mode': mode}
    for name, batch in variants.items():
        with torch.no_grad():
            out = call_forward(decoder, *batch)
        values = out['predictions']
        if name == 'in another order':
            values = values[order.argsort()]
        found[name] = values
    return found


@probe('plain', 'attentive')
def forward_time(models, inputs, kind):
    """Change word t: which predictions notice?"""
    decoder, mode = forward_decoder(models, inputs, kind)
    found = {'mode': mode}
    with torch.no_grad():
        tokens, lengths = inputs.captions()
        before = call_forward(decoder, inputs.pictures(), tokens, lengths)['predictions']
        for t in range(max(inputs.lengths) - 1):
            other = tokens.clone()
            other[:, t] = (other[:, t] + 1) % inputs.vocab_size
            after = call_forward(decoder, inputs.pictures(), other, lengths)['predictions']
            found[f'word {t}'] = ((after - before).abs().amax(2) > 1e-9).int()
            found[f'after word {t}'] = mixture(inputs, after)
    return found


@probe('plain', 'attentive')
def forward_gradient(models, inputs, kind):
    decoder, mode = forward_decoder(models, inputs, kind)
    encoder_out = inputs.pictures().requires_grad_()
    out = call_forward(decoder, encoder_out, *inputs.captions())
    tensors = {'encoder_out': encoder_out, **dict(decoder.named_parameters())}
    return {**gradients(inputs, [out[name] for name in ('predictions', 'alphas') if name in out], tensors),
            'mode': mode}


@probe('plain', 'attentive')
def forward_device(models, inputs, kind):
    decoder, mode = forward_decoder(models, inputs, kind)
    with torch.no_grad(), Devices() as devices:
        tokens, lengths = inputs.captions()
        out = decoder(inputs.pictures(), tokens, lengths)
    homeless = [name for name, value in zip(('predictions', '', '', 'alphas'), out, strict=False)
                if name and devices.made_on_cpu(value)]
    return {'made on the CPU': ' and '.join(homeless)}


@probe('plain', 'attentive')
def forward_single(models, inputs, kind):
    """Single precision, as in training."""
    decoder, mode = forward_decoder(models, inputs, kind)
    with torch.no_grad():
        out = call_forward(decoder.float(), inputs.pictures().float(), *inputs.captions())
    names = [name for name in ('predictions', 'alphas') if name in out]
    return {'mode': mode, 'types': ', '.join(f'{name} {out[name].dtype}'.replace('torch.', '') for name in names),
            **{name: out[name] for name in names}}


@probe('plain', 'attentive')
def learning(models, inputs, kind, steps=150):
    """Learn the few captions by heart: the loss on the way, and the captions that greedy decoding then gives."""
    from lab.train.forward import true_words  # here, because these import models
    from solver import caption_loss
    inputs = dataclasses.replace(inputs, decoder_dim=5 * inputs.decoder_dim)
    decoder, mode = forward_decoder(models, inputs, kind)
    inputs.fill(decoder, scale=0.2).train()
    encoder_out, (tokens, lengths) = inputs.pictures(), inputs.captions()
    optimizer = torch.optim.Adam(decoder.parameters(), lr=2e-2)
    losses = []
    for _ in range(steps):
        loss = caption_loss(*true_words(decoder(encoder_out, tokens, lengths))[:2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    decoder.eval()
    with torch.no_grad():
        loss = caption_loss(*true_words(decoder(encoder_out, tokens, lengths))[:2])
    captions = greedy_search(decoder, encoder_out, inputs.word_map, max_len=max(inputs.lengths))
    return {'first losses': torch.tensor(losses[:10]), 'last loss': loss.item(), 'mode': mode,
            'wrong captions': sum(found.words != row[1:n - 1].tolist()
                                  for found, row, n in zip(captions, tokens, inputs.lengths, strict=True))}


@probe('plain', 'attention', 'attentive')
def speed(models, inputs, kind):
    """Seconds of forward on a batch of usual size, and of a loop of matrix products of the same size."""
    big = dataclasses.replace(inputs, batch=64, height=5, width=5, encoder_dim=48, embed_dim=40, decoder_dim=64,
                              attention_dim=56, vocab_size=200, lengths=(22,) * 64, columns=22)
    if kind == 'attention':
        attention, (h, _), pictures, mode = new_attention(models, big), big.states(), big.pictures(), ''

        def work():
            return attention(pictures, h)[0]
    else:
        decoder, mode = forward_decoder(models, big, kind)

        def work():
            return call_forward(decoder, big.pictures(), *big.captions())['predictions']
    matrix = big.wave(4 * big.decoder_dim, 2 * big.decoder_dim)
    batch = big.wave(big.batch, 2 * big.decoder_dim)
    pixels = big.wave(big.batch, big.num_pixels, big.attention_dim)

    steps = {'attention': 1, 'plain': max(big.lengths), 'attentive': 3 * max(big.lengths)}[kind]

    def yardstick():
        for _ in range(steps):
            F.linear(batch, matrix).sigmoid().sum()
            (pixels + 1).relu().sum(2).softmax(1)
            batch.clone().view(-1)

    with torch.no_grad():
        result = mixture(inputs, is_tensor(work(), 'the result'))
        seconds, of_yardstick = best_times(work, yardstick)
        return {'result': result, 'seconds': seconds, 'yardstick': of_yardstick, 'mode': mode}


def best_times(*functions, repeats=20):
    """The best time of each, in turns, and of this thread alone: others on a busy machine must not cost a point.

    Not the process's time: under a limit on that, as the grader sets it, Linux counts it in steps of some ms only,
    as Windows counts the thread's.
    """
    clock = time.perf_counter if os.name == 'nt' else time.thread_time
    times = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(repeats):
        for function, own in zip(functions, times, strict=True):
            start = clock()
            function()
            own.append(clock() - start)
        if sum(map(sum, times)) > 2:
            break
    return [min(own) for own in times]
