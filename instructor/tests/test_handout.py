"""The handout gives nothing away and works; the zips for Gradescope are complete."""

import importlib
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from isolation import needs_isolation, needs_readable_python
from warm import run_module

from instructor import bonus, handout, translate
from instructor.assemble import ROOT, wanted_files
from instructor.cut import REFERENCE
from instructor.expected import checking
from instructor.handout import NAME, HandoutError, build, files, pack, prove_it_works, prove_nothing_is_given_away
from instructor.mistakes import mistakes
from tests.given.programs import path_without_programs


@pytest.fixture(scope='module', params=['en', 'zh'])
def built(tmp_path_factory, request):
    """Folder and zip of a handout, and its language."""
    return *build(tmp_path_factory.mktemp('handout') / 'out', request.param), request.param


def test_what_is_in_it(built):
    folder, archive, _ = built
    with zipfile.ZipFile(archive) as packed:
        names = {name.removeprefix(f'{NAME}/') for name in packed.namelist()}
    assert names == {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}
    for wanted in ('ASSIGNMENT.md', 'models.py', 'solver.py', 'train_rnn.ipynb', 'report/report.ipynb',
                   'report/contents.py', 'report/page.css', 'requirements.txt', 'tests/test_todo1.py',
                   'tests/test_todo5.py', 'tests/rubric.toml', 'tests/expected.npz',
                   'notes/1_one_word_at_a_time.ipynb', 'notes/seq2seq.py'):
        assert wanted in names
    assert not [n for n in names if n.startswith(('instructor', 'tests/given', 'report/example', '.'))
                or n.endswith(('.pyc', '.tar'))]
    assert not names & {'docs/grading.md', 'docs/instructors.md'}


def test_same_bytes_twice(built):
    assert pack(files(built[2])) == built[1].read_bytes()


def test_nothing_is_given_away(built):
    prove_nothing_is_given_away(built[1])


def notebook_with(**changes):
    notebook = json.loads((ROOT / 'test.ipynb').read_text())
    cell = next(cell for cell in notebook['cells'] if cell['cell_type'] == 'code')
    cell.update(changes.get('cell', {}))
    notebook['metadata'].update(changes.get('metadata', {}))
    return json.dumps(notebook).encode()


SOLUTION = '        alpha = e.softmax(dim=1)\n'


@pytest.mark.parametrize(('name', 'content', 'message'), [
    ('models.py', REFERENCE.read_bytes(), 'a line of the solution|a solution marker'),
    ('solver.py', SOLUTION.encode(), 'holds a line of the solution: alpha = e.softmax'),
    ('docs/notes.md', SOLUTION.encode(), 'holds a line of the solution'),
    ('instructor/models.py', b'x', 'is not for students'),
    ('tests/__pycache__/models.cpython-311.pyc', b'x', 'is not for students'),
    ('runs/shapes/BEST_checkpoint_Attention.pth.tar', b'x', 'is not for students'),
    ('.git/HEAD', b'x', 'is not for students'),
    ('test.ipynb', notebook_with(cell=dict(outputs=[dict(output_type='stream', text='x', name='stdout')])), 'outputs'),
    ('test.ipynb', notebook_with(cell=dict(execution_count=3)), 'outputs'),
    ('test.ipynb', notebook_with(metadata=dict(authors=[{'name': 'Somebody'}])), 'metadata: authors'),
    ('test.ipynb', notebook_with(cell=dict(source=[SOLUTION.strip()])), 'a line of the solution')])
def test_a_leak_is_found(tmp_path, name, content, message):
    (tmp_path / 'bad.zip').write_bytes(pack({**files(), name: content}))
    with pytest.raises(HandoutError, match=message):
        prove_nothing_is_given_away(tmp_path / 'bad.zip')


@pytest.fixture
def without_java(tmp_path, monkeypatch):
    """METEOR's takes longer to start than all the rest."""
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin/java').write_text('#!/bin/sh\nexit 1\n')
    (tmp_path / 'bin/java').chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path / 'bin'), prepend=os.pathsep)


@pytest.mark.slow
def test_it_works_as_a_student_finds_it(built, tmp_path, without_java):
    prove_it_works(built[0], tmp_path)
    # the environment is the one that this test runs in: made from the same file
    assert (built[0] / 'requirements.txt').read_bytes() == (ROOT / 'requirements.txt').read_bytes()


def test_its_checks_run_with_open_todos_and_with_the_reference(built, tmp_path, monkeypatch):
    """The steps of ``prove_it_works`` without the notebooks, and with processes that start faster."""
    seen = []

    def run(command, folder, code=0):
        seen.append(command[1:])
        if command[1] == '-c':  # notebooks: the slow test above; with open TODOs, test_assemble.py
            todo = 1 if 'train_rnn' in command[2] else 3
            return f'NotImplementedError TODO {todo}: X is still to do'
        done = run_module(*command[2:], cwd=folder)
        assert done.returncode == code, done.stdout
        return done.stdout + done.stderr

    monkeypatch.setattr(handout, 'run', run)
    prove_it_works(built[0], tmp_path)
    assert [command[:3] for command in seen] == [
        ['-m', 'ruff', 'check'], ['-m', 'pytest', '-q'], *[seen[k][:3] for k in (2, 3)], ['-m', 'pytest', '-q'],
        seen[5][:3]] and all(seen[k][0] == '-c' for k in (2, 3, 5))
    assert (tmp_path / 'done_todos/models.py').read_bytes() == REFERENCE.read_bytes()


@pytest.mark.parametrize('built', ['zh'], indirect=True)
def test_the_checks_speak_chinese(built, tmp_path):
    """A known mistake is named once, in the words of the handout."""
    lab = shutil.copytree(built[0], tmp_path / 'lab')
    mistake = next(mistake for mistake in mistakes() if mistake.name == 'batch norm missing')
    (lab / 'models.py').write_text(mistake.source(), encoding='utf-8')
    said = run_module('pytest', '-q', 'tests', '-k', 'todo1', cwd=lab).stdout
    assert re.search(r'^TODO 1, DecoderWithRNN.init_hidden_state: 要求：h 在 \[.*；实际：', said, re.M)
    about = translate.chinese('instructor/mistakes/todo1.toml')[mistake.about]
    assert ''.join(said.split()).count(''.join(f'常见错误：{about}'.split())) == 1
    assert re.search(r'^TODO 1  有错误', said, re.M)


def test_a_handout_that_does_not_work_is_refused(tmp_path, monkeypatch):
    said = {'open_todos': 'TODO 1  to do 0 of 9', 'early_notebooks': 'NotImplementedError TODO 9: X',
            'done_todos': '69 of 70 points'}
    for name, printed in said.items():
        monkeypatch.setattr(handout, 'run', lambda *_, printed=printed: printed)
        with pytest.raises(HandoutError, match='is not reported|does not stop at TODO 1|not get all points'):
            getattr(handout, name)(tmp_path, 'python')
    monkeypatch.undo()
    with pytest.raises(HandoutError, match='-c raise SystemExit.* ended with 3'):
        handout.run([sys.executable, '-c', 'raise SystemExit(3)'], tmp_path)


def test_another_folder_is_not_emptied(tmp_path):
    (tmp_path / 'mine.txt').write_text('mine')
    with pytest.raises(HandoutError, match='something else than a handout'):
        build(tmp_path)
    assert (tmp_path / 'mine.txt').exists()


def test_the_assignment_has_titles_and_points_of_the_rubric():
    text = files()['ASSIGNMENT.md'].decode()
    total = sum(entry['points'] for entry in checking.rubric_file()['by_a_person'])
    for todo, entry in checking.rubric().items():
        points = sum(entry['points'].values())
        total += points
        assert len(re.findall(rf'^\| TODO {todo} \| `.+`: .+ \| seconds \|$', text, re.M)) == 1
        assert re.search(rf'\| TODO {todo}: .* \| {points} \|', text)
    assert f'| **in all** | **{total}** |' in text and '{{' not in text


# --- Gradescope and GitHub Classroom, as far as a machine without them can tell ---


@pytest.fixture(scope='module')
def gradescope(tmp_path_factory):
    """The autograder zip, unpacked as the service does it, with this environment in place of its own."""
    root = tmp_path_factory.mktemp('autograder')
    autograder = importlib.import_module('instructor.gradescope.__main__').autograder
    archive = root / 'autograder.zip'
    archive.write_bytes(autograder())
    assert archive.read_bytes() == autograder()
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(root / 'source')
        assert {'setup.sh', 'run_autograder'} <= set(packed.namelist())
        assert all(packed.getinfo(name).external_attr >> 16 & 0o111 for name in ('setup.sh', 'run_autograder'))
    (root / 'submission').mkdir()
    environment = root / 'environment' / 'bin'
    environment.mkdir(parents=True)
    (environment / 'python').write_text(
        f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (environment / 'python').chmod(0o755)
    return root


def autograde(root, content, command='source/run_autograder'):
    shutil.rmtree(root / 'results', ignore_errors=True)
    (root / 'submission' / 'models.py').write_text(content)
    done = subprocess.run(['bash', str(root / command)], cwd=root, capture_output=True, text=True, timeout=500, env={
        **os.environ, 'AUTOGRADER': str(root), 'GRADER_ENVIRONMENT': str(root / 'environment')})
    assert done.returncode == 0, done.stderr
    return json.loads((root / 'results' / 'results.json').read_text())


@pytest.mark.parametrize('isolated', [pytest.param(True, marks=needs_isolation),
                                      pytest.param(False, marks=needs_readable_python)])
def test_gradescope_grades(gradescope, isolated, monkeypatch):
    with path_without_programs() as path:
        if not isolated:  # bubblewrap may be forbidden there
            monkeypatch.setenv('PATH', path)
        results = autograde(gradescope, REFERENCE.read_text())
    points = [points for entry in checking.rubric().values() for points in entry['points'].values()]
    assert results['score'] == sum(points) and len(results['tests']) == len(points)
    assert results['stdout_visibility'] == 'hidden' and all(t['status'] == 'passed' for t in results['tests'])


def test_gradescope_writes_results_whatever_happens(gradescope):
    lab = gradescope / 'source' / 'lab'
    (lab / 'instructor' / 'grade.py').rename(lab / 'instructor' / 'grade.py.away')
    try:
        results = autograde(gradescope, REFERENCE.read_text())
    finally:
        (lab / 'instructor' / 'grade.py.away').rename(lab / 'instructor' / 'grade.py')
    assert results['score'] == 0 and 'did not come to an end' in results['output']


@pytest.mark.parametrize('name', ['setup.sh', 'run_autograder'])
def test_gradescope_scripts_parse(name):
    subprocess.run(['bash', '-n', str(ROOT / 'instructor' / 'gradescope' / name)], check=True)


@pytest.mark.parametrize('built', ['en'], indirect=True)
def test_classroom_workflow_runs_the_checks(built, tmp_path):
    yaml = pytest.importorskip('yaml')
    workflow = yaml.safe_load((ROOT / 'instructor' / 'classroom' / 'classroom.yml').read_text())
    steps = {step.get('name'): step for step in workflow['jobs']['checks']['steps']}
    folder = tmp_path / 'repo'
    shutil.copytree(built[0], folder)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])
    summary = tmp_path / 'summary.md'
    for name in ('Checks', 'Table'):
        subprocess.run(['bash', '-e', '-c', steps[name]['run']], cwd=folder, check=True, capture_output=True, env={
            **os.environ, 'PATH': path, 'GITHUB_STEP_SUMMARY': str(summary)})
    assert 'TODO 1  to do' in summary.read_text() and 'in all' in summary.read_text()


def broken_links(content):
    """Links of the pages among these files, path -> content, to a file or heading that is not among them."""
    broken = []
    for name, text in content.items():
        if not name.endswith(('.md', '.ipynb')):
            continue
        for target in re.findall(r'\]\(([^)\s]+)\)', text.decode()):
            path, _, heading = target.partition('#')
            if '://' in target:
                continue
            found = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            headings = [re.sub(r'[^a-z0-9 -]', '', line.lstrip('# ').lower()).replace(' ', '-')
                        for line in content.get(found, b'').decode(errors='replace').splitlines()
                        if line.startswith('#')]
            if found not in content or heading and heading not in headings:
                broken.append(f'{name}: {target}')
    return broken


def test_no_page_links_to_what_is_kept_back():
    assert broken_links(files()) == []
    assert broken_links(files() | bonus.files()) == []
    assert broken_links({'docs/a.md': b'[b](b.md) [c](../c.md) [d](#x)\n## X'}) == ['docs/a.md: b.md',
                                                                                    'docs/a.md: ../c.md']


def test_no_page_of_the_repository_links_to_nothing():
    others = {path.relative_to(ROOT) for path in (REFERENCE, ROOT / 'report/example/report.html')}
    pages = {path.as_posix(): (ROOT / path).read_bytes() for path in wanted_files() | others}
    assert 'README.md' in pages and broken_links(pages) == []
