"""Run the report notebook and make one self-contained page: ``python report/render.py``.

Figures are part of the page and formulas become MathML, so ``report.html`` opens anywhere, without the internet.
"""

import argparse
import re
import sys
from pathlib import Path

from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from papermill.exceptions import PapermillExecutionError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from lab.notebooks import run_notebook  # noqa: E402  the folder above has to be on the path first
from utils import atomic_path  # noqa: E402

FORMULA = re.compile(r'(?<!\\)(\$\$?)(?!\s)(.+?)(?<!\s)\1', re.DOTALL)
OUTSIDE = re.compile(r'''<(script|link)\b[^>]*\b(src|href)=["'](https?:|["'])[^>]*>(\s*</script>)?''')


# text and outputs begin at the same margin
STYLE = '<style>.jp-InputPrompt, .jp-OutputPrompt { display: none }</style>'


def take_formulas(text, formulas):
    """Put a mark in place of each $...$ and $$...$$ of a Markdown text; code in backquotes stays.

    What turns Markdown into HTML tears MathML apart, so it comes in afterwards.

    :param formulas: dict mark -> MathML, to which they are added
    """
    def mark(match):
        name = f'formula-{len(formulas)}-mathml'
        formulas[name] = convert(match[2], display='block' if match[1] == '$$' else 'inline')
        return name
    parts = re.split(r'(```.*?```|`[^`\n]*`)', text, flags=re.DOTALL)
    return ''.join(part if part.startswith('`') else FORMULA.sub(mark, part) for part in parts)


def render(notebook_path=HERE / 'report.ipynb', html_path=HERE / 'report.html', run_folder=None):
    """Execute the report in its folder and write the page; the notebook itself stays as it is.

    :param run_folder: folder with the files of the runs, relative to the report's; None takes the notebook's
    :return: path of the page
    :raises papermill.exceptions.PapermillExecutionError: a cell failed
    """
    notebook = run_notebook(notebook_path, **(dict(run_folder=str(run_folder)) if run_folder else {}))
    formulas = {}
    for cell in notebook.cells:
        if cell.cell_type == 'markdown':
            cell.source = take_formulas(cell.source, formulas)
    page, _ = HTMLExporter(embed_images=True, exclude_input=True, exclude_output_prompt=True, mathjax_url='',
                           require_js_url='', jquery_url='').from_notebook_node(notebook)
    page = OUTSIDE.sub('', page).replace('</head>', f'{STYLE}</head>', 1)
    page = re.sub(r'formula-\d+-mathml', lambda match: formulas[match[0]], page)
    with atomic_path(html_path) as temporary:
        temporary.write_text(page, encoding='utf-8')
    return Path(html_path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--run-folder', help='folder with the files of the runs, relative to report/')
    arguments = parser.parse_args()
    try:
        print(render(run_folder=arguments.run_folder))
    except PapermillExecutionError as error:
        sys.exit(f'error: {error.ename}: {error.evalue}')


if __name__ == '__main__':
    main()
