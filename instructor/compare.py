"""All decoders side by side: ``python -m instructor.compare``.

Lays the reference over a clean copy of the assignment in ``build/compare`` and runs ``compare.ipynb`` there.
"""

import argparse
import os
import sys
from pathlib import Path

from papermill.exceptions import PapermillExecutionError

from instructor.assemble import ROOT, assemble
from notebooks import run_notebook


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--build', type=Path, default=ROOT / 'build' / 'compare', help='build folder')
    parser.add_argument('--models', type=Path, default=ROOT / 'instructor' / 'models.py', help='models.py to lay in')
    arguments = parser.parse_args()
    os.environ.setdefault('OMP_NUM_THREADS', '1')  # see instructor/demo.py
    try:
        build = assemble(arguments.models, arguments.build)
        run_notebook(build / 'compare.ipynb', build / 'compare.ipynb')
    except ValueError as error:
        sys.exit(f'error: {error}')
    except PapermillExecutionError as error:
        sys.exit(f'error: compare.ipynb stopped: {error.ename}: {error.evalue}')
    folder = build / 'runs' / 'compare'
    print(f"\n{(folder / 'comparison.md').read_text(encoding='utf-8')}\nfigures   {folder / 'figures'}\n"
          f'notebook  {build / "compare.ipynb"}')


if __name__ == '__main__':
    main()
