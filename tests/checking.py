"""From numbers to a verdict: equal to what must come out, or one sentence that says what is wrong.

No code of a student runs here, but for what ``ask`` does: it hands a request to a ``models.py`` and brings back arrays
(``protocol.py``). The students' tests and the grader share this judge.
"""

import functools
import importlib
import inspect
import json
import re
import sys
import time
import tomllib
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from inputs import CLASS, Inputs, Layers, build, wave

HERE = Path(__file__).resolve().parent
LABELS = HERE.parent / 'lab' / 'labels.json'  # the Chinese lab's: what it says for names of calls and other words
SAID = json.loads(LABELS.read_text(encoding='utf-8')) if LABELS.exists() else {'calls': {}, 'words': {}}
CALLS, WORDS = SAID['calls'], SAID['words']
MOST = 10_000  # entries that are kept of an array whose shape is none of those expected
LARGEST = 1000  # times the largest number that is expected: nothing is computed from larger ones
TOLERANCE = 1e-4  # of an array's largest number; single precision errs by less than a tenth of it
OF_GRADIENTS = 1e-3
SLOWEST = 5  # times the yardstick; right solutions take 1 to 2.5
STEPS = {'plain': 16 * 21, 'attention': 200, 'attentive': 8 * 21 * 2}  # of the yardstick for the requests for speed
# TODO -> what stands in for earlier ones, those, and a request that tells whether it does without them
EARLIER = {2: (('steps',), (1,), 'plain_forward'), 4: (('attention',), (3,), 'attentive_step'),
           5: (('attention', 'steps'), (3, 4), 'attentive_forward')}
RANDOM = ('_masked', '_words')  # requests whose replies hold random numbers
OF_RATES = ('_rate', '_batch')  # those in which only the calls in training are random
KNOWN = 'Known mistake: '  # begins what a check says of one
OF_ERRORS = {  # how an error begins (without blanks: texts with them are translated) -> its likely cause
    r"NameError:.name.'self'": 'self, the first parameter, is missing in its "def" line',
    'NameError': '"self." is missing before the name of a layer, or a variable is made under another name',
    r"RuntimeError: shape '\[":
        'the sizes in view or reshape do not fit: there are encoder_out.size(1) pixels, which need not be a square',
    r'(?s)RuntimeError: batch\d.*3D':
        'torch.bmm takes (n, a, b) and (n, b, c): look for a missing squeeze or unsqueeze',
    r'RuntimeError:.1D.tensors':
        'torch.dot takes two vectors; for a batch take torch.bmm, or a product and its sum over dim 1',
    r'TypeError: (Decoder\w+|Attention)\.\w+\(\) takes': 'self, the first parameter, is missing in its "def" line',
    r"AttributeError: '(Decoder\w+|Attention)' object": 'it was made without "self.", or under another name',
    '(?s).*builtin_function': 'a name such as input is a function of Python: the tensor has another name here',
    r'.*NoneType':
        'something there is None: a bias that was left out (bias=False), the result of a method without return or of '
        'list.sort(), or keys, which are None where the caller has none',
    r"TypeError: .*missing .* positional argument: 'keys'": 'keys has lost its default: the "def" line says keys=None',
    r'TypeError: cat\(\)': 'torch.cat takes its tensors as one list or tuple: torch.cat([first, second], dim=...)',
    r'TypeError: .*\b(Sigmoid|Tanh|ReLU|Softmax)\b':
        'nn.Sigmoid and the like make a layer; torch.sigmoid computes the numbers',
}
NOT_COUNTED = ('test_speed', 'test_device')  # a TODO is right, for those after it, if all other checks pass


@functools.cache
def rubric_file():
    return tomllib.loads((HERE / 'rubric.toml').read_text(encoding='utf-8'))


def rubric():
    """TODO number -> {'title': ..., 'points': {test name: points}}"""
    return {int(key.removeprefix('todo')): value for key, value in rubric_file().items() if key.startswith('todo')}


# --- What must come out ---


def brief(array):
    """A large array in a few numbers: mixtures along its last dimensions."""
    if array.size <= 64:
        return array
    while array.size > 64 and array.ndim > 1:
        array = array @ wave(array.shape[-1], shift=0.5)
    return array.ravel()


def signature(name, reply):
    """A reply in a few numbers, by which a known mistake is recognised: a hash of names, shapes and errors; two
    mixtures of all entries; their size."""
    one = other = size = 0.0
    words, arrays = [], reply['arrays']
    if name.endswith(OF_RATES):
        arrays = {array: numbers for array, numbers in arrays.items() if ' in training' not in array}
    for name, array in sorted(arrays.items()):
        words += [name, str(array.shape), array.dtype.name]
        flat = np.nan_to_num(array.ravel().astype(float), nan=1e9, posinf=1e9, neginf=-1e9)
        i = np.arange(1, flat.size + 1) + zlib.crc32(name.encode()) % 100
        one, other, size = one + flat @ np.sin(i), other + flat @ np.cos(0.7 * i), size + np.abs(flat).sum()
    for name, error in sorted(reply['errors'].items()):  # names and sizes: versions of torch word the rest differently
        kind, _, text = error['error'].partition(':')
        words += [name, kind, *(re.findall('inplace', text) or re.findall(r"'[^']*'|\d+", text) or [text])]
        words += [str(shape) for _, shape in error.get('shapes', [])]
    return [zlib.crc32(repr(words).encode()), *(float(f'{number:.8g}') for number in (one, other, size))]


def same_signature(one, other):
    return one[0] == other[0] and all(abs(a - b) <= 2e-6 * (one[3] + 1) for a, b in zip(one, other, strict=True))


def key(name, stubs):
    """Of a request, in the stored file."""
    return ' '.join([name, *stubs])


class Stored:
    """What must come out for the public inputs, and what known mistakes give; from ``expected.npz``."""

    def __init__(self, path=HERE / 'expected.npz'):
        with np.load(path) as file:
            self.index, self.numbers = json.loads(str(file['index'])), file['numbers']
        self.layers = Layers(**self.index['layers'])

    def expected(self, name, stubs):
        """:return: name of an array -> (its shape, what ``brief`` makes of it or all of it)"""
        arrays = {}
        for array, shape, start, size in self.index['expected'][key(name, stubs)]:
            numbers = self.numbers[start:start + size]
            arrays[array] = tuple(shape), numbers.reshape(shape) if size == np.prod(shape, dtype=int) else numbers
        return arrays

    def mistakes(self, name, stubs, reply):
        """What is known of a wrong reply: sentences."""
        own, all_known = signature(name, reply), self.index['mistakes'].get(key(name, stubs), {})
        return [mistake for mistake, known in all_known.items() if any(same_signature(own, one) for one in known)]


# --- A models.py that is asked ---


class Subject:
    """A ``models.py``: what it gives, and what must come out.

    :param ask: function request -> reply, with the ``seconds`` that it took
    :param stored: :class:`Stored`, or another with ``layers``, ``expected`` and ``mistakes``
    :param inputs: :class:`Inputs`
    :param yardstick: function steps -> seconds that ``protocol.yardstick`` takes
    :param build: makes a request, as ``inputs.build`` does
    """

    def __init__(self, ask, stored, inputs, yardstick=None, build=build):
        self.ask, self.stored, self.inputs, self.yardstick, self.build = ask, stored, inputs, yardstick, build
        self.reply, self.right = functools.cache(self.reply), functools.cache(self.right)

    def request(self, name, stubs):
        return self.build(name, self.inputs, self.stored.layers, stubs)

    def reply(self, name, stubs):
        reply = self.ask(self.request(name, stubs))
        if not name.endswith('_speed'):  # of which only the first arrays are stored
            reply = shortened(reply, self.stored.expected(name, stubs))
        return by_caption(reply)

    def slowness(self, name, stubs):
        """How many times as long as the yardstick the reply took that is judged: no second one, which could be kept."""
        return self.reply(name, stubs)['seconds'] / self.yardstick(STEPS[name.partition('_')[0]])

    def right(self, todo):
        return all(verdict.outcome == 'passed' for verdict in judge(todo, self, NOT_COUNTED))

    def stubs(self, todo, name):
        """What is put in the place of earlier TODOs: nothing if they are right, or if this one does without them. A
        request that is out of time with them gets the stubs: slow attention costs points in its own TODO."""
        stubs, earlier, main = EARLIER.get(todo, ((), (), ''))
        if all(map(self.right, earlier)) or self.works(main, ()) and not self.works(main, stubs):
            errors = self.reply(name, ())['errors'] if stubs else {}
            return stubs if any('TimeoutError' in str(error) for error in errors.values()) else ()
        return stubs

    def works(self, name, stubs):
        """Whether the first call of a request gives the right predictions."""
        _, expected = self.stored.expected(name, stubs)['predictions']
        return same(self.reply(name, stubs)['arrays'].get('predictions'), expected)


def shortened(reply, expected):
    """Large arrays of other shapes than expected, cut to ``MOST`` entries: else a message could hold millions."""
    shapes = {shape for shape, _ in expected.values()}
    arrays = {name: array if array.size <= MOST or array.shape in shapes else array.ravel()[:MOST]
              for name, array in reply['arrays'].items()}
    return {**reply, 'arrays': arrays}


def by_caption(reply):
    """What ``forward`` gave, in the order of the batch: captions of equal length may be sorted in any order."""
    arrays = dict(reply['arrays'])
    for name, order in arrays.items():
        if name.startswith('sort_ind') and sorted(order.flatten().tolist()) == list(range(order.size)):
            for rows in (name.replace('sort_ind', output) for output in ('predictions', 'alphas', 'encoded_captions')):
                if rows in arrays and len(arrays[rows]) == order.size:
                    arrays[rows] = arrays[rows][order.flatten().astype(int).argsort()]
    return {**reply, 'arrays': arrays}


def same(own, expected, tolerance=TOLERANCE):
    """Equal in shape and, within the tolerance, in numbers."""
    return own is not None and own.shape == expected.shape and np.isfinite(own).all() and bool(
        np.all(np.abs(own.astype(float) - expected) <= tolerance * np.abs(expected).max(initial=1e-3)))


class Lab:
    """The checks' view of one TODO of a ``models.py``."""

    def __init__(self, todo, subject):
        self.todo, self.subject, self.inputs = todo, subject, subject.inputs
        self.names_of_sizes = {size: name for name, size in self.inputs.named_sizes().items()
                               if todo not in (3, 7) or ' ' not in name}  # attention has no LSTM: 13 is num_pixels + 1

    def __call__(self, name, method, stubs=None):
        """Ask; stop here if the TODO is open, or if the first call ends in an error.

        :param name: of the request, see ``inputs.py``
        :param method: the method that it calls, for messages
        :param stubs: in the place of earlier TODOs; None: where those are open or wrong
        """
        stubs = self.subject.stubs(self.todo, name) if stubs is None else stubs
        answer = Answer(self, name, method, stubs)
        for error in answer.errors.values():
            if 'todo' in error:
                pytest.skip(f"not done yet: {error['todo']}")
        for call in ('all', ''):
            if call in answer.errors:
                answer.stopped(call)
        return answer

    def difference_of(self, came, wanted):
        """Two shapes, in words: which dimension should not be there, is missing, or has another size."""
        size = self.size
        if not came and len(wanted) > 1:
            return '.sum() or .mean() without a dimension takes all of them away'
        for i in range(len(came)):
            if came[:i] + came[i + 1:] == wanted:
                squeeze = f': squeeze({i}) takes it away' * (came[i] == 1)
                return f'dimension {i} ({size(came[i])}) should not be there{squeeze}'
        for i in range(len(wanted)):
            if wanted[:i] + wanted[i + 1:] == came:
                squeezed = ': squeeze() without a dimension takes it away' * (wanted[i] == 1)
                return f'dimension {i} ({size(wanted[i])}) is missing{squeezed}'
        if sorted(came) == sorted(wanted):
            return 'the dimensions are in another order'
        if len(came) == len(wanted):
            words = {right for right in wanted if self.names_of_sizes.get(right, 'max').startswith('max')}
            return ', and '.join(f'dimension {i} is {own if right in words else size(own)}, not {size(right)}'
                                 for i, (own, right) in enumerate(zip(came, wanted, strict=True)) if own != right)
        return f'the number of dimensions is {len(came)}, not {len(wanted)}'

    def size(self, n):
        """A size and what it stands for."""
        name = self.names_of_sizes.get(n)
        return f'{n} = {WORDS.get(name, name)}' if name else f'{n}'

    def shapes_at(self, error):
        """Where an error is about shapes: those of the tensors on its line, and what each size stands for."""
        if not re.search(r'(?i)size|shape|dim|\dD|element|tuple|unpack', error['error']):
            return ''
        return ''.join(f'; {name} is a tuple of {shape}' if isinstance(shape, int) else
                       f'; {name} is ({", ".join(map(self.size, shape))})' for name, shape in error.get('shapes', []))


class Answer:
    """What came back, beside what must come out."""

    def __init__(self, lab, name, method, stubs):
        self.lab, self.name, self.method, self.stubs, self.inputs = lab, name, method, stubs, lab.inputs
        self.kind = name.partition('_')[0]
        self.reply = lab.subject.reply(name, stubs)
        self.errors = self.reply['errors']

    @functools.cached_property
    def expected(self):
        return self.lab.subject.stored.expected(self.name, self.stubs)

    @functools.cached_property
    def slowness(self):
        return self.lab.subject.slowness(self.name, self.stubs)

    def __getitem__(self, name):
        """An array of the reply, which must be there: finite and not too large, so that one can compute with it."""
        if name not in self.reply['arrays']:
            calls = sorted((call for call in self.errors if name.endswith(call)), key=len) or list(self.errors)
            if calls:
                self.stopped(calls[-1])
            self.wrong(name, 'it is not there')
        array = self.reply['arrays'][name]
        numbers = array.astype(float)
        _, expected = self.expected.get(name, ((), np.ones(1)))
        most, largest = LARGEST * np.abs(expected).max(initial=1), np.abs(numbers).max(initial=0)
        if not largest <= most:
            place = np.unravel_index(np.nan_to_num(np.abs(numbers), nan=np.inf).argmax(), numbers.shape)
            self.wrong(f'{name} to hold numbers of at most {most:.3g}',
                       f'at {self.index(place)} it is {numbers[place]:.3g}',
                       'a division by zero, exp of large numbers, a mask of -inf, torch.empty, which holds anything, '
                       'or the value that the tensor was filled with at first')
        return numbers if array.dtype.kind == 'f' else array

    def stopped(self, call):
        error, which = self.errors[call], ''
        if 'returned' in error:
            self.wrong(*error['returned'])
        if call not in ('', 'all', '0'):
            which = CALLS.get(call, f' ({call.strip(" ,")})')
        line, where, cause = error.get('line'), '', ''
        if line:
            # an earlier method may stop at what this one hands over
            own = next((own for name, own in reversed(error['called']) if name == self.method), line)
            cause = '' if own == line or '.' not in error['called'][-1][0] else f'an argument in line {own}'
            called = f'; called from line {own}' * (own != line)
            where = f" ({error['file']}, line {line}: {error.get('code', '')}{called})"
        hint = next((hint for pattern, hint in OF_ERRORS.items() if re.match(pattern, error['error'])), '')
        cause = cause or hint
        missing = re.search(rf"'{CLASS.get(self.kind)}' object has no attribute '(\w+)'", error['error'])
        made = self.lab.subject.stored.layers.made
        if missing and missing[1] not in made[self.kind] and any(missing[1] in layers for layers in made.values()):
            cause = f'the layer {missing[1]} belongs to another class'
        self.wrong(f'it to run{which}', f"it stops with {error['error']}{where}{self.lab.shapes_at(error)}", cause)

    def wrong(self, expected, came, cause='', rule='', note=''):
        """Fail, with everything in the first line.

        :param cause: the likely cause of this difference; where it is not known, ``note`` says in which case it shows
            up, or ``rule`` what is right
        """
        known = self.lab.subject.stored.mistakes(self.name, self.stubs, self.reply)
        if known:  # the same error can come from elsewhere, the same numbers hardly
            cause = ('Likely cause: ' if self.errors else KNOWN) + '; or: '.join(known)
        elif self.reply.get('changed'):
            cause = f"Likely cause: {self.method} {self.reply['changed'][0]}"
        elif cause:
            cause = f'Likely cause: {cause}'
        elif note:
            cause = f'Note: {note}'
        elif rule:
            cause = f'It should be: {rule}'
        for call, said in CALLS.items():
            expected = expected.replace(call, said)
        text = f'TODO {self.lab.todo}, {self.method}: expected {expected}; here {came}.'
        pytest.fail(text + (f' {cause}.' if cause else ''), pytrace=False)

    def require(self, true, expected, came, cause='', rule='', **more):
        if not true:
            self.wrong(expected, came, cause, rule, **more)

    def is_right(self, *names, of=None):
        """Whether the arrays of these names are what was expected, of them or of another name."""
        return all(array.shape == size and same(array if size == numbers.shape else brief(array), numbers)
                   for array, (size, numbers) in ((self[name], self.expected[of or name]) for name in names))

    def own_cause(self, name):
        """Why an array is wrong, as far as the reply itself tells."""
        again = self.reply['arrays'].get(f'{name} once more')
        if again is not None and not same(again, self[name]):
            return ('the same call gives other numbers the second time: something in it is random (dropout in eval(), '
                    'torch.randn, a layer that is made anew), or an input or a layer is changed')
        results = [other for other in self.expected if ' ' not in name + other]
        same_as = next((f'these are the numbers of {other}' for other in results if self.is_right(name, of=other)), '')
        shape, expected = self.expected[name]
        training = self.reply['arrays'].get(f'{name} in training')
        only_there = training is not None and training.shape == shape and same(
            training if shape == expected.shape else brief(training), expected)
        return same_as or 'it is right in training, and wrong in eval()' * only_there

    def same(self, *names, shape='', cause='', **more):
        """The arrays of these names are what was expected.

        :param shape: names of the dimensions, for the message
        :param cause, more: as for :meth:`wrong`, with ``rule`` and ``note``
        """
        for name in names:
            array, (size, expected) = self[name], self.expected[name]
            what = f'{name} of shape {size}' + (f' = ({shape})' if shape else '')
            if array.shape != size:
                self.wrong(what, f'the shape is {array.shape}',
                           self.own_cause(name) or self.lab.difference_of(array.shape, size))
            kind = self.reply['arrays'][name].dtype
            self.require(kind in (np.float32, np.int64), f'{name} in single precision', f'it is of dtype torch.{kind}',
                         rule='tensors that you fill have the dtype of encoder_out')
            array = array if array.shape == expected.shape else brief(array)
            tolerance = OF_GRADIENTS if name.startswith('gradient') else TOLERANCE
            far = np.abs(array - expected) - tolerance * self.scale(name)
            if far.size and far.max() > 0:
                place = np.unravel_index(far.argmax(), far.shape)
                index = f' at {self.index(place)}' if place else ''
                if array.shape == size and name.startswith(('predictions', 'alphas', 'encoded')) and array.ndim > 1:
                    index += ' (captions in the order in which they come in)' * self.method.endswith('forward')
                what = f'{name}{index}' if array.shape == size else f'a weighted sum of the entries of {name}{index}'
                allowed = f' (tolerance {tolerance * self.scale(name):.1g})' if kind == np.float32 else ''
                share = 'all' if (far > 0).all() else f'{(far > 0).mean():.0%}'
                self.wrong(f'{what} = {expected[place]:.5g}{allowed}',
                           f'it is {array[place]:.5g}; {share} of its entries differ',
                           self.own_cause(name) or cause, **more)

    @staticmethod
    def index(place):
        return f"[{', '.join(map(str, place))}]"

    def scale(self, name):
        """What the tolerance is relative to: the largest number of an array; of a gradient that is zero in theory, such
        as that of a bias which softmax takes out again, a share of the largest gradient."""
        largest = np.abs(self.expected[name][1]).max(initial=1e-3)
        if name.startswith('gradient'):
            largest = max(largest, 0.01 * max(np.abs(numbers).max(initial=0) for other, (_, numbers)
                                              in self.expected.items() if other.startswith('gradient')))
        return largest


# --- The checks as a function ---


@dataclass(frozen=True)
class Verdict:
    """
    :ivar outcome: 'passed', 'failed' or 'open' (the TODO is not done yet)
    :ivar message: what is wrong; empty if nothing
    :ivar points: given; ``possible``: could be had
    """

    todo: int
    test: str
    outcome: str
    message: str
    points: float
    possible: float


def checks(todo):
    """The test functions of a TODO, in the order of their file."""
    for folder in (HERE, HERE / 'bonus'):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    module = importlib.import_module(f'test_todo{todo}')
    functions = [(name, function) for name, function in inspect.getmembers(module, inspect.isfunction)
                 if name.startswith('test_') and function.__module__ == module.__name__]
    return sorted(functions, key=lambda pair: pair[1].__code__.co_firstlineno)


def judge(todo, subject, skip=()):
    """
    :param subject: :class:`Subject`
    :param skip: names of checks to leave out
    :return: list of :class:`Verdict`
    """
    verdicts = []
    for name, check in checks(todo):
        if name in skip:
            continue
        outcome, message = 'passed', ''
        try:
            check(Lab(todo, subject))
        except pytest.fail.Exception as error:
            outcome, message = 'failed', error.msg
        except pytest.skip.Exception as error:
            outcome, message = 'open', error.msg
        except Exception as error:  # arrays that no honest run gives
            outcome, message = 'failed', f'TODO {todo}: the numbers make no sense ({type(error).__name__}: {error})'
        possible = rubric()[todo]['points'][name] if todo in rubric() else 0  # a bonus task has none
        verdicts.append(Verdict(todo, name, outcome, message, possible if outcome == 'passed' else 0, possible))
    return verdicts


# --- In this process ---


def in_this_process(models, stored=None, inputs=None):
    """:class:`Subject` for a loaded ``models.py``, or for the exception that loading it ended in."""
    import protocol  # torch takes seconds

    def ask(request):
        if isinstance(models, Exception):
            return {'arrays': {}, 'errors': {'all': protocol.describe(models)}}
        protocol.torch.set_num_threads(1)
        seconds, reply = timed(protocol.answer, request, models)
        return {**reply, 'seconds': seconds}

    def yardstick(steps):
        return min(timed(protocol.yardstick, steps)[0] for _ in range(3))

    return Subject(ask, stored or Stored(), inputs or Inputs(), yardstick)


def timed(function, *arguments):
    """Seconds of this thread alone, so that others on a busy machine do not count; and the result."""
    start = time.thread_time()
    result = function(*arguments)
    return time.thread_time() - start, result

