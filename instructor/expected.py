"""``tests/expected.json``: what the probes give on the reference, and on every mistake of the library.

The students' checks read it, so they compare with the reference and name known mistakes without holding a line of
the solution. Run as a program, it writes the file; with ``--check`` it only compares.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import types
from pathlib import Path

from tqdm import tqdm

from instructor.assemble import ROOT
from instructor.cut import REFERENCE
from instructor.judge import TODOS, checking, judge
from instructor.mistakes import mistakes
from utils import atomic_path

sys.path.insert(0, str(ROOT / 'tests'))
import probes  # noqa: E402

EXPECTED = ROOT / 'tests' / 'expected.json'
STEADY = {'seconds': 1.0, 'yardstick': 1.0}  # for probes that measure time
# which probes belong to a TODO
OF_TODO = {
    1: [name for name in probes.PROBES if name.startswith('plain') and not name.startswith(
        ('plain_forward', 'plain_learning', 'plain_speed'))],
    2: [name for name in probes.PROBES if name.startswith(('plain_forward', 'plain_learning', 'plain_speed'))],
    3: [name for name in probes.PROBES if name.startswith('attention')],
    4: [name for name in probes.PROBES if name.startswith('attentive') and not name.startswith(
        ('attentive_forward', 'attentive_learning', 'attentive_speed'))],
    5: [name for name in probes.PROBES if name.startswith(
        ('attentive_forward', 'attentive_learning', 'attentive_speed'))],
}


class WrongReference(Exception):
    """What the reference gives cannot be what must come out: it stops, or fails a check."""


def load(source, folder):
    """A ``models.py`` from its source, as a module of its own."""
    path = Path(folder) / 'models.py'
    path.write_text(source, encoding='utf-8')
    module = types.ModuleType('models_under_test')
    module.__file__ = str(path)
    # no import: its cached bytecode is told apart by size and second only, and many sources may lie here in turn
    exec(compile(source, path, 'exec'), module.__dict__)
    return module


def reference_results(models, inputs, names=None):
    """probe -> mode -> result, for all ways in which a solution may be probed."""
    found = {}
    for name in names or probes.PROBES:
        for stand_ins in (True, False):
            result = probes.run(name, models, dataclasses.replace(inputs, stand_ins=stand_ins))
            if 'error' in result:
                raise WrongReference(f"the reference stops in the probe {name}: {result['error']}")
            found.setdefault(name, {})[result.get('mode', '')] = {
                key: value for key, value in result.items() if key not in ('seconds', 'yardstick')}
    return found


class Fresh:
    """What must come out for some inputs: what the reference gives now.

    :raises WrongReference: the reference stops
    """

    def __init__(self, inputs, models):
        self.inputs, self.results = inputs, reference_results(models, inputs)

    def expected(self, probe, mode):
        return self.results[probe][mode]

    def mistakes(self, probe, result):
        return []

    def wrong(self):
        """What the reference's own checks say of it, with stand-ins for its other parts and without: sentences."""
        found = []
        for mode in ('stand-in', 'own'):
            results = {probe: {**modes.get(mode, modes.get('', {})), **STEADY} for probe, modes in self.results.items()}
            found += [verdict.message for todo in TODOS for verdict in judge(todo, results.get, self, self.inputs)
                      if verdict.outcome != 'passed']
        return found


def rounded(value):
    if isinstance(value, float):
        return float(f'{value:.10g}')
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return {k: rounded(v) for k, v in value.items()} if isinstance(value, dict) else value


def expected():
    """The content of the file.

    :raises WrongReference: the reference stops, or fails a check of a TODO
    :raises ValueError: a mistake of the library does not fit the reference any more
    """
    with tempfile.TemporaryDirectory() as folder:
        fresh = Fresh(probes.Inputs(), load(REFERENCE.read_text(encoding='utf-8'), folder))
        if wrong := fresh.wrong():
            raise WrongReference(f'the reference fails its own checks: {wrong[0]}')
        reference, known = fresh.results, {}
        for mistake in tqdm(mistakes(), desc='mistakes', unit='mistake', leave=False):
            models = load(mistake.source(), folder)
            for name in OF_TODO[mistake.todo]:
                result = probes.run(name, models)
                right = [checking.signature({**r, **STEADY} if 'seconds' in result else r)
                         for r in reference[name].values()]
                found = checking.signature(result)
                if not any(checking.same_signature(found, r) for r in right):
                    known.setdefault(name, {})[mistake.about] = found
    return {
        'expected': {name: {mode: rounded(checking.to_json(result)) for mode, result in modes.items()}
                     for name, modes in reference.items()},
        'mistakes': known}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--check', action='store_true', help='only say whether tests/expected.json is up to date')
    content = json.dumps(expected())
    if parser.parse_args().check:
        differ = list(differences(json.loads(content), json.loads(EXPECTED.read_text())))
        print('\n'.join(differ[:20]))
        if differ:
            sys.exit('tests/expected.json is not what the reference gives: run python -m instructor.expected')
    else:
        with atomic_path(EXPECTED) as temporary:
            temporary.write_text(content)


def differences(one, other, where=''):
    """Where two sets of values differ by more than rounding, which is another on other machines: lines of text."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            if key in one and key in other:
                yield from differences(one[key], other[key], f'{where}/{key}')
            else:
                yield f'{where}/{key}: only in one of them'
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f'{where}/{i}')
    elif isinstance(one, float) and isinstance(other, float):
        if not abs(one - other) <= 1e-4 * (1 + abs(one)):
            yield f'{where}: {one} and {other}'
    elif one != other:
        yield f'{where}: {one} and {other}'


if __name__ == '__main__':
    main()
