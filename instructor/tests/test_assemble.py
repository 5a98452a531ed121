"""Assemble lays out a clean, complete copy; the student's models.py is what the reference gives."""

import ast
import json
import sys

import pytest
from papermill.exceptions import PapermillExecutionError
from warm import run_module

from instructor.assemble import ROOT, assemble, without_outputs
from instructor.cut import BEGIN, END, REFERENCE, student_source
from lab.notebooks import run_notebook

TOP_LEVEL = ['create_input_files.py', 'models.py', 'datasets.py', 'solver.py', 'utils.py', 'train_rnn.ipynb',
             'train_attention.ipynb', 'test.ipynb', 'caption.ipynb', 'report/report.ipynb', 'tests/conftest.py']


def test_student_models_are_what_the_reference_gives():
    assert (ROOT / 'models.py').read_text() == student_source(REFERENCE.read_text()), \
        'models.py drifted from instructor/models.py: run python -m instructor.cut'


def test_check_finds_a_drift(tmp_path, monkeypatch):
    from instructor import cut
    (tmp_path / 'models.py').write_text((ROOT / 'models.py').read_text() + '# changed\n')
    monkeypatch.setattr(cut, 'ROOT', tmp_path)
    monkeypatch.setattr(sys, 'argv', ['cut', '--check'])
    with pytest.raises(SystemExit, match='python -m instructor.cut'):
        cut.main()


def test_no_line_of_a_solution_is_left():
    reference, student = REFERENCE.read_text(), (ROOT / 'models.py').read_text()
    inside, todos = False, []
    given = {line.strip() for line in student.splitlines()}
    for line in reference.splitlines():
        if line.strip() in (BEGIN, END):
            inside = line.strip() == BEGIN
        elif inside and line.strip() and '=' in line:
            assert line.strip() not in given, line
        elif line.strip().startswith('# TODO'):
            todos.append(line.strip()[2:])
    assert BEGIN not in student and END not in student
    raised = [node.exc.args[0].value for node in ast.walk(ast.parse(student))
              if isinstance(node, ast.Raise) and node.exc.func.id == 'NotImplementedError']
    assert len(raised) == len(todos) == 10
    for todo in todos:
        assert any(message.startswith(todo + ' ') for message in raised), todo
    assert 'TODO 3: Attention.forward is still to do' in ' '.join(raised)


@pytest.mark.parametrize(('source', 'message'), [
    ('class A:\n    def f(self):\n        ### BEGIN SOLUTION\n        pass\n        ### END SOLUTION\n', 'without a'),
    ('class A:\n    def f(self):\n        # TODO 1: A.g\n        ### BEGIN SOLUTION\n        pass\n'
     '        ### END SOLUTION\n', 'the TODO says A.g, the block is in A.f'),
    ('class A:\n    def f(self):\n        # TODO 4: A.f\n        ### BEGIN SOLUTION\n        pass\n'
     '        ### END SOLUTION\n', 'TODO 4 follows TODO 1'),
    ('class A:\n    def f(self):\n        # TODO 1: A.f\n        ### BEGIN SOLUTION\n        pass\n',
     'without ### END'),
    ('class A:\n    def f(self):\n        pass\n        ### END SOLUTION\n', 'without ### BEGIN'),
])
def test_wrong_markers_are_refused(source, message):
    with pytest.raises(ValueError, match=message):
        student_source(source)


def test_assembled_copy_is_complete_and_clean(tmp_path):
    own = tmp_path / 'mine.py'
    own.write_text('# my own models\n')
    build = assemble(own, tmp_path / 'build')
    for name in TOP_LEVEL:
        assert (build / name).is_file(), name
    assert (build / 'models.py').read_text() == '# my own models\n'
    assert not (build / 'instructor').exists() and not (build / '.git').exists()
    assert not list(build.rglob('__pycache__'))
    for path in build.rglob('*.ipynb'):
        for cell in json.loads(path.read_text())['cells']:
            assert not cell.get('outputs') and not cell.get('execution_count')


def test_a_second_run_renews_code_and_keeps_what_runs_left(tmp_path):
    build = assemble(REFERENCE, tmp_path / 'build')
    (build / 'runs').mkdir()
    (build / 'runs' / 'history.json').write_text('[]')
    (build / 'solver.py').write_text('broken')
    with (build / '.assembled').open('a') as stamp:
        stamp.write('\nold_file.py')
    (build / 'old_file.py').write_text('of an older assignment')
    assemble(REFERENCE, build)
    assert (build / 'solver.py').read_text() == (ROOT / 'solver.py').read_text()
    assert (build / 'runs' / 'history.json').exists()
    assert not (build / 'old_file.py').exists()


def test_refusals_name_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match='no file .*nothing.py'):
        assemble(tmp_path / 'nothing.py', tmp_path / 'build')
    with pytest.raises(ValueError, match='repository itself'):
        assemble(REFERENCE, ROOT)
    (tmp_path / 'thesis').mkdir()
    (tmp_path / 'thesis' / 'chapter.txt').write_text('mine')
    with pytest.raises(ValueError, match='holds files of yours'):
        assemble(REFERENCE, tmp_path / 'thesis')
    assert [path.name for path in (tmp_path / 'thesis').iterdir()] == ['chapter.txt']


def test_outputs_are_cut():
    source = json.dumps({'cells': [{'cell_type': 'code', 'outputs': [1], 'execution_count': 3, 'source': 'x',
                                    'metadata': {'papermill': {}, 'tags': ['parameters']}}],
                         'metadata': {'papermill': {}, 'kernelspec': {}}})
    cell = json.loads(without_outputs(source))['cells'][0]
    assert cell == {'cell_type': 'code', 'outputs': [], 'execution_count': None, 'source': 'x',
                    'metadata': {'tags': ['parameters']}}


@pytest.mark.parametrize(('notebook', 'todo'), [
    pytest.param('train_rnn.ipynb', 'TODO 1: DecoderWithRNN.__init__', marks=pytest.mark.slow),
    ('train_attention.ipynb', 'TODO 3: Attention.__init__')])
def test_an_open_todo_stops_the_notebook_with_one_sentence(tmp_path, notebook, todo):
    build = assemble(ROOT / 'models.py', tmp_path / 'student')
    with pytest.raises(PapermillExecutionError) as error:
        run_notebook(build / notebook, pictures=dict(train=4, val=1, test=1))
    assert error.value.ename == 'NotImplementedError'
    assert error.value.evalue == f'{todo} is still to do: follow its steps in models.py'


def test_untouched_handout_reports_not_done_yet(tmp_path):
    """On a student's fresh copy the tests of the models are skipped, not failed."""
    build = assemble(ROOT / 'models.py', tmp_path / 'student')
    done = run_module('pytest', '-q', '-rs', 'tests', '--ignore=tests/given', cwd=build)
    assert 'not done yet: TODO 1' in done.stdout and ' failed' not in done.stdout and 'error' not in done.stdout
