"""The notes run as they are handed out, with every TODO open, and what they ask and name is there."""

import json
import re

import pytest
from papermill.exceptions import PapermillExecutionError

from instructor.assemble import ROOT, assemble
from instructor.cut import REFERENCE
from instructor.handout import rubric
from lab.notebooks import run_notebook

NOTES = sorted((ROOT / 'notes').glob('*.ipynb'))
PLAIN = [path.name for path in NOTES if not path.name.startswith('4_')]
SHORTER = {'2_sequence_to_sequence.ipynb': dict(steps=20, date_steps=20),
           '3_attention.ipynb': dict(steps=20, date_steps=350)}
FIGURES = {'1': 3, '2': 3, '3': 3, '4': 3, '5': 2, '6': 0}


@pytest.fixture(scope='module')
def student(tmp_path_factory):
    """The assignment as a student finds it."""
    return assemble(ROOT / 'models.py', tmp_path_factory.mktemp('student') / 'lab')


def run(path, **parameters):
    """:return: what the cells printed; every figure that is promised was drawn"""
    notebook = run_notebook(path, show=False, **parameters)
    outputs = [output for cell in notebook.cells for output in cell.get('outputs', [])]
    assert sum('image/png' in output.get('data', {}) for output in outputs) == FIGURES[path.name[0]]
    return ''.join(output['text'] for output in outputs if output.output_type == 'stream')


def text_of(path):
    """The markdown of a notebook."""
    return '\n'.join(''.join(cell['source']) for cell in json.loads(path.read_text(encoding='utf-8'))['cells']
                     if cell['cell_type'] == 'markdown')


def code_of(path):
    return '\n'.join(''.join(cell['source']) for cell in json.loads(path.read_text(encoding='utf-8'))['cells']
                     if cell['cell_type'] == 'code')


def test_there_are_six():
    assert [path.name[0] for path in NOTES] == list('123456')


@pytest.mark.parametrize('name', [  # one for every day
    pytest.param(name, marks=[pytest.mark.slow] * (name[0] != '5')) for name in PLAIN])
def test_a_note_needs_no_todo(student, name):
    printed = run(student / 'notes' / name, **SHORTER.get(name, {}))
    if name == '3_attention.ipynb':  # with attention even a short training learns the dates
        assert int(re.search(r'whole dates right: (\d+)%', printed)[1]) > 60
        assert 'AttnDecoderRNN: 15 letters to look at, but only 12 weights' in printed


@pytest.mark.slow  # test_assemble.py sees that a notebook stops so
def test_note_4_stops_at_its_todo(student):
    with pytest.raises(PapermillExecutionError) as error:
        run_notebook(student / 'notes/4_mathematics_of_attention.ipynb', show=False)
    assert error.value.evalue == 'TODO 3: Attention.__init__ is still to do: follow its steps in models.py'


def test_note_4_follows_the_own_attention_line_by_line(tmp_path):
    lab = assemble(REFERENCE, tmp_path / 'lab')
    printed = run(lab / 'notes/4_mathematics_of_attention.ipynb')
    lines = re.findall(r'^(\w+)(?: \w+)?, the .*\n    (.*)\n    → (.*)$', printed, re.M)
    assert lines == [('W_a', 'keys = self.encoder_att(encoder_out)', '(1, 64, 128)'),
                     ('W_h', 'query = self.decoder_att(decoder_hidden)', '(1, 128)'),
                     ('e_i', 'e = self.att(F.relu(keys + query.unsqueeze(1))).squeeze(2)', '(1, 64, 1)'),
                     ('alpha_i', 'alpha = e.softmax(dim=1)', '(1, 64)'),
                     ('z', 'z = torch.bmm(alpha.unsqueeze(1), encoder_out).squeeze(1)', '(1, 1, 42)')]
    assert 'DecoderWithAttention, encoder_out (1, 196, 2048)' in printed and '20,483,859' in printed


@pytest.mark.parametrize('path', NOTES, ids=lambda path: path.name)
def test_every_question_names_a_line_that_is_there_and_has_its_answer(path):
    questions = re.findall(r'^\d\. .*(?:\n   .*)*', text_of(path).split('## Questions')[1].split('## Sources')[0], re.M)
    assert 2 <= len(questions) <= 3
    for question in questions:
        line = re.search(r'(?:[Cc]hange|Set)(?: the line)? `([^`]+)`', question)[1]
        where = code_of(path)
        if path.name[0] in '23' and re.fullmatch(r'\w+ = \S+', line):  # "Set x = ...": the setting x is there
            line = line.split(' = ')[0] + ' = '
        assert line in where, line
    answers = (ROOT / 'instructor/notes.md').read_text(encoding='utf-8')
    answers = re.split(r'^## ', answers, flags=re.M)[int(path.name[0])]
    assert answers.startswith(f'Note {path.name[0]}') and len(re.findall(r'^\d\. ', answers, re.M)) == len(questions)


def test_every_todo_asks_to_predict_first_and_its_check_answers():
    source = (ROOT / 'models.py').read_text(encoding='utf-8')
    blocks = re.findall(r'# TODO (\d): \S+\n((?: +#.*\n)+)', source)
    asked = [todo for todo, block in blocks if 'Predict first: ' in block]
    assert asked == list('12345') and all(entry['answer'] for entry in rubric().values())


@pytest.mark.parametrize('page', ['README.md', 'instructor/ASSIGNMENT.md'])
def test_the_pages_list_all_of_them(page):
    text = (ROOT / page).read_text(encoding='utf-8')
    assert all(f'(notes/{path.name})' in text for path in NOTES)
