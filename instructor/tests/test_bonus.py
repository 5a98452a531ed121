"""The bonus task: every TODO of lab/more open, each reported as such, and the reference does them all."""

import io
import re
import sys
import zipfile
from contextlib import contextmanager

import pytest
from warm import run_module

from instructor import handout
from instructor.assemble import ROOT
from instructor.bonus import files, main
from instructor.cut import BEGIN, BONUS, END, FIRST_OF_BONUS

SOLUTIONS = {name: (ROOT / name).read_text(encoding='utf-8') for name in FIRST_OF_BONUS}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A student's folder: the handout, the bonus unzipped over it."""
    folder = tmp_path_factory.mktemp('student')
    handout.build(folder / 'handout')
    with zipfile.ZipFile(io.BytesIO(handout.pack(files()))) as packed:
        packed.extractall(folder / 'handout')
    return folder / 'handout' / handout.NAME


def check(folder, *arguments):
    return run_module('pytest', '-q', '-rs', '-p', 'no:cacheprovider', 'tests/bonus', *arguments, cwd=folder)


def test_no_line_of_the_solution_is_in_it(folder):
    found = []
    for name, solution in SOLUTIONS.items():
        inside, lines = False, set()
        for line in map(str.strip, solution.splitlines()):
            if line in (BEGIN, END):
                inside = line == BEGIN
            elif inside and len(line) >= handout.SHORTEST:
                lines.add(line)
        assert len(lines) > 2
        titles = re.findall(r'# TODO (\d+): ', solution)
        found += map(int, titles)
        for source in (folder / name).read_text(), handout.files().get(name, b'').decode():
            handed_out = {line.strip() for line in source.splitlines()}
            # what every decoder has, the classes without a TODO show as well
            assert {line for line in lines & handed_out if not re.match(r'self\.\w+ = nn\.', line)} == set()
            assert not source or source.count('raise NotImplementedError(') == len(titles)
    assert sorted(set(found)) == list(BONUS)


def test_open_todos_are_not_done_yet(folder):
    found = check(folder)
    assert found.returncode == 0, found.stdout
    assert ' passed' not in found.stdout.splitlines()[-1]
    assert re.findall(r'^TODO (\d+)  to do$', found.stdout, re.M) == [str(todo) for todo in BONUS]
    todo = 'TODO 6: DecoderWithSpatialAttention.__init__ is still to do: follow its steps in lab/more/adaptive.py'
    assert f'not done yet: {todo}' in found.stdout
    assert '        to do: DecoderWithSpatialAttention.__init__' in found.stdout.splitlines()


@pytest.mark.parametrize('language', ['en', 'zh'])
@pytest.mark.parametrize('todo', BONUS)
def test_one_todo(todo, language):
    handed_out = files([todo], language)
    page = handed_out['BONUS.md'].decode()
    assert f'tests/bonus -k todo{todo}\n' in page and '{{' not in page
    assert re.findall(r'^\| (\d+) \|.*\| `(.*)` \|$', page, re.M) == [(str(todo), BONUS[todo])]
    assert page.count(f'`{BONUS[todo]}`') == 2  # in the table, and among what is to hand in
    sources = [content.decode() for name, content in handed_out.items() if name in SOLUTIONS]
    assert {int(number) for source in sources for number in re.findall(r'# TODO (\d+): ', source)} == {todo}


@pytest.mark.parametrize(('todos', 'told'), [('9', 'TODO 10, solved there, .* --todo 9 10'), ('9 10', None),
                                            ('7', 'TODO 6, solved there'), ('8', None)])
def test_what_shows_the_solution_of_another_is_said(todos, told, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['bonus', '--output', str(tmp_path), '--todo', *todos.split()])
    main()
    printed = capsys.readouterr().out
    assert (tmp_path / f"captioning-bonus-{todos.replace(' ', '-')}.zip").exists()
    assert re.search(told, printed) if told else 'solved there' not in printed


@contextmanager
def laid_in(folder, sources):
    """In the block these files are in the folder."""
    before = {name: (folder / name).read_text() for name in sources}
    for name, source in sources.items():
        (folder / name).write_text(source)
    yield
    for name, source in before.items():
        (folder / name).write_text(source)


def test_the_reference_does_them_all(folder):
    """``-k todo1`` is not about TODO 10."""
    with laid_in(folder, SOLUTIONS):
        found = check(folder)
        one = check(folder, '-k', 'todo10')
        of_the_lab = run_module('pytest', '-q', '-p', 'no:cacheprovider', '-k', 'todo1', cwd=folder)
    assert found.returncode == 0 and 'skipped' not in found.stdout.splitlines()[-1], found.stdout
    assert re.findall(r'^TODO (\d+)  done$', found.stdout, re.M) == [str(todo) for todo in BONUS]
    assert re.findall(r'^TODO (\d+) ', one.stdout, re.M) == ['10']
    assert re.findall(r'^TODO (\d+) ', of_the_lab.stdout, re.M) == ['1']


def test_one_todo_alone(folder):
    """The others are done, so that nothing but this one is to do."""
    sources = {name: content.decode() for name, content in files([7]).items() if name in SOLUTIONS}
    assert sources[BONUS[7]].count('raise NotImplementedError(') == 3
    assert not any('### ' in source for source in sources.values())
    with laid_in(folder, sources):
        found = check(folder)
    assert found.returncode == 0, found.stdout
    states = dict(re.findall(r'^TODO (\d+)  (to do|done)$', found.stdout, re.M))
    assert states == {str(todo): 'to do' if todo == 7 else 'done' for todo in BONUS}


def test_a_mistake_is_named_and_what_builds_on_it_waits(folder):
    old = 'F.elu('
    assert SOLUTIONS[BONUS[9]].count(old) == 1
    with laid_in(folder, {BONUS[9]: SOLUTIONS[BONUS[9]].replace(old, 'torch.tanh(')}):
        found = check(folder, '-k', 'todo9')
    assert found.returncode == 1
    assert re.search('TODO 9, BahdanauAttention.forward: expected alpha.*; here it is .* Known mistake: tanh in place '
                     'of ELU. found by test_attention', ' '.join(found.stdout.split())), found.stdout
    assert 'waits for TODO 9: test_attention' in found.stdout and 'def test_' not in found.stdout
    assert re.search(r'^TODO 9  wrong$', found.stdout, re.M)


def test_a_file_that_is_not_python(folder):
    old = 'g = torch.sigmoid(self.W_x(x) + self.W_h(h_before))'
    with laid_in(folder, {**SOLUTIONS, BONUS[7]: SOLUTIONS[BONUS[7]].replace(old, old[:-1])}):
        found = check(folder, '-k', 'todo6 or todo7')
    assert '        waits for TODO 6' in found.stdout.splitlines()
    assert re.search(r"it stops with SyntaxError: '\(' was never closed \(adaptive.py, line \d+\)",
                     ' '.join(found.stdout.split())), found.stdout
    assert found.stdout.count('SyntaxError') == 1  # both TODOs are in this file


def test_the_comparison_is_whole_again(folder):
    notebook = (folder / 'compare.ipynb').read_text()
    assert "'plain RNN'" in notebook and "'ensemble of two'" in notebook and '"outputs": []' in notebook


def test_in_chinese(tmp_path):
    """The bonus lies over the Chinese handout; the checks know its TODOs, and a mistake is told in Chinese."""
    for name, content in {**handout.files('zh'), **files(language='zh')}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with laid_in(tmp_path, {BONUS[9]: SOLUTIONS[BONUS[9]].replace('F.elu(', 'torch.tanh(')}):
        found = check(tmp_path)
    assert re.findall(r'^TODO (\d+)  ', found.stdout, re.M) == [str(todo) for todo in BONUS], found.stdout
    assert 'TODO 6: DecoderWithSpatialAttention.__init__ 尚未完成' in found.stdout
    assert '该用 ELU 的地方用了 tanh' in found.stdout
