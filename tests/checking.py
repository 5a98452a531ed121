"""From what a probe found to a verdict: equal to what must come out, or one sentence that says what is wrong.

The judgement needs no code of the student: it compares arrays. The grader uses it as it is, on arrays that
were computed elsewhere.
"""

import functools
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
TOLERANCE = 1e-6  # relative and absolute, in double precision
SINGLE = 1e-4     # in single precision
SLOWEST = 5       # times the yardstick of the speed probes; right solutions take 1 to 2


@functools.cache
def rubric_file():
    return tomllib.loads((HERE / 'rubric.toml').read_text(encoding='utf-8'))


def rubric():
    """TODO number -> {'title': ..., 'points': {test name: points}}"""
    return {int(key.removeprefix('todo')): value for key, value in rubric_file().items() if key.startswith('todo')}


def to_json(result):
    """What a probe returned, as JSON can hold it."""
    return {name: {'array': value.tolist(), 'shape': list(value.shape)} if isinstance(value, np.ndarray) else value
            for name, value in result.items()}


def from_json(result):
    return {name: np.array(value['array']).reshape(value['shape']) if isinstance(value, dict) else value
            for name, value in result.items()}


def signature(result):
    """A result in a few numbers, by which a known mistake is recognised: name -> [shape, mixtures] or value."""
    found = {}
    for name, value in result.items():
        if name in ('line', 'code', 'seconds', 'yardstick', 'last loss'):  # what differs from machine to machine
            continue
        if name == 'wrong captions':  # how many hangs on rounding
            value = value > 0
        if name == 'error':  # its kind, names and numbers: versions of torch word the rest differently
            details = re.findall('inplace', value) or re.findall(r"'[^']*'|\d+", value)
            value = [value.partition(':')[0], *details]
        elif isinstance(value, np.ndarray):
            flat = np.nan_to_num(value.astype(float).ravel(), nan=1e9, posinf=1e9, neginf=-1e9)
            i = np.arange(1, flat.size + 1)
            value = [list(value.shape), *(float(f'{number:.6g}') for number in (
                flat @ np.sin(i), flat @ np.cos(0.7 * i), np.abs(flat).sum()))]
        found[name] = value
    if 'seconds' in result:
        found['slow'] = result['seconds'] > SLOWEST * result['yardstick']
    return found


def same_signature(one, other):
    def close(a, b):
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(close, a, b))
        if isinstance(a, float) and isinstance(b, float):
            return abs(a - b) <= 2e-5 * (1 + abs(a))
        return a == b
    return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)


def same_values(found, expected, tolerance=TOLERANCE):
    """Arrays of equal shape and, within the tolerance, equal numbers."""
    found, expected = np.asarray(found), np.asarray(expected)
    far = found.shape != expected.shape or np.abs(found - expected) > tolerance * (1 + np.abs(expected))
    return not np.any(far)


class Stored:
    """What must come out and what known mistakes give, for the fixed inputs; from ``expected.json``."""

    @functools.cached_property
    def content(self):
        return json.loads((HERE / 'expected.json').read_text(encoding='utf-8'))

    def expected(self, probe, mode):
        return from_json(self.content['expected'][probe][mode])

    def mistakes(self, probe, result):
        """What is known of a wrong result: sentences."""
        found = signature(result)
        return [mistake for mistake, known in self.content['mistakes'].get(probe, {}).items()
                if same_signature(found, known)]


class Lab:
    """The checks' view of one TODO.

    :param todo: its number
    :param run: function probe name -> result
    :param stored: :class:`Stored`, or the like
    :param inputs: what the probes were given
    """

    def __init__(self, todo, run, stored, inputs):
        self.todo, self.run, self.stored, self.inputs = todo, run, stored, inputs

    def __call__(self, probe, method):
        """Run a probe; its result, or a stop: not done yet, or an error in ``models.py``.

        :param method: the method that the probe calls, for messages
        """
        result = self.run(probe)
        if 'todo' in result:
            pytest.skip(f"not done yet: {result['todo']}")
        found = Found(self, probe, method, result)
        if 'error' in result:
            line = f" (models.py, line {result['line']}: {result.get('code', '')})" if result['line'] else ''
            found.wrong('that it runs', f"it stops with {result['error']}{line}{self.sizes_in(result['error'])}",
                        'look at that line' if line else 'see the message')
        return found


    def sizes_in(self, text):
        """What the sizes in an error message stand for: each dimension has a size of its own."""
        i = self.inputs
        names = {i.batch: 'batch_size', i.num_pixels: 'num_pixels', i.encoder_dim: 'encoder_dim',
                 i.embed_dim: 'embed_dim', i.decoder_dim: 'decoder_dim', i.attention_dim: 'attention_dim',
                 i.vocab_size: 'vocab_size', i.embed_dim + i.encoder_dim: 'embed_dim + encoder_dim',
                 4 * i.decoder_dim: '4 * decoder_dim, the gates of the LSTM', max(i.lengths) - 1: 'max(decode_lengths)'}
        if not re.search('size|shape', text):
            return ''
        seen = dict.fromkeys(int(n) for n in re.findall(r'(?<![\w.])\d+(?![\w.]\d)', text) if int(n) in names)
        return f"; {', '.join(f'{n} is {names[n]}' for n in seen)}" if seen else ''


class Found:
    """What a probe found, beside what was expected."""

    def __init__(self, lab, probe, method, values):
        self.lab, self.probe, self.method, self.values = lab, probe, method, values
        self.inputs = lab.inputs

    @functools.cached_property
    def expected(self):
        return self.lab.stored.expected(self.probe, self.values.get('mode', ''))

    def __getitem__(self, name):
        return self.values[name]

    def wrong(self, expected, came, cause):
        """Fail, with everything in the first line."""
        known = self.lab.stored.mistakes(self.probe, self.values)
        if known:  # the same error can come from elsewhere, the same numbers hardly
            cause = ('Likely cause: ' if 'error' in self.values else 'Known mistake: ') + '; or: '.join(known)
        else:
            cause = f'Likely cause: {cause}'
        pytest.fail(f'TODO {self.lab.todo}, {self.method}: expected {expected}; here {came}. {cause}.', pytrace=False)

    def require(self, true, expected, came, cause):
        if not true:
            self.wrong(expected, came, cause)

    def same(self, *names, shape='', cause='compare your code with the steps of the TODO', tolerance=TOLERANCE):
        """The values under these names are what was expected.

        :param shape: names of the dimensions, for the message
        :param cause: the likely cause if not
        """
        print(f"{self.probe}: {', '.join(names)} within {tolerance:g} of the expected, relative and absolute")
        for name in names:
            self.require(name in self.values, name, 'it was not found', cause)
            found, expected = np.asarray(self.values[name]), np.asarray(self.expected[name])
            what = f'{name} of shape {expected.shape}' + (f' = ({shape})' if shape else '')
            self.require(found.shape == expected.shape, what, f'it has shape {found.shape}',
                         'a dimension too many, too few or in another place')
            self.require(np.isfinite(found).all(), f'{name} to hold numbers', 'it holds nan or inf',
                         'a division by zero, or a softmax over numbers that are too large')
            far = np.abs(found - expected) - tolerance * (1 + np.abs(expected))
            if far.size and far.max() > 0:
                place = np.unravel_index(far.argmax(), far.shape)
                index = f"[{', '.join(map(str, place))}]" if place else ''
                self.wrong(f'{name}{index} = {expected[place]:.6g} (tolerance {tolerance:g})',
                           f'it is {found[place]:.6g}; {(far > 0).mean():.0%} of its entries differ', cause)
