"""The example of a report: it follows the template, says what its texts say, and every number has its table."""

import html
import json
import re

import nbformat
import pytest

from instructor import example
from instructor.assemble import ROOT

TEXTS = example.read_texts()


@pytest.fixture
def notebook():
    return json.loads((ROOT / 'report/report.ipynb').read_text(encoding='utf-8'))


def test_every_placeholder_gets_its_text(notebook):
    with pytest.raises(ValueError, match='5. Comparison'):
        example.fill(notebook, {name: text for name, text in TEXTS.items() if name != '5. Comparison'})
    example.fill(notebook, TEXTS)
    assert example.still_open(nbformat.from_dict(notebook)) == []


def test_a_number_without_its_table_is_found():
    table = nbformat.v4.new_output('execute_result', {'text/markdown': '| 0.571 ± 0.002 | 93.3% |'})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('', outputs=[table])])
    assert example.without_evidence('In 93.3% it is 0.571, not 0.57, over 3 seeds.', notebook) == ['0.57']


def test_the_page_in_the_repository_is_of_these_texts(notebook):
    """After a change of the template or of the texts: ``python -m instructor.example --texts``."""
    page = example.PAGE.read_text(encoding='utf-8')
    said = ' '.join(html.unescape(re.sub('<[^>]*>', '', re.sub('<math.*?</math>', '', page, flags=re.DOTALL))).split())
    example.fill(notebook, TEXTS)
    for cell in notebook['cells']:
        if cell['cell_type'] == 'markdown' and not cell['metadata'].get('tags'):
            for part in re.split(r'\$\$.*?\$\$|\$.*?\$|[*`#]', ''.join(cell['source']), flags=re.DOTALL):
                assert ' '.join(part.split()) in said, part
    assert 'class="missing"' not in page
