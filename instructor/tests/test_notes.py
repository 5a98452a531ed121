"""What the notes ask and name is there. ``instructor.test`` runs them, through nbval."""

import ast
import json
import re

import pytest

from instructor.assemble import ROOT, assemble
from instructor.handout import rubric
from lab.notebooks import run_notebook

NOTES = sorted((ROOT / 'notes').glob('*.ipynb'))


@pytest.mark.slow
def test_with_attention_even_a_short_training_learns_the_dates(tmp_path):
    lab = assemble(ROOT / 'models.py', tmp_path / 'lab')
    notebook = run_notebook(lab / 'notes/3_attention.ipynb', steps=20, date_steps=350)
    printed = ''.join(output['text'] for cell in notebook.cells for output in cell.get('outputs', [])
                      if output.output_type == 'stream')
    assert int(re.search(r'whole dates right: (\d+)%', printed)[1]) > 60


@pytest.mark.parametrize('path', NOTES, ids=lambda path: path.name)
def test_what_a_note_imports_is_there(path, monkeypatch):
    """Every day, since most notes run only now and then."""
    monkeypatch.syspath_prepend(path.parent)
    cells = [''.join(cell['source']) for cell in json.loads(path.read_text(encoding='utf-8'))['cells']
             if cell['cell_type'] == 'code']
    for node in ast.parse(re.sub('^%.*', '', '\n'.join(cells), flags=re.M)).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            exec(ast.unparse(node), {})


@pytest.mark.parametrize('path', NOTES, ids=lambda path: path.name)
def test_every_question_has_its_answer_and_the_line_that_it_changes_is_there(path):
    text, code = ('\n'.join(''.join(cell['source']) for cell in json.loads(path.read_text(encoding='utf-8'))['cells']
                            if cell['cell_type'] == kind) for kind in ('markdown', 'code'))
    asked = text.split('## Questions')[1].split('## Sources')[0]
    questions = re.findall(r'^\d\. .*(?:\n   .*)*', asked, re.M)
    assert asked.count('<details>') == asked.count('</details>') == len(questions) > 0
    for line in re.findall(r'(?:[Cc]hange|Set)(?: the line)? `([^`]+)`', '\n'.join(questions)):
        if path.name[0] in '23' and re.fullmatch(r'\w+ = \S+', line):  # "Set x = ...": the setting x is there
            line = line.split(' = ')[0] + ' = '
        assert line in code, line


def test_every_todo_asks_to_predict_first_and_its_check_answers():
    source = (ROOT / 'models.py').read_text(encoding='utf-8')
    blocks = re.findall(r'# TODO (\d): \S+\n((?: +#.*\n)+)', source)
    asked = [int(todo) for todo, block in blocks if 'Predict first: ' in block]
    assert asked == [todo for todo, entry in rubric().items() if entry['answer']] == list(rubric())
