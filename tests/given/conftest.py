"""Shared by all tests: a tiny data set of shapes, prepared once, and small models.

Tests run on an assembled copy (``python -m instructor.test``) or on a student's own folder. A TODO that is still
open is reported as skipped, "not done yet", not as an error.
"""

import functools
import os
import re
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from create_input_files import create_input_files
from lab.data.shapes import generate_shapes
from lab.train import source

ROOT = Path(__file__).resolve().parents[2]
WITH_TODOS = [ROOT / 'models.py', *(ROOT / 'lab' / 'more' / f'{name}.py' for name in (
    'adaptive', 'cells', 'bahdanau', 'captionnet', 'decoder', 'self_critical', 'ensembles', 'word_vectors'))]


IN_A_BONUS = Path(__file__).parent.name == 'bonus'
LAB = range(1, 6)  # the TODOs of models.py, done and graded before a bonus task
# which TODOs a check of a bonus task is about: in its file or its name
ABOUT = {'test_self_critical.*adaptive': '7 or 12', 'test_self_critical': '12', 'test_ensembles': '13',
         'test_word_vectors': '14', 'adaptive': '7', 'spatial': '6',
         'ratio|own_words|teacher_forcing_of': '11', 'scaled|heads|captionnet': '10',
         'bahdanau|killed': '9', 'rnn|gru|lstm|cell': '8'}
SAID = set()  # a line is not said twice


def pytest_configure(config):
    """A file that cannot be read is said in a line: every test would stop at it."""
    for path in WITH_TODOS if IN_A_BONUS else []:
        try:
            compile(code := path.read_text(encoding='utf-8'), path.name, 'exec')
        except SyntaxError as error:
            todos = re.findall(r'# (TODO \d+): (\S+)\n', '\n'.join(code.split('\n')[:error.lineno]))
            stopped = f'{", ".join(todos[-1]) if todos else path.name}: line {error.lineno} of {path.name} is not ' \
                      f'Python: {error.msg}: {(error.text or "").strip()}'
            break
    else:
        return
    raise pytest.UsageError(stopped)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    # any RuntimeError: another process says it so
    if call.excinfo and call.excinfo.errisinstance(RuntimeError) and (todo := re.search(
            r'TODO \d+: \S+ is still to do: follow its steps in \S+', str(call.excinfo.value))):
        report.outcome = 'skipped'
        report.longrepr = (str(item.path), item.location[1], f'not done yet: {todo[0]}')
    elif report.failed and IN_A_BONUS and item.config.option.tbstyle == 'auto':  # --tb=long shows pages
        said = isinstance(call.excinfo.value, pytest.fail.Exception)
        where = not said and (in_own_code(call.excinfo.traceback) or in_a_check(item, call.excinfo, call.when))
        if where:
            report.longrepr = f'{where} with {first_line(call.excinfo)}'
        if said or where:
            report.sections = []  # what a training printed
        if (line := str(report.longrepr)).startswith('TODO '):
            report.longrepr = f'{line.partition(": ")[0]}: as above' if line in SAID else line
            SAID.add(line)
    return report


def first_line(excinfo):
    lines = excinfo.exconly().splitlines()
    return ' '.join(map(str.strip, lines)) if len(lines) < 4 and excinfo.errisinstance(AssertionError) else lines[0]


def in_own_code(traceback):
    """Where a test stopped in the files that hold TODOs: 'TODO 9, X.forward stops in line 3 of adaptive.py'; '' if
    elsewhere. Of what calls one another, the innermost TODO, but none of the lab's below one of a bonus task, and an
    ensemble before its decoders; if there is none, the innermost line."""
    found, number = '', 0
    for entry in traceback:
        path = Path(str(entry.path))
        if path not in WITH_TODOS:
            continue
        line, name = entry.lineno + 1, entry.frame.code.raw.co_qualname
        todo = re.search(rf'# TODO (\d+): {re.escape(name)}\n', path.read_text(encoding='utf-8'))
        of = int(todo[1]) if todo else 0
        if number and (not of or of in LAB and number not in LAB or number == 13):
            continue
        found = f"{f'TODO {of}, ' if of else ''}{name} stops in line {line} of {path.name}"
        number = of
    return found


def in_a_check(item, excinfo, when):
    """'TODO 13, test_x stops in line 3 of solver.py'; '' if the check is not about one TODO. The last resort."""
    # what a file's fixtures prepare has nothing to do with the file's own TODO
    name = item.name if when == 'setup' else item.nodeid
    todo = next((todo for words, todo in ABOUT.items() if re.search(words, name, re.IGNORECASE)), '')
    last = [entry for entry in excinfo.traceback if (path := Path(str(entry.path))).parent in (
        ROOT, Path(__file__).parent) or ROOT / 'lab' in path.parents][-1]
    return todo and f'TODO {todo}, {item.name} stops in line {last.lineno + 1} of {Path(str(last.path)).name}'


def pytest_terminal_summary(terminalreporter):
    """Which TODOs wait, and which are wrong: a line each; then the checks that stop elsewhere."""
    found = Counter()
    for outcome, pattern in (('skipped', r'.*not done yet: TODO (\d+): (\S+) is'),
                             ('failed', r'TODO (\d+), ([\w.]+)'), ('error', r'TODO (\d+), ([\w.]+)')):
        for report in terminalreporter.getreports(outcome):
            if todo := re.match(pattern, str(report.longrepr).removeprefix('Failed: ')):
                name, state = todo[2], 'to do' if outcome == 'skipped' else 'wrong'
                if name.startswith('test_'):
                    name, state = 'elsewhere: see the lines above', 'stops'
                found[int(todo[1]), state, name] += 1
    if found:
        terminalreporter.section('TODOs')
    for (todo, state, name), count in sorted(found.items(), key=lambda one: (one[0][0], one[0][1] == 'stops', one)):
        terminalreporter.write_line(f'TODO {todo:2}  {state:5}  {name}  ({count} check{"s" * (count > 1)})')


source.plain = functools.cache(source.plain)  # tests train hundreds of times, each reads all code of the lab
torch.set_num_threads(1)  # for matrices as small as the tests', threads only wait for one another


@pytest.fixture
def other_source():
    """In the block a module of the lab held other code when it was loaded."""
    @contextmanager
    def changed(name, change):
        before = source.source_of(name)
        spec = source.LOADED[name][0]
        assert change(before) != before
        source.LOADED[name] = spec, change(before)
        try:
            yield
        finally:
            source.LOADED[name] = spec, before

    return changed


@pytest.fixture(scope='session')
def shared_data():
    """The real photos and published figures; tests that need them are skipped where they are not there."""
    folder = Path(os.environ.get('CAPTIONING_SHARED_DATA', ROOT.parent / 'shared' / 'data'))
    if not folder.exists():
        pytest.skip(f'{folder} is not there')
    return folder


@pytest.fixture(scope='session')
def tiny_data(tmp_path_factory):
    """Settings that find a prepared set of 24 + 6 + 6 pictures."""
    folder = tmp_path_factory.mktemp('tiny')
    json_path = generate_shapes(folder, train=24, val=6, test=6)
    summary = create_input_files('shapes', json_path, folder, min_word_freq=1, output_folder=folder, workers=1)
    return dict(data_folder=str(folder), data_name=summary['data_name'])


@pytest.fixture
def tiny_cfg(tiny_data, tmp_path):
    """Settings of a training that takes a second or two."""
    return dict(**tiny_data, encoder='shapes_cnn', encoded_image_size=4, embed_dim=12, decoder_dim=16,
                attention_dim=10, dropout=0.3, epochs=2, batch_size=20, decoder_lr=5e-3, device='cpu',
                output_folder=str(tmp_path / 'runs'))
