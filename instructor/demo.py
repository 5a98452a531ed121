"""The whole lab with the reference solution: ``python -m instructor.demo``.

Lays the reference over a clean copy of the assignment in ``build/demo``, runs its four notebooks and the report
there, and prints what came out.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from instructor.assemble import ROOT, assemble
from instructor.cut import REFERENCE
from lab.figures import bleu_table
from utils import read_json

SIDE_BY_SIDE = ('train_attention.ipynb', 'train_rnn.ipynb'), ('test.ipynb', 'caption.ipynb')  # a core each


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--build', type=Path, default=ROOT / 'build' / 'demo', help='build folder')
    arguments = parser.parse_args()
    start = time.perf_counter()
    # layers as small as the demo's gain nothing from a second thread, and lose much when anything else runs
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    try:
        build = assemble(REFERENCE, arguments.build)
    except ValueError as error:
        sys.exit(f'error: {error}')
    for names in SIDE_BY_SIDE:
        print(f'\n== {" and ".join(names)} ==', flush=True)
        notebooks = [subprocess.Popen([sys.executable, '-m', 'lab.notebooks', name], cwd=build) for name in names]
        if any([notebook.wait() for notebook in notebooks]):
            sys.exit('error: a notebook stopped')
    print('\n== report ==', flush=True)
    subprocess.run([sys.executable, 'report/render.py'], cwd=build, check=True)

    run_folder = build / 'runs' / 'shapes'
    tested = [read_json(run_folder / f'test_{name}.json', 'run it again') for name in ('NoAttention', 'Attention')]
    print(f'\n\n{bleu_table(tested)}')
    print(f'\nfigures    {run_folder / "figures"}\nreport     {build / "report" / "report.html"}\n'
          f'notebooks  {build}\n{time.perf_counter() - start:.0f} seconds in all')


if __name__ == '__main__':
    main()
