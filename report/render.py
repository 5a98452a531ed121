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
from notebooks import run_notebook  # noqa: E402  the folder above has to be on the path first
from utils import atomic_path  # noqa: E402

FORMULA = re.compile(r'(?<!\\)(\$\$?)(?!\s)(.+?)(?<!\s)\1', re.DOTALL)
OUTSIDE = re.compile(r'''<(script|link)\b[^>]*\b(src|href)=["'](https?:|["'])[^>]*>(\s*</script>)?''')


def mathml(text):
    """Markdown with its $...$ and $$...$$ formulas as MathML; code in backquotes stays."""
    parts = re.split(r'(```.*?```|`[^`\n]*`)', text, flags=re.DOTALL)
    formula = lambda match: convert(match[2], display='block' if match[1] == '$$' else 'inline')
    return ''.join(part if part.startswith('`') else FORMULA.sub(formula, part) for part in parts)


def render(notebook_path=HERE / 'report.ipynb', html_path=HERE / 'report.html', run_folder=None):
    """Execute the report in its folder and write the page; the notebook itself stays as it is.

    :param run_folder: folder with the files of the runs, relative to the report's; None takes the notebook's
    :return: path of the page
    :raises papermill.exceptions.PapermillExecutionError: a cell failed
    """
    notebook = run_notebook(notebook_path, **(dict(run_folder=str(run_folder)) if run_folder else {}))
    for cell in notebook.cells:
        if cell.cell_type == 'markdown':
            cell.source = mathml(cell.source)
    page, _ = HTMLExporter(embed_images=True, exclude_input=True, exclude_output_prompt=True, mathjax_url='',
                           require_js_url='', jquery_url='').from_notebook_node(notebook)
    with atomic_path(html_path) as temporary:
        temporary.write_text(OUTSIDE.sub('', page), encoding='utf-8')
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
