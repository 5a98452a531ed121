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
from helpers import needs_a_sandbox

from instructor import bonus, handout
from instructor.assemble import ROOT, wanted_files
from instructor.cut import REFERENCE
from instructor.expected import checking
from instructor.handout import NAME, HandoutError, build, files, pack, prove_nothing_is_given_away


@pytest.fixture(scope='module', params=['en', 'zh'])
def built(tmp_path_factory, request):
    """Folder and zip of a handout, and its language."""
    return *build(tmp_path_factory.mktemp('handout') / 'out', request.param), request.param


def test_what_is_in_it(built):
    folder, archive, language = built
    with zipfile.ZipFile(archive) as packed:
        names = {name.removeprefix(f'{NAME}/') for name in packed.namelist()}
    assert names == {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}
    assert names >= {'ASSIGNMENT.md', 'models.py', 'report/page.css', 'tests/expected.npz', 'notes/seq2seq.py'}
    assert not [n for n in names if n.startswith(('instructor', 'tests/given', 'report/example', '.'))
                or n.endswith(('.pyc', '.tar')) or n in ('docs/grading.md', 'docs/instructors.md')]
    assert pack(files(language)) == archive.read_bytes()  # the same bytes every time
    prove_nothing_is_given_away(archive)


def notebook_with(metadata=(), **of_a_cell):
    notebook = json.loads((ROOT / 'test.ipynb').read_text())
    next(cell for cell in notebook['cells'] if cell['cell_type'] == 'code').update(of_a_cell)
    notebook['metadata'].update(metadata)
    return json.dumps(notebook).encode()


SOLUTION = '        alpha = e.softmax(dim=1)\n'


@pytest.mark.parametrize(('name', 'content', 'message'), [
    ('models.py', REFERENCE.read_bytes(), 'a line of the solution|a solution marker'),
    ('solver.py', SOLUTION.encode(), 'holds a line of the solution: alpha = e.softmax'),
    ('instructor/models.py', b'x', 'is not for students'),
    ('runs/shapes/BEST_checkpoint_Attention.pth.tar', b'x', 'is not for students'),
    ('.git/HEAD', b'x', 'is not for students'),
    ('test.ipynb', notebook_with(outputs=[dict(output_type='stream', text='x', name='stdout')]), 'outputs'),
    ('test.ipynb', notebook_with(execution_count=3), 'outputs'),
    ('test.ipynb', notebook_with(metadata=dict(authors=[{'name': 'Somebody'}])), 'metadata: authors'),
    ('test.ipynb', notebook_with(source=[SOLUTION.strip()]), 'a line of the solution')])
def test_a_leak_is_found(tmp_path, name, content, message):
    others = {name: content for name, content in files().items() if not name.startswith('weights/')}  # slow to pack
    (tmp_path / 'bad.zip').write_bytes(pack({**others, name: content}))
    with pytest.raises(HandoutError, match=message):
        prove_nothing_is_given_away(tmp_path / 'bad.zip')


EVERY_DAY = [('en', handout.lint), ('en', handout.open_todos), ('en', handout.done_todos),
             ('zh', handout.lint), ('zh', handout.open_todos)]
NOW_AND_THEN = [('en', handout.early_notebooks), ('en', handout.done_notebooks), ('zh', handout.done_todos),
                ('zh', handout.early_notebooks), ('zh', handout.done_notebooks)]


@pytest.mark.parametrize(('built', 'step'), [
    *EVERY_DAY, *(pytest.param(*both, marks=pytest.mark.slow) for both in NOW_AND_THEN)], indirect=['built'])
def test_it_works_as_a_student_finds_it(built, step, tmp_path):
    """The environment is the one that this test runs in: made from the same file."""
    step(shutil.copytree(built[0], tmp_path / 'lab'), sys.executable)
    assert (built[0] / 'requirements.txt').read_bytes().startswith((ROOT / 'requirements.txt').read_bytes())


def test_a_handout_in_which_a_command_fails_is_refused(tmp_path):
    with pytest.raises(HandoutError, match='ended with 3'):
        handout.run([sys.executable, '-c', 'raise SystemExit(3)'], tmp_path)


def test_the_assignment_has_titles_and_points_of_the_rubric():
    text = files()['ASSIGNMENT.md'].decode()
    total = sum(entry['points'] for entry in checking.rubric_file()['by_a_person'])
    for todo, entry in checking.rubric().items():
        points = sum(entry['points'].values())
        total += points
        assert len(re.findall(rf'^\| TODO {todo} \| `.+`: .+ \| seconds \|$', text, re.M)) == 1
        assert re.search(rf'\| TODO {todo}: .* \| {points} \|', text)
    assert f'**{total}**' in text and '{{' not in text


# --- Gradescope and GitHub Classroom, as far as a machine without them can tell ---


@pytest.fixture(scope='module')
def gradescope(tmp_path_factory):
    """The autograder zip, unpacked as the service does it, with this environment in place of its own."""
    root = tmp_path_factory.mktemp('autograder')
    (root / 'autograder.zip').write_bytes(importlib.import_module('instructor.gradescope.__main__').autograder())
    with zipfile.ZipFile(root / 'autograder.zip') as packed:
        packed.extractall(root / 'source')
        assert all(packed.getinfo(name).external_attr >> 16 & 0o111 for name in ('setup.sh', 'run_autograder'))
    subprocess.run(['bash', '-n', str(root / 'source' / 'setup.sh')], check=True)
    (root / 'submission').mkdir()
    (root / 'submission' / 'models.py').write_bytes(REFERENCE.read_bytes())
    python = root / 'environment' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return root


def autograde(root):
    shutil.rmtree(root / 'results', ignore_errors=True)
    done = subprocess.run(['bash', str(root / 'source' / 'run_autograder')], cwd=root, capture_output=True, text=True,
                          timeout=500, env={**os.environ, 'AUTOGRADER': str(root),
                                            'GRADER_ENVIRONMENT': str(root / 'environment')})
    assert done.returncode == 0, done.stderr
    return json.loads((root / 'results' / 'results.json').read_text())


@needs_a_sandbox
def test_gradescope_grades(gradescope):
    results = autograde(gradescope)
    points = [points for entry in checking.rubric().values() for points in entry['points'].values()]
    assert results['score'] == sum(points) and len(results['tests']) == len(points)
    assert results['stdout_visibility'] == 'hidden' and all(t['status'] == 'passed' for t in results['tests'])


def test_gradescope_writes_results_whatever_happens(gradescope, tmp_path):
    broken = shutil.copytree(gradescope, tmp_path / 'broken')
    (broken / 'source' / 'lab' / 'instructor' / 'grade.py').unlink()
    results = autograde(broken)
    assert results['score'] == 0 and results['output'] and results['stdout_visibility'] == 'hidden'


@pytest.mark.slow
@pytest.mark.parametrize('built', ['en'], indirect=True)
def test_classroom_workflow_runs_the_checks(built, tmp_path):
    yaml = pytest.importorskip('yaml')
    workflow = yaml.safe_load((ROOT / 'instructor' / 'classroom' / 'classroom.yml').read_text())
    steps = {step.get('name'): step for step in workflow['jobs']['checks']['steps']}
    folder, summary = shutil.copytree(built[0], tmp_path / 'repo'), tmp_path / 'summary.md'
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])
    for name in ('Checks', 'Table'):
        subprocess.run(['bash', '-e', '-c', steps[name]['run']], cwd=folder, check=True, capture_output=True, env={
            **os.environ, 'PATH': path, 'GITHUB_STEP_SUMMARY': str(summary)})
    assert 'TODO 1  to do' in summary.read_text()


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


def test_no_page_links_to_nothing_or_to_what_is_kept_back():
    assert broken_links(files()) == [] == broken_links(files() | bonus.files())
    pages = {*wanted_files(), *(path.relative_to(ROOT) for path in (REFERENCE, ROOT / 'report/example/report.html'))}
    assert broken_links({path.as_posix(): (ROOT / path).read_bytes() for path in pages}) == []
    assert broken_links({'docs/a.md': b'[b](b.md) [c](../c.md) [d](#x) [e](#y)\n## X'}) == [
        'docs/a.md: b.md', 'docs/a.md: ../c.md', 'docs/a.md: #y']
