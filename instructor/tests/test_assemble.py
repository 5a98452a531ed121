"""Assemble lays out a clean, complete copy; the student's models.py is what the reference gives."""

import json

import pytest

from instructor.assemble import ROOT, assemble, without_outputs
from instructor.cut import BEGIN, END, REFERENCE, student_source


def test_student_models_are_what_the_reference_gives():
    """After a change of the reference: ``python -m instructor.cut``."""
    assert (ROOT / 'models.py').read_text() == student_source(REFERENCE.read_text())


SOLUTION = '        ### BEGIN SOLUTION\n        pass\n        ### END SOLUTION\n'


@pytest.mark.parametrize(('body', 'message'), [
    (SOLUTION, 'without a'), (f'        # TODO 1: A.g\n{SOLUTION}', 'the TODO says A.g, the block is in A.f'),
    (f'        # TODO 1: A.f\n{SOLUTION}'.replace(END, ''), 'without ### END'),
    (SOLUTION.replace(BEGIN, ''), 'without ### BEGIN')])
def test_wrong_markers_are_refused(body, message):
    with pytest.raises(ValueError, match=message):
        student_source(f'class A:\n    def f(self):\n{body}')


def test_outputs_are_cut():
    cell = dict(cell_type='code', outputs=[1], execution_count=3, source='x',
                metadata={'papermill': {}, 'tags': ['parameters']})
    source = json.dumps(dict(cells=[cell], metadata={'papermill': {}, 'kernelspec': {}}))
    assert json.loads(without_outputs(source, keep='parameters'))['cells'][0]['outputs'] == [1]
    notebook = json.loads(without_outputs(source))
    assert notebook == dict(metadata={'kernelspec': {}}, cells=[
        {**cell, 'outputs': [], 'execution_count': None, 'metadata': {'tags': ['parameters']}}])


def test_a_second_run_renews_code_and_keeps_what_runs_left(tmp_path):
    build = assemble(REFERENCE, tmp_path / 'build')
    (build / 'runs').mkdir()
    for name in ('runs/history.json', 'solver.py', 'old_file.py'):
        (build / name).write_text('of an older assignment')
    with (build / '.assembled').open('a') as stamp:
        stamp.write('\nold_file.py')
    assemble(REFERENCE, build)
    assert (build / 'solver.py').read_text() == (ROOT / 'solver.py').read_text()
    assert (build / 'runs/history.json').exists() and not (build / 'old_file.py').exists()


def test_a_folder_with_something_else_stays_as_it_is(tmp_path):
    (tmp_path / 'chapter.txt').write_text('mine')
    for folder in (tmp_path, ROOT):
        with pytest.raises(ValueError, match=folder.name):
            assemble(REFERENCE, folder)
    assert [path.name for path in tmp_path.iterdir()] == ['chapter.txt']
