"""What the reference and every mistake of the library give for the requests of the checks: ``tests/expected.npz``.

The students' checks read it, so they compare with the reference and name known mistakes without holding a line of
the solution. ``tests/bonus/expected.npz`` is the same for the bonus task. ``make remake`` writes both files.
"""

import contextlib
import io
import json
import linecache
import sys
import tempfile
from pathlib import Path

import numpy as np
from torch import nn
from tqdm import tqdm

from instructor.assemble import ROOT
from instructor.cut import BONUS, REFERENCE
from instructor.mistakes import mistakes

sys.path[:0] = [str(ROOT / 'tests'), str(ROOT / 'tests' / 'bonus')]
import bonus_protocol  # noqa: E402
import bonus_requests  # noqa: E402
import checking  # noqa: E402
import inputs  # noqa: E402
import protocol  # noqa: E402

EXPECTED, EXPECTED_OF_BONUS = ROOT / 'tests' / 'expected.npz', ROOT / 'tests' / 'bonus' / 'expected.npz'
TODOS = tuple(checking.rubric())
STUBS = {1: [()], 2: [(), ('steps',)], 3: [()], 4: [(), ('attention',)], 5: [(), ('attention', 'steps')]}
MADE_WITH = {nn.Linear: ('in_features', 'out_features'), nn.Embedding: ('num_embeddings', 'embedding_dim'),
             nn.LSTMCell: ('input_size', 'hidden_size'), nn.BatchNorm1d: ('num_features',), nn.Dropout: ('p',)}
LEFT_OUT = ('sort_ind', 'made on the CPU', 'random numbers')  # judged apart


class WrongReference(Exception):
    """What the reference gives cannot be what must come out: it stops, or fails a check."""


def load(source, folder, name='models.py', block=protocol.solutions_blocked):
    """A ``models.py``, or another file, from its source; ``block`` as of ``protocol.load``."""
    path = Path(folder) / name
    path.write_text(source, encoding='utf-8')
    linecache.clearcache()  # errors quote its lines, and a file of that name may have been there before
    return protocol.load(path, block)


def layers_of(models, given):
    """The layers of a ``models.py`` that is right.

    :param given: ``inputs.Inputs``
    :return: ``inputs.Layers``
    """
    made, shapes = {}, {}
    for kind, name in inputs.CLASS.items():
        module = protocol.make(models, name, given.sizes(kind), {}, ['attention'])
        made[kind] = {}
        for layer, part in module.named_children():
            if isinstance(part, protocol.StubAttention):
                made[kind][layer] = ['StubAttention', part.encoder_att.in_features, part.decoder_att.in_features,
                                     part.encoder_att.out_features]
            else:
                made[kind][layer] = [type(part).__name__, *(getattr(part, size) for size in MADE_WITH[type(part)])]
        shapes[kind] = {key: list(shape) for key, shape in protocol.shapes(module).items() if shape}
    return inputs.Layers(made, shapes)


class Fresh:
    """What must come out for some inputs: what the reference gives now.

    :param given: ``inputs.Inputs``
    :param reference: a loaded ``models.py``
    :raises WrongReference: the reference stops
    """

    todos, of_todo, stubs = TODOS, inputs.OF_TODO, STUBS

    def __init__(self, given, reference):
        self.inputs, self.reference, self.replies = given, reference, {}
        self.layers = self.layers_of(reference)
        subject = self.subject(reference)
        for request in [request for todo in self.todos for request in self.requests(todo)]:
            reply = checking.by_caption(subject.ask(subject.request(*request)))
            if reply['errors']:
                raise WrongReference(f"the reference stops in {request[0]}: {reply['errors']}")
            self.replies[request] = reply

    def requests(self, todo):
        return [(name, stubs) for name in self.of_todo[todo] for stubs in self.stubs.get(todo, [()])]

    def layers_of(self, models):
        return layers_of(models, self.inputs)

    def subject(self, models, stored=None):
        """:return: ``checking.Subject``"""
        return checking.in_this_process(models, stored or self, self.inputs)

    def patched(self, mistake, folder):
        """The reference with a mistake, or another right solution, in it."""
        return load(mistake.source(), folder)

    def expected(self, name, stubs):
        arrays = self.replies[name, stubs]['arrays']
        if name.endswith(checking.OF_RATES):
            arrays = {array: numbers for array, numbers in arrays.items() if ' in training' not in array}
        return {array: (numbers.shape, numbers) for array, numbers in arrays.items() if not array.startswith(LEFT_OUT)}

    def mistakes(self, name, stubs, reply):
        return []

    def wrong(self):
        """What the checks say of the reference itself, also with stubs in it: sentences."""
        subject = self.subject(self.reference)
        verdicts = [verdict for todo in self.todos for verdict in checking.judge(todo, subject)]
        subject.stubs = lambda todo, name: self.stubs[todo][-1]
        verdicts += [verdict for todo in self.stubs for verdict in checking.judge(todo, subject, checking.NOT_COUNTED)]
        return [verdict.message for verdict in verdicts if verdict.outcome != 'passed']


class FreshBonus(Fresh):
    """The same for the bonus task; its reference is path -> loaded file."""

    todos, of_todo, stubs = tuple(BONUS), bonus_requests.OF_TODO, {}

    def layers_of(self, files):
        shapes = {}
        for kind, (file, name, options) in bonus_requests.KINDS.items():
            if name:
                made = bonus_requests.sizes(self.inputs, kind) | options
                module = getattr(bonus_protocol.WithAdapters(files[file]), name)(**made)
                shapes[kind] = {key: list(shape) for key, shape in protocol.shapes(module).items() if shape}
        return inputs.Layers({}, shapes)

    def subject(self, files, stored=None):
        def ask(request):
            return {**bonus_protocol.answer(request, files[request['file']]), 'seconds': 0.0}
        return checking.Subject(ask, stored or self, self.inputs, build=bonus_requests.build)

    def patched(self, mistake, folder):
        file = BONUS[mistake.todo]
        return {**self.reference, file: load(mistake.source(), folder, Path(file).name, contextlib.nullcontext)}


def fresh():
    """What must come out for the public inputs."""
    with tempfile.TemporaryDirectory() as folder:
        return Fresh(inputs.Inputs(), load(REFERENCE.read_text(encoding='utf-8'), folder))


def fresh_bonus():
    """The same for the bonus task."""
    files = {file: protocol.load(ROOT / file, contextlib.nullcontext) for file in set(BONUS.values())}
    return FreshBonus(bonus_requests.INPUTS, files)


def expected(right, library):
    """The content of a file: an index that JSON can hold, and all numbers.

    :param right: :class:`Fresh`
    :param library: the known mistakes
    :raises WrongReference: the reference fails a check of a TODO
    :raises ValueError: a mistake of the library does not fit the reference any more
    """
    if wrong := right.wrong():
        raise WrongReference(f'the reference fails its own checks: {wrong[0]}')
    index, numbers, size = {}, [], 0
    for name, stubs in right.replies:
        entries = index[checking.key(name, stubs)] = []
        if name.endswith(checking.RANDOM):
            continue
        first = right.subject(right.reference).request(name, stubs)['calls'][:1]
        large = name.endswith(('_speed', '_large', *checking.OF_RATES))
        whole = [] if large else [output for call in first for output in call['outputs']]
        for array, (shape, values) in right.expected(name, stubs).items():
            if 'speed' in name and len(entries) >= 4:
                continue
            values = values if array in whole else checking.brief(values)
            entries.append([array, list(shape), size, values.size])
            numbers.append(values.ravel())
            size += values.size
    signatures = {request: checking.signature(request[0], reply) for request, reply in right.replies.items()}
    known = {checking.key(*request): {} for request in signatures}
    with tempfile.TemporaryDirectory() as folder:
        for mistake in tqdm(library, desc='mistakes', unit='mistake', leave=False):
            subject = right.subject(right.patched(mistake, folder))
            own = {request: checking.signature(request[0], subject.reply(*request))
                   for request in right.requests(mistake.todo) if not request[0].endswith('_speed')}
            wrong = {request: found for request, found in own.items()
                     if not checking.same_signature(found, signatures[request])}
            for request, found in wrong.items():
                known[checking.key(*request)].setdefault(mistake.about, []).append(found)
    layers = {'made': right.layers.made, 'shapes': right.layers.shapes}
    return {'layers': layers, 'expected': index, 'mistakes': known}, np.concatenate(numbers).astype(np.float32)


def content_of(data):
    """Index and numbers in the bytes of ``expected.npz``."""
    with np.load(io.BytesIO(data)) as file:
        return json.loads(str(file['index'])), file['numbers']


def as_file(index, numbers):
    """The bytes of ``expected.npz``."""
    file = io.BytesIO()
    np.savez_compressed(file, index=np.array(json.dumps(index, separators=(',', ':'))), numbers=numbers)
    return file.getvalue()


def files():
    """Path -> what belongs there: the files of the lab and of the bonus task."""
    return {EXPECTED: as_file(*expected(fresh(), mistakes())),
            EXPECTED_OF_BONUS: as_file(*expected(fresh_bonus(), mistakes(BONUS)))}


def differences(one, other):
    """Where two files differ by more than rounding, which is another on other machines: lines of text."""
    (index, numbers), (kept, kept_numbers) = map(content_of, (one, other))
    for part in ('layers', 'expected'):
        if index[part] != kept[part]:
            yield f'{part}: not the same names and sizes'
    if numbers.shape != kept_numbers.shape or not np.allclose(numbers, kept_numbers, rtol=1e-4, atol=1e-4):
        yield 'expected: other numbers'
    mistakes, kept = index['mistakes'], kept['mistakes']
    for name in mistakes.keys() | kept.keys():
        for about in mistakes.get(name, {}).keys() | kept.get(name, {}).keys():
            found = [known.get(name, {}).get(about) for known in (mistakes, kept)]
            if None in found or len(found[0]) != len(found[1]):
                yield f'mistakes/{name}/{about}: only in one of them'
            elif not all(map(checking.same_signature, *found)):
                yield f'mistakes/{name}/{about}: {found[0]} and {found[1]}'
