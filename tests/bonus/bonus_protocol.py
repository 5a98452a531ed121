"""Carry out the requests of a bonus task: ``tests/protocol.py`` for the files of ``lab/more``."""

import contextlib
import functools
import inspect
import operator
import tempfile
from pathlib import Path

import protocol
import torch
from torch import nn


class WithAdapters:
    """A file of ``lab/more`` as ``protocol.answer`` takes a ``models.py``, and the two classes below made of it.

    :param module: the loaded file
    :param replace: name of a method -> what :func:`stub_of` gives in its place, in each object that is made
    """

    def __init__(self, module, replace=()):
        self.module, self.__file__, self.replace = module, module.__file__, replace
        self.EnsembleOfStubs = functools.partial(EnsembleOfStubs, module)
        self.WordVectors = functools.partial(WordVectors, module)

    def __getattr__(self, name):
        value = getattr(self.module, name)
        return functools.partial(self.with_stubs, value) if self.replace and isinstance(value, type) else value

    def with_stubs(self, kind, **sizes):
        made = kind(**sizes)
        for method in self.replace:
            owner, _, name = method.rpartition('.')
            owner = operator.attrgetter(owner)(made) if owner else made
            setattr(owner, name, stub_of(getattr(owner, name), self.replace[method]))
        return made


def answer(request, module):
    """As ``protocol.answer``."""
    protocol.torch.set_num_threads(1)
    adapters = WithAdapters(module, request.get('replace', ()))
    return protocol.answer(request, adapters, contextlib.nullcontext, flat)


def flat(value, outputs=None):
    """What a method gave back, as a list, also from tuples within tuples; a list of numbers is one value."""
    if value is None:
        return []
    if isinstance(value, (tuple, list)) and not (value and all(isinstance(v, int) or getattr(v, 'ndim', 1) == 0
                                                               for v in value)):
        return [one for part in value for one in flat(part)]
    return [value]


def stub_of(method, widths):
    """In the place of a method of an object: each number that it gives depends on all that it is given.

    :param widths: of what it gives, each (n, width)
    """
    signature = inspect.signature(method)

    def stub(*args, **named):
        given = signature.bind(*args, **named).arguments
        return protocol.mixed(sum(widths), *(given[name] for name in signature.parameters
                                    if torch.is_tensor(given.get(name)))).split(widths, dim=1)
    return stub


class StubDecoder(nn.Module):
    """A decoder for ensembles: each number that it gives depends on all that it is given.

    :param shift: another one for each
    :param attend: whether it has memory and alphas
    """

    def __init__(self, shift, attend):
        super().__init__()
        self.shift, self.attend = shift, attend

    def start(self, encoder_out):
        """
        :return: two states, each (batch_size, 3 to 6); memory, if it attends: (batch_size, num_pixels, 2 or 3)
        """
        widths = [3, 4] if self.shift == 0 else [5, 6]
        state = protocol.mixed(sum(widths), encoder_out + self.shift).split(widths, dim=1)
        return state, (encoder_out[..., :2 + self.shift],) * self.attend

    def step(self, words, state, memory):
        """:return: scores (batch_size, 11), new state, alpha (batch_size, num_pixels) or None"""
        given = words.unsqueeze(1) + self.shift, *state, *memory
        widths = [11, *(part.shape[1] for part in state), *(part.shape[1] for part in memory)]
        scores, *others = protocol.mixed(sum(widths), *given).split(widths, dim=1)
        new = tuple(others[:len(state)])
        return 5 * scores, new, others[-1].softmax(dim=1) if self.attend else None


class EnsembleOfStubs(nn.Module):
    """``Ensemble`` of two of them.

    :param attend: which of the two attend
    """

    def __init__(self, module, attend):
        super().__init__()
        self.ensemble = module.Ensemble([StubDecoder(n, one) for n, one in enumerate(attend)])
        self.start(torch.zeros(1, 12, 6))  # the sizes of states and memories

    def start(self, encoder_out):
        return self.ensemble.start(encoder_out)

    def step(self, words, state, memory):
        return self.ensemble.step(words, tuple(state), tuple(memory))


class WordVectors(nn.Module):
    """An embedding that ``load`` fills."""

    WORDS = {'<pad>': 0, 'red': 1, 'star': 2, 'New York': 3, 'blue': 4}

    def __init__(self, module):
        super().__init__()
        self.module, self.embedding = module, nn.Embedding(5, 3)
        nn.init.constant_(self.embedding.weight, 0.5)

    def load(self, text):
        """:return: words found, -1 if the file was refused; all rows (5, 3)"""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / 'vectors.txt'
            path.write_text(text, encoding='utf-8')
            try:
                with torch.enable_grad():  # as it is called
                    count = self.module.load(self.embedding, path, self.WORDS)
            except ValueError:
                count = -1
        return torch.tensor(count), self.embedding.weight.clone()
