"""The bonus task: every TODO of lab/more open, each reported as such, and the reference does them all."""

import re
import sys
from contextlib import contextmanager

import pytest
from helpers import run_module

from instructor import handout
from instructor.assemble import ROOT
from instructor.bonus import files, main
from instructor.cut import BONUS

SOLUTIONS = {name: (ROOT / name).read_text(encoding='utf-8') for name in BONUS.values()}


def handed_out(folder, language):
    """A student's folder: the handout, the bonus over it."""
    for name, content in {**handout.files(language), **files(language=language)}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return handed_out(tmp_path_factory.mktemp('student'), 'en')


def check(folder, *arguments, code=0):
    """:return: what the checks print"""
    return run_module('pytest', '-q', '-rs', '-p', 'no:cacheprovider', 'tests/bonus', *arguments, cwd=folder, code=code)


def states_in(printed):
    return {int(todo): state for todo, state in re.findall(r'^TODO (\d+)  (to do|done|wrong)$', printed, re.M)}


@contextmanager
def laid_in(folder, sources):
    """In the block these files are in the folder."""
    before = {name: (folder / name).read_text() for name in sources}
    for name, source in sources.items():
        (folder / name).write_text(source)
    yield
    for name, source in before.items():
        (folder / name).write_text(source)


def mistaken(todo, old, new):
    """The file of this TODO with something else in one place."""
    source = SOLUTIONS[BONUS[todo]]
    assert source.count(old) == 1
    return {BONUS[todo]: source.replace(old, new)}


def test_no_line_of_the_solution_is_in_it(folder):
    found = []
    for name, solution in SOLUTIONS.items():
        lines = handout.solution_lines(ROOT / name)
        todos = re.findall(r'# TODO (\d+): ', solution)
        found += map(int, todos)
        for source in (folder / name).read_text(), handout.files().get(name, b'').decode():
            shown = lines & {line.strip() for line in source.splitlines()}
            # what every decoder has, the classes without a TODO show as well
            assert lines and not [line for line in shown if not re.match(r'self\.\w+ = nn\.', line)]
            assert not source or source.count('raise NotImplementedError(') == len(todos)
    assert sorted(set(found)) == list(BONUS)
    notebook = (folder / 'compare.ipynb').read_text()
    assert "'plain RNN'" in notebook and "'ensemble of two'" in notebook and '"outputs": []' in notebook


def test_open_todos_are_not_done_yet(folder):
    printed = check(folder)
    assert ' passed' not in printed.splitlines()[-1]
    assert states_in(printed) == dict.fromkeys(BONUS, 'to do')
    assert 'not done yet: TODO 6: DecoderWithSpatialAttention.__init__ is still to do' in printed
    assert 'lab/more/adaptive.py' in printed


@pytest.mark.parametrize(('todo', 'language'), [*((todo, 'en') for todo in BONUS), (9, 'zh')])
def test_one_todo(todo, language):
    found = files([todo], language)
    page = found['BONUS.md'].decode()
    assert f'tests/bonus -k todo{todo}\n' in page and '{{' not in page
    assert re.findall(r'^\| (\d+) \|.*\| `(.*)` \|$', page, re.M) == [(str(todo), BONUS[todo])]
    assert page.count(f'`{BONUS[todo]}`') == 2  # in the table, and among what is to hand in
    sources = [content.decode() for name, content in found.items() if name in SOLUTIONS]
    assert {int(number) for source in sources for number in re.findall(r'# TODO (\d+): ', source)} == {todo}


def test_zip_of_two(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['bonus', '--output', str(tmp_path), '--todo', '9', '10'])
    main()
    assert (tmp_path / 'captioning-bonus-9-10.zip').read_bytes() == handout.pack(files([9, 10]))


@pytest.mark.slow  # with one TODO open, below, the others are done as well
def test_the_reference_does_them_all(folder):
    with laid_in(folder, SOLUTIONS):
        printed = check(folder)
    assert 'skipped' not in printed.splitlines()[-1]
    assert states_in(printed) == dict.fromkeys(BONUS, 'done')


def test_todo_1_is_another_than_todo_10(folder):
    printed = run_module('pytest', '-q', '--collect-only', '-p', 'no:cacheprovider', '-k', 'todo1', cwd=folder)
    assert set(re.findall(r'test_(todo\d+)\.py::', printed)) == {'todo1'}


def test_one_todo_alone(folder):
    """The others are done, so that nothing but this one is to do."""
    sources = {name: content.decode() for name, content in files([7]).items() if name in SOLUTIONS}
    assert not any('### ' in source for source in sources.values())
    with laid_in(folder, sources):
        printed = check(folder)
    assert states_in(printed) == {**dict.fromkeys(BONUS, 'done'), 7: 'to do'}, printed


@pytest.mark.parametrize(('language', 'known', 'waits'), [
    pytest.param('en', 'Known mistake: tanh in place of ELU', 'waits for TODO 9', marks=pytest.mark.slow),
    ('zh', '该用 ELU 的地方用了 tanh', 'TODO 9')])
def test_a_mistake_is_named_and_what_builds_on_it_waits(tmp_path, language, known, waits):
    with laid_in(handed_out(tmp_path, language), mistaken(9, 'F.elu(', 'torch.tanh(')):
        printed = check(tmp_path, code=1)
    assert re.findall(r'^TODO (\d+)  ', printed, re.M) == [str(todo) for todo in BONUS]
    assert known in ' '.join(printed.split()) and waits in printed and 'def test_' not in printed


def test_a_file_that_is_not_python(folder):
    line = 'g = torch.sigmoid(self.W_x(x) + self.W_h(h_before))'
    with laid_in(folder, {**SOLUTIONS, **mistaken(7, line, line[:-1])}):
        printed = check(folder, '-k', 'todo6 or todo7', code=1)
    assert 'waits for TODO 6' in printed and re.search(r'adaptive.py, line \d+', ' '.join(printed.split()))
    assert printed.count('SyntaxError') == 1  # both TODOs are in this file
