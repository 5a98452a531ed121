"""Run the report notebook and make one page of it: ``python report/render.py``.

Figures are part of the page and formulas become MathML, so ``report.html`` opens anywhere, without the internet. The
last lines say what is still open.
"""

import copy
import html
import re
import sys
from pathlib import Path

from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer
from papermill.exceptions import PapermillExecutionError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from lab.notebooks import run_notebook  # noqa: E402  the folder above has to be on the path first
from utils import atomic_path  # noqa: E402

YOUR_TEXT, YOUR_NAME = '*Your text*', '*Name, student number, date*'  # placeholders of the notebook
CHINESE_LAB = (HERE.parent / 'lab' / 'labels.py').exists()
GUIDE = 'guide'  # tag of the cells that stay out of the page
PAGE = """<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


# --- The page ---


def formula(latex, display='inline'):
    """A formula as MathML.

    :raises ValueError: it is not LaTeX
    """
    try:
        return convert(latex, display=display)
    except Exception as error:  # it has many kinds of them
        raise ValueError(f'the formula ${latex}$ cannot be read ({type(error).__name__}): mend it') from error


# nbconvert calls these for $...$ and $$...$$; its own leave the formula to MathJax, which needs the internet
IPythonRenderer.inline_math = lambda self, latex: formula(latex)
IPythonRenderer.block_math = lambda self, latex: formula(latex, 'block')


def write_page(notebook, path):
    """Write the report as HTML.

    :param notebook: executed
    :raises ValueError: a formula that is not LaTeX
    """
    shown = copy.copy(notebook)
    shown.cells = cells_shown(notebook)
    exporter = HTMLExporter(template_name='basic', embed_images=True, exclude_input=True, exclude_output_prompt=True,
                            exclude_anchor_links=True)
    body, _ = exporter.from_notebook_node(shown, {'metadata': {'path': str(path.parent)}})  # where own pictures are
    title = re.search(r'<h1\b[^>]*>(.*?)</h1>', body, re.DOTALL)
    style = (HERE / 'page.css').read_text(encoding='utf-8')
    with atomic_path(path) as temporary:
        temporary.write_text(PAGE.format(language='zh-CN' if CHINESE_LAB else 'en', style=style, body=body,
                                         title=title[1] if title else 'Lab report'), encoding='utf-8')


def cells_shown(notebook):
    """The cells that are part of the page: the guiding questions are not."""
    return [cell for cell in notebook.cells if GUIDE not in cell.metadata.get('tags', [])]


# --- What is open ---


def still_open(notebook):
    """What has to be done before the report is handed in.

    :param notebook: executed
    :return: list of sentences without their full stops
    """
    section, sections, found = '', {}, []
    for cell in cells_shown(notebook):
        if cell.cell_type == 'markdown':
            heading = re.search(r'^## *(.+)', cell.source, re.MULTILINE)
            section = heading[1] if heading else section
            if YOUR_TEXT in cell.source:
                sections.setdefault(section)
            if YOUR_NAME in cell.source:
                found.append('the line with your name is not filled in')
    if sections:
        found.append(f'sections that still hold {YOUR_TEXT}: {", ".join(sections)}')
    shown = ''.join(text for cell in notebook.cells for output in cell.get('outputs', [])
                    for kind, text in output.get('data', {}).items() if kind in ('text/html', 'text/markdown'))
    missing = dict.fromkeys(re.findall(r'<p class="missing">(.*?)</p>', shown))
    return found + [html.unescape(re.sub('</?span>', '', re.sub('</?code>', '`', sentence))) for sentence in missing]


def main():
    page = HERE / 'report.html'
    try:
        notebook = run_notebook(HERE / 'report.ipynb')
        write_page(notebook, page)
    except PapermillExecutionError as error:
        sys.exit(f'error: {error.ename}: {error.evalue}')
    except ValueError as error:
        sys.exit(f'error: {error}')
    print(f'{page}: for a PDF open it in a browser and print it')
    sentences = still_open(notebook)
    print('Before you hand in:' if sentences else 'Nothing is open: it can be handed in.', *sentences, sep='\n- ')


if __name__ == '__main__':
    main()
