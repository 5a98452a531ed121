"""``tests/expected.npz``: what the reference and every mistake of the library give for the requests of the checks.

The students' checks read it, so they compare with the reference and name known mistakes without holding a line of
the solution. Run as a program, it writes the file; with ``--check`` it only compares.
"""

import argparse
import io
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from torch import nn
from tqdm import tqdm

from instructor.assemble import ROOT
from instructor.cut import REFERENCE
from instructor.mistakes import mistakes
from utils import atomic_path

sys.path.insert(0, str(ROOT / 'tests'))
import checking  # noqa: E402
import inputs  # noqa: E402
import protocol  # noqa: E402

EXPECTED = ROOT / 'tests' / 'expected.npz'
TODOS = tuple(checking.rubric())
STUBS = {1: [()], 2: [(), ('steps',)], 3: [()], 4: [(), ('attention',)], 5: [(), ('attention', 'steps')]}
MADE_WITH = {nn.Linear: ('in_features', 'out_features'), nn.Embedding: ('num_embeddings', 'embedding_dim'),
             nn.LSTMCell: ('input_size', 'hidden_size'), nn.BatchNorm1d: ('num_features',), nn.Dropout: ('p',)}
LEFT_OUT = ('encoded_captions', 'decode_lengths', 'sort_ind', 'made on the CPU')  # judged from the inputs


class WrongReference(Exception):
    """What the reference gives cannot be what must come out: it stops, or fails a check."""


def load(source, folder):
    """A ``models.py`` from its source."""
    path = Path(folder) / 'models.py'
    path.write_text(source, encoding='utf-8')
    return protocol.load(path)


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
                made[kind][layer] = ['StubAttention', *map(len, part.sizes)]
            else:
                made[kind][layer] = [type(part).__name__, *(getattr(part, size) for size in MADE_WITH[type(part)])]
        shapes[kind] = {key: list(shape) for key, shape in protocol.shapes(module).items() if shape}
    return inputs.Layers(made, shapes)


class Fresh:
    """What must come out for some inputs: what the reference gives now.

    :raises WrongReference: the reference stops
    """

    def __init__(self, given, models):
        self.inputs, self.layers, self.replies = given, layers_of(models, given), {}
        self.models = models
        for todo in TODOS:
            for name in inputs.OF_TODO[todo]:
                for stubs in STUBS[todo]:
                    reply = protocol.answer(inputs.build(name, given, self.layers, stubs), models)
                    if reply['errors']:
                        raise WrongReference(f"the reference stops in {name}: {reply['errors']}")
                    self.replies[name, stubs] = checking.by_caption(reply)

    def expected(self, name, stubs):
        return {array: (numbers.shape, numbers) for array, numbers in self.replies[name, stubs]['arrays'].items()
                if not array.startswith(LEFT_OUT)}

    def mistakes(self, name, stubs, reply, slow=False):
        return []

    def wrong(self):
        """What the checks say of the reference itself: sentences."""
        subject = checking.in_this_process(self.models, self, self.inputs)
        return [verdict.message for todo in TODOS for verdict in checking.judge(todo, subject)
                if verdict.outcome != 'passed']


def expected():
    """The content of the file: an index that JSON can hold, and all numbers.

    :raises WrongReference: the reference stops, or fails a check of a TODO
    :raises ValueError: a mistake of the library does not fit the reference any more
    """
    given = inputs.Inputs()
    with tempfile.TemporaryDirectory() as folder:
        fresh = Fresh(given, load(REFERENCE.read_text(encoding='utf-8'), folder))
        if wrong := fresh.wrong():
            raise WrongReference(f'the reference fails its own checks: {wrong[0]}')
        index, numbers, size = {}, [], 0
        for name, stubs in fresh.replies:
            entries = index[checking.key(name, stubs)] = []
            if name.endswith('_half'):  # random
                continue
            first = inputs.build(name, given, fresh.layers, stubs)['calls'][:1]
            whole = [output for call in first for output in call['outputs']] if 'speed' not in name else []
            for array, (shape, values) in fresh.expected(name, stubs).items():
                if 'speed' in name and len(entries) >= 4:
                    continue
                values = values if array in whole else checking.brief(values)
                entries.append([array, list(shape), size, values.size])
                numbers.append(values.ravel())
                size += values.size
        right = {request: checking.signature(request[0], reply) for request, reply in fresh.replies.items()}
        known = {checking.key(*request): {} for request in right}
        for mistake in tqdm(mistakes(), desc='mistakes', unit='mistake', leave=False):
            subject = checking.in_this_process(load(mistake.source(), folder), fresh, given)
            own = {(name, stubs): checking.signature(name, subject.reply(name, stubs))
                   for name in inputs.OF_TODO[mistake.todo] for stubs in STUBS[mistake.todo]
                   if not name.endswith('_speed')}
            wrong = {request: found for request, found in own.items()
                     if not checking.same_signature(found, right[request])}
            if not wrong:  # its numbers are right: it must be slow
                name = inputs.OF_TODO[mistake.todo][-1]
                wrong = {(name, ()): checking.signature(name, subject.reply(name, ()), slow=True)}
            for request, found in wrong.items():
                known[checking.key(*request)][mistake.about] = found
    layers = {'made': fresh.layers.made, 'shapes': fresh.layers.shapes}
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--check', action='store_true', help='only say whether tests/expected.npz is up to date')
    content = as_file(*expected())
    if parser.parse_args().check:
        differ = list(differences(content, EXPECTED.read_bytes()))
        print('\n'.join(differ[:20]))
        if differ:
            sys.exit('tests/expected.npz is not what the reference gives: run python -m instructor.expected')
    else:
        with atomic_path(EXPECTED) as temporary:
            temporary.write_bytes(content)


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
            if None in found:
                yield f'mistakes/{name}/{about}: only in one of them'
            elif not checking.same_signature(*found):
                yield f'mistakes/{name}/{about}: {found[0]} and {found[1]}'


if __name__ == '__main__':
    main()
