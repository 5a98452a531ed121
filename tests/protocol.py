"""Ask a ``models.py`` for numbers: load these weights, call this method on these inputs, give back the arrays.

A *request* is plain data: names, sizes and arrays, see :func:`answer`. It is carried out where the ``models.py`` runs,
and judged elsewhere (``checking.py``). The calls of a request follow one another on one object and on the same
tensors, so what one call leaves behind shows in the next.

Where an earlier TODO is open or wrong, a *stub* takes its place: a function with the right shapes and another formula,
which depends on all that it is given.
"""

import contextlib
import functools
import importlib.abc
import importlib.util
import json
import linecache
import math
import operator
import os
import random
import re
import sys
import traceback
from unittest import mock

import numpy as np
import torch
from torch import nn

SOLUTIONS = ('lab.train.fast', 'lab.more', 'lab.experiments', 'solver')  # they compute what the TODOs ask for
HEADER, PAYLOAD = 1 << 18, 4 << 20  # bytes of a packed reply, at most


# --- Loading a models.py ---


class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(SOLUTIONS):
            raise ImportError(f'{name} computes what the TODOs ask for: models.py must not import it')


@contextlib.contextmanager
def solutions_blocked():
    """In this block the lab's own forms of the TODOs cannot be imported."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(SOLUTIONS)}
    sys.meta_path.insert(0, blocked := Blocked())
    try:
        yield
    finally:
        sys.meta_path.remove(blocked)
        sys.modules.update(kept)


def load(path, block=solutions_blocked):
    """A ``models.py`` as a module of its own: none that was imported before.

    :param block: in this block it runs; of a bonus task, whose files lie in ``lab/more``: ``contextlib.nullcontext``
    """
    name = os.path.basename(path).removesuffix('.py')
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    before, sys.modules[name] = sys.modules.get(name), module  # dataclasses look there
    try:
        with open(path, 'rb') as file, block():
            # compiled here: Python's cached bytecode is told apart by size and second only
            exec(compile(file.read(), path, 'exec'), vars(module))
    finally:
        if before is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = before
    return module


# --- Stubs ---


@functools.cache  # a stub takes the same one at every step
def wave(*shape, shift=0.0):
    """Numbers in -1 ... 1 without a pattern in rows or columns, single precision."""
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.sin(0.37 * i ** 2 + shift).view(shape).float()


def mixed(width, *tensors):
    """(n, width): each number depends on all of its row in every tensor."""
    rows = torch.cat([tensor.flatten(1) for tensor in tensors], dim=1)
    return torch.sin(2 * rows @ wave(rows.shape[1], width, shift=0.7).to(rows.device) / rows.shape[1] ** 0.5)


class StubAttention(nn.Module):
    """In the place of ``Attention``. Without keys it makes its own, so both ways give the same."""

    def __init__(self, encoder_dim, decoder_dim, attention_dim):
        nn.Module.__init__(self)  # of an Attention, see make
        for name, size in (('encoder_att', encoder_dim), ('decoder_att', decoder_dim)):
            setattr(self, name, nn.Linear(size, attention_dim))

    def forward(self, encoder_out, decoder_hidden, keys=None):
        channels, pixels = encoder_out.shape[2], encoder_out.shape[1]
        of_pixels = self.encoder_att(encoder_out) if keys is None else keys
        both = mixed(channels + pixels, encoder_out, self.decoder_att(decoder_hidden), of_pixels)
        return both[:, :channels], both[:, channels:]


def with_stub_steps(module, attends):
    """The module with ``init_hidden_state`` and ``one_step`` of another formula: ``forward`` is left."""
    width, words = module.decoder_dim, module.vocab_size

    def init_hidden_state(self, encoder_out):
        return mixed(2 * width, encoder_out + self.training).split(width, dim=1)

    def plain_step(self, embeddings, h, c):
        return mixed(words + 2 * width, embeddings + self.training, h, c).split((words, width, width), dim=1)

    def attentive_step(self, embeddings, encoder_out, h, c, keys=None):
        pixels = encoder_out.shape[1]
        of_pixels = self.attention.encoder_att(encoder_out) if keys is None else keys
        return mixed(words + pixels + 2 * width, embeddings + self.training, encoder_out, h, c, of_pixels).split(
            (words, pixels, width, width), dim=1)

    module.__class__ = type('Stub', (type(module),), dict(
        init_hidden_state=init_hidden_state, one_step=attentive_step if attends else plain_step))
    return module


# --- Carrying out a request ---


def as_list(value, outputs):
    """What a method gave back: tuples or lists within it stay."""
    if value is None:
        return []
    return list(value) if len(outputs) > 1 and isinstance(value, (tuple, list)) else [value]


def answer(request, models, block=solutions_blocked, as_list=as_list):
    """Carry out a request.

    :param request: dict with ``make``, a class of ``models.py``, and its ``sizes``; ``layers``, name -> [class of
        torch.nn, arguments], put in where the module's own have other shapes; ``weights``, name -> array; ``stubs``,
        of 'attention' and 'steps'; ``tensors``, name -> array; ``permuted``, see :func:`as_tensor`; ``calls``, see
        :func:`carry_out`. Without ``make`` the calls are of functions of the file
    :param models: a loaded ``models.py``
    :param block: as of :func:`load`
    :param as_list: function of what a method gave back and of the names of its outputs
    :return: dict with ``arrays``, name -> array; ``errors``, name of a call -> dict; ``changed``, what the calls do to
        what is not theirs. With a request for no calls the arrays are the shapes of all parameters
    """
    reply = {'arrays': {}, 'errors': {}, 'changed': []}
    seed(0)
    with block():
        try:
            module = models
            if request.get('make'):
                module = make(models, **{key: request.get(key) or {} for key in ('make', 'sizes', 'layers', 'stubs')})
                if request.get('layers'):
                    shift_unlisted(module, request['layers'])
                load_weights(module, request.get('weights', {}))
        except Exception as error:
            reply['errors']['all'] = describe(error, models)
            return reply
        if not request['calls']:
            reply['arrays'] = {name: np.array(shape, dtype=np.int64) for name, shape in shapes(module).items()}
        tensors = {name: as_tensor(array, request.get('permuted')) if isinstance(array, np.ndarray) else array
                   for name, array in request.get('tensors', {}).items()}
        mode, before = 'eval', {name: tensor.clone() for name, tensor in tensors.items() if torch.is_tensor(tensor)}
        for call in request['calls']:
            try:
                file = getattr(models, '__file__', None)
                reply['arrays'] |= carry_out(module, tensors, as_list=as_list, file=file, **call)
            except Exception as error:
                described = describe(error, models)
                if not (described['line'] or hasattr(type(module), call['method'])):  # of a layer
                    described['error'] += f" (when self.{call['method']} is called)"
                reply['errors'].setdefault(call['name'], described)
            mode = call.get('mode') or mode
            if any(part.training != (mode == 'train') for part in modules_of(module)):
                reply['changed'] = ['calls train() or eval(), which is left to the caller']
        # 'encoder_out with more cells' is an encoder_out
        reply['changed'] += [f'changes {re.split(" (?:in|of|with|padded) ", name)[0]} in place'
                             for name, tensor in before.items() if not torch.equal(tensor, tensors[name])]
    return reply


def as_tensor(array, permuted=False):
    """
    :param permuted: lay pixels in memory as ``Encoder`` may give them: not contiguous, the channels not innermost
    """
    tensor = torch.tensor(array)
    return tensor.movedim(-1, 1).contiguous().movedim(1, -1) if permuted and tensor.ndim > 2 else tensor


def make(models, make, sizes, layers, stubs):
    kind, attention = getattr(models, make), getattr(models, 'Attention', None)
    # the class itself is changed: a decoder may make it under another name
    owner = next((base for base in getattr(attention, '__mro__', ()) if '__init__' in vars(base)), nn.Module)
    stub_attention = 'attention' in stubs and not issubclass(kind, owner)
    try:
        with mock.patch.object(owner, '__init__', StubAttention.__init__) if stub_attention else (
                contextlib.nullcontext()):
            module = kind(**sizes)
    except Exception:
        if not layers:
            raise
        module = kind.__new__(kind)
        nn.Module.__init__(module)
        vars(module).update({name: size for name, size in sizes.items() if name != 'dropout'})
    if stub_attention:
        for part in module.children():
            if isinstance(part, owner):
                part.__class__ = StubAttention
    for name, (layer, *arguments) in layers.items():
        right = {'StubAttention': StubAttention, 'Attention': models.Attention}.get(layer) or getattr(nn, layer)
        right = right(*arguments)
        own = module._modules.get(name)
        same = own is not None and shapes(own) == shapes(right) and all(
            getattr(own, option, None) == getattr(right, option, None) for option in ('p', 'sparse'))
        if not same or 'steps' in stubs:
            vars(module).pop(name, None)
            setattr(module, name, right)
    if 'steps' in stubs:
        module = with_stub_steps(module, 'attention' in layers)
    return module.eval()


def modules_of(module):
    return module.modules() if isinstance(module, nn.Module) else ()


def own_tensors(module):
    """Name -> parameter or statistic; ``nn.LSTM`` has other names than ``nn.LSTMCell``, and is as good."""
    return {name.replace('_l0', ''): tensor for name, tensor in module.state_dict().items()
            if not nn.parameter.is_lazy(tensor)}


def shapes(module):
    return {name: tensor.shape for name, tensor in own_tensors(module).items()}


@torch.no_grad()
def shift_unlisted(module, layers):
    """Other numbers for parameters of no layer that the lab lists, such as a first state that is learnt and begins as
    zeros: what comes out must not depend on them.

    :param layers: names of the listed ones
    """
    for name, tensor in module.named_parameters():
        if name.partition('.')[0] not in layers:
            tensor.add_(wave(*tensor.shape, shift=0.3))


@torch.no_grad()
def load_weights(module, weights):
    for name, tensor in own_tensors(module).items():
        if name in weights and tensor.shape == weights[name].shape:
            tensor.copy_(torch.tensor(weights[name]))


def carry_out(module, tensors, name, method, args, outputs, keys=None, mode=None, weights=None, gradient=None,
              random_numbers=None, devices=False, as_list=as_list, file=None):
    """One call.

    :param tensors: name -> tensor; the call works on these, not on copies
    :param name: of the call; it is added to the names of the outputs
    :param method: such as 'one_step', or 'fc' for a layer, or 'word by word', see :func:`word_by_word`
    :param args: names of tensors; a list for a tuple of them
    :param outputs: names of what comes back
    :param keys: [layer, name of a tensor]: hand over ``keys=layer(tensor)``
    :param mode: 'train' or 'eval'; None: as it is
    :param weights: load these first
    :param gradient: names of the first arguments, or none of them: give back, in the place of the outputs, the
        gradients of a mixture of them, for these and for all parameters
    :param random_numbers: seed the random generators with this, and give back also what they give after the call
    :param devices: also which outputs were made on the CPU without looking where the pictures are, and
        ``Devices.fails_at``
    :param file: ``models.py``, as it was loaded
    :return: name -> array
    :raises Returned: something else comes back than the outputs
    """
    if weights:
        if unknown := weights.keys() - own_tensors(module).keys():
            raise KeyError(f'there is no {min(unknown)}')
        load_weights(module, weights)
    if mode:
        module.train(mode == 'train')
    inputs = tensors
    if gradient is not None:
        inputs = {key: value.clone().requires_grad_(value.is_floating_point()) if key in args[:len(gradient)] else value
                  for key, value in tensors.items() if not key.startswith('keys ')}
    functions = {'forward': module, 'word by word': functools.partial(word_by_word, module)}
    function = functions.get(method) or operator.attrgetter(method)(module)
    function = one_word(function) if isinstance(function, nn.LSTM) else function
    if random_numbers:
        seed(random_numbers)
    learns = gradient is not None or getattr(module, 'training', False)
    given = [inputs[arg] if isinstance(arg, str) else tuple(inputs[part] for part in arg) for arg in args]
    with torch.set_grad_enabled(learns), (
            Devices(file, module, *given) if devices else contextlib.nullcontext()) as made:
        extra = {}
        if keys:
            layer, tensor = keys
            made_before = inputs.get(f'keys {tensor}')
            extra = {'keys': operator.attrgetter(layer)(module)(inputs[tensor]) if made_before is None else made_before}
            inputs[f'keys {tensor}'] = extra['keys']
        values = as_list(function(*given, **extra), outputs)
    promised = f'{method} to return {", ".join(outputs)}, {len(outputs)} values, in this order'
    tuples = [name for name, value in zip(outputs, values, strict=False) if isinstance(value, tuple)]
    if len(values) != len(outputs) or tuples:
        raise Returned(promised, f'{tuples[0]} is a tuple' if tuples else f'it returns {len(values)}' if values else
                       'it returns nothing (is the return missing?)')
    if gradient is not None:
        used = {label: inputs[arg] for label, arg in zip(gradient, args, strict=False) if inputs[arg].requires_grad}
        own = dict(module.named_parameters(remove_duplicate=False)) if isinstance(module, nn.Module) else {}
        return gradients(values, {**used, **own}, name)
    arrays = {key + name: as_array(value, key, promised) for key, value in zip(outputs, values, strict=True)}
    if random_numbers:
        arrays[f'random numbers after it{name}'] = np.array(
            [torch.rand(()).item(), random.random(), np.random.random()], dtype=np.float32)
    if devices:
        arrays['made on the CPU'] = np.array([*map(made.on_cpu, values), made.fails_at], dtype=np.int64)
    return arrays


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


class Returned(TypeError):
    """What came back is not what was asked for: (what was expected, what came)."""


def as_array(value, name, promised=''):
    if name == 'decode_lengths' and isinstance(value, (tuple, list)):
        value = torch.tensor(value)
    if not torch.is_tensor(value):
        raise Returned(promised, f'{name} is of type {type(value).__name__}')
    if value.layout != torch.strided or not value.is_floating_point() and value.dtype != torch.long:
        raise Returned(f'{name} as a dense tensor of dtype float or torch.long', f'its dtype is {value.dtype}')
    return value.detach().cpu().numpy().copy()  # a later call may write into it


def gradients(values, tensors, name):
    """Gradients of a mixture of all numbers that came back: zeros where there is none."""
    loss = sum((value * wave(*value.shape, shift=0.1 * (i + 1))).sum() for i, value in enumerate(values)
               if torch.is_tensor(value) and value.requires_grad)
    learn = [tensor for tensor in tensors.values() if tensor.requires_grad]
    grads = torch.autograd.grad(loss, learn, allow_unused=True) if torch.is_tensor(loss) else [None] * len(learn)
    grads = {id(tensor): own for tensor, own in zip(learn, grads, strict=True) if own is not None}
    return {f"gradient of {key.replace('_l0', '')}{name}": as_array(
        grads.get(id(tensor), torch.zeros_like(tensor)), key) for key, tensor in tensors.items()}


def word_by_word(module, encoder_out, words):
    """Scores (batch_size, steps, vocab_size) after each of the words (batch_size, steps), as beam search asks for."""
    state, memory = module.start(encoder_out)
    scores = []
    for word in words.unbind(1):
        predictions, state, _ = module.step(word, state, memory)
        scores.append(predictions)
    return torch.stack(scores, dim=1)


def one_word(lstm):
    """``nn.LSTM`` as ``nn.LSTMCell`` is called."""
    def step(words, state):
        h, c = (part.unsqueeze(0).contiguous() for part in state)
        _, (h, c) = lstm(words.unsqueeze(1 if lstm.batch_first else 0), (h, c))
        return h[0], c[0]
    return step


class Devices(torch.overrides.TorchFunctionMode):
    """Tells tensors on the device of the pictures from those on the CPU, as if that were a GPU.

    :param file: ``models.py``
    :param module, given: its weights and these tensors are on the device, and so is what is computed from them
    :ivar fails_at: the line of ``file`` that would first fail on a GPU, or 0: there a tensor of the device meets one
        that ``torch.zeros`` or the like made without ``device``, or goes to numpy
    """

    MAKERS = {torch.zeros, torch.ones, torch.empty, torch.full, torch.rand, torch.randn, torch.arange, torch.tensor,
              torch.as_tensor, torch.eye, torch.linspace, torch.randint, torch.randperm}
    MAY_MEET = {'__getitem__', '__setitem__', 'copy_', 'to', 'type_as', '_pack_padded_sequence'}

    def __init__(self, file, module, *given):
        super().__init__()
        own = [tensor for part in modules_of(module) for tensor in (*part.parameters(), *part.buffers())]
        self.file, self.fails_at = file, 0
        # by id, and kept, so that no other tensor gets the id; of a tensor that is in neither, nothing is known
        self.of_device, self.of_cpu = {id(tensor): tensor for tensor in tensors_in(*own, *given)}, {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(function, '__name__', '')
        given = list(tensors_in(args, kwargs))
        on_device, on_cpu = any(id(tensor) in self.of_device for tensor in given), list(filter(self.on_cpu, given))
        result = function(*args, **kwargs)
        meet = any(tensor.dim() for tensor in on_cpu) and name not in self.MAY_MEET
        if on_device and (meet or name in ('numpy', '__array__')):
            self.fails_at = self.fails_at or self.line()
        if name in ('cpu', 'cuda', 'type_as') or name == 'to' and any(
                isinstance(target, str | torch.device | torch.Tensor) for target in (*args[1:], *kwargs.values())):
            result, on_device = result[...], name != 'cpu'  # torch may give back the tensor itself
        elif function in self.MAKERS and not given:
            on_device = not isinstance(kwargs.get('device', 'cpu'), str)
        elif not on_device and not on_cpu:
            return result
        (self.of_device if on_device else self.of_cpu).update({id(tensor): tensor for tensor in tensors_in(result)})
        return result

    def on_cpu(self, value):
        return id(value) in self.of_cpu

    def line(self):
        return next((line for frame, line in traceback.walk_stack(sys._getframe())
                     if frame.f_code.co_filename == self.file), 0)


def tensors_in(*values):
    """The tensors among these values, and within tuples, lists and dicts."""
    for value in values:
        if torch.is_tensor(value):
            yield value
        elif isinstance(value, tuple | list | dict):
            yield from tensors_in(*(value.values() if isinstance(value, dict) else value))


def describe(error, models=None):
    """An exception as plain values: its text, the lines of ``models.py`` that it came through, and the shapes of the
    tensors that the last of them names."""
    file = getattr(models, '__file__', None)
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)
              if frame.f_code.co_filename == file]
    called = [[frame.f_code.co_qualname[:100], line] for frame, line in frames[-9:]]
    lines = [line for _, line in called]
    text = re.sub(r'0x[0-9a-f]+', '', str(error)).strip().splitlines()
    text = f'{type(error).__name__}: {text[0].partition(" Hint: ")[0].rstrip(".!") if text else ""}'[:500]
    described = {'error': text, 'line': lines[-1] if lines else None}
    if lines:
        code, there = linecache.getline(file, lines[-1]).strip(), frames[-1][0].f_locals
        named = {name: there.get(name) for name in re.findall(r'(?<![.\w])[a-z]\w*', code)}
        shapes = {name: list(value.shape) if torch.is_tensor(value) else len(value) for name, value in named.items()
                  if isinstance(value, torch.Tensor | tuple)}
        goes_on = len(code) > 100 or code.count('(') > code.count(')')
        described |= {'code': code[:100] + ' ...' * goes_on, 'called': called, 'file': os.path.basename(file),
                      'shapes': list(shapes.items())[:9]}
    if isinstance(error, Returned):
        described['returned'] = list(error.args)
    if isinstance(error, NotImplementedError) and 'TODO' in str(error):
        described['todo'] = str(error)[:300]
    return described


def yardstick(steps, rows=64, width=64, pixels=49):
    """Matrix products about as large as those of ``steps`` words: what the time of a ``forward`` is measured by."""
    x, matrix, grid = wave(rows, 2 * width), wave(4 * width, 2 * width), wave(rows, pixels, width)
    for _ in range(steps):
        (x @ matrix.T).sigmoid().sum()
        (grid + 1).relu().sum(2).softmax(1)


# --- A reply as bytes ---


def pack(reply):
    """:return: a header in JSON (its length in 4 bytes first), then the arrays' bytes"""
    arrays = {name: np.ascontiguousarray(array) for name, array in reply['arrays'].items()}
    header = {'arrays': [[name, array.dtype.name, array.shape] for name, array in arrays.items()],
              'errors': reply['errors'], 'changed': reply.get('changed', [])}
    text = json.dumps(header).encode()
    return b''.join([len(text).to_bytes(4, 'big'), text, *(array.tobytes() for array in arrays.values())])


def unpack(data):
    """The reply in some bytes; they may come from anybody.

    :raises ValueError: they hold no reply
    """
    length = int.from_bytes(data[:4], 'big')
    if length > min(HEADER, len(data) - 4) or len(data) > 4 + HEADER + PAYLOAD:
        raise ValueError('a reply of another length than it says')
    header, place, arrays = json.loads(data[4:4 + length]), 4 + length, {}
    for name, kind, shape in header['arrays']:
        if kind not in ('float16', 'float32', 'float64', 'int64') or len(shape) > 8 or not all(
                type(size) is int and 0 <= size <= PAYLOAD for size in shape):
            raise ValueError('an array of another kind')
        array = np.frombuffer(data, dtype=kind, count=math.prod(shape), offset=place)
        arrays[str(name)], place = array.reshape(shape), place + array.nbytes
    if place != len(data):
        raise ValueError('a reply of another length than it says')
    keys = 'error', 'line', 'code', 'called', 'file', 'shapes', 'returned', 'todo'
    errors = {str(name): {key: error.get(key) for key in keys if key in error}
              for name, error in header['errors'].items()}
    return {'arrays': arrays, 'errors': errors, 'changed': [str(name)[:50] for name in header.get('changed', [])[:9]]}
