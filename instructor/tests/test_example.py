"""The example of a report: it follows the template, says what its texts say, and every number has its table."""

import html
import json
import re

import nbformat
import pytest

from instructor import example
from instructor.assemble import ROOT

PAGE = example.PAGE.read_text(encoding='utf-8')


def template():
    return json.loads((ROOT / 'report/report.ipynb').read_text(encoding='utf-8'))


def test_every_placeholder_gets_its_text():
    notebook, texts = template(), example.read_texts()
    example.fill(notebook, texts)
    assert example.still_open(nbformat.from_dict(notebook)) == []
    written = '\n'.join(''.join(cell['source']) for cell in notebook['cells'])
    assert all(text in written for text in texts.values())
    with pytest.raises(ValueError, match="has no text for '5. Comparison'"):
        example.fill(template(), {name: text for name, text in texts.items() if name != '5. Comparison'})


def test_a_number_without_its_table_is_found():
    table = nbformat.v4.new_output('execute_result', {'text/markdown': '| 0.571 ± 0.002 | 93.3% |'})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('', outputs=[table])])
    assert example.without_evidence('In 93.3% it is 0.571, not 0.57, over 3 seeds.', notebook) == ['0.57']


def test_the_page_in_the_repository_is_of_these_texts():
    """After a change of the template or of the texts: ``python -m instructor.example --texts``."""
    said = ' '.join(html.unescape(re.sub('<[^>]*>', '', re.sub('<math.*?</math>', '', PAGE, flags=re.DOTALL))).split())
    notebook = template()
    example.fill(notebook, example.read_texts())
    for cell in notebook['cells']:
        if cell['cell_type'] == 'markdown' and not cell['metadata'].get('tags'):
            for part in re.split(r'\$\$.*?\$\$|\$.*?\$|[*`#]', ''.join(cell['source']), flags=re.DOTALL):
                assert ' '.join(part.split()) in said, part
    assert len(PAGE) < 1_500_000 and 'class="missing"' not in PAGE
    assert PAGE.count('<figcaption>') == 7 and PAGE.count('<p class="caption">') == 6
