"""The whole lab with the reference solution: ``python -m instructor.demo``.

Lays the reference over a clean copy of the assignment in ``build/demo``, runs its four notebooks and the report
there, and prints what came out.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from papermill.exceptions import PapermillExecutionError

from instructor.assemble import ROOT, assemble
from lab.notebooks import run_notebook

NOTEBOOKS = ('train_rnn.ipynb', 'train_attention.ipynb', 'test.ipynb', 'caption.ipynb')
PICTURES = {'attention_test1': 'attention', 'history_Attention': 'history'}  # figure -> what README.md calls it


def print_results(run_folder):
    """A table of decoder, parameters, best epoch, BLEU-1 to 4 per beam size, and seconds."""
    header = ('decoder', 'parameters', 'best epoch', 'beam', 'BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4', 'seconds')
    rows = [header]
    for name in ('NoAttention', 'Attention'):
        result = json.loads((run_folder / f'test_{name}.json').read_text())
        for score in result['scores']:
            rows.append((name, f"{result['parameters']:,}", f"{result['best_epoch']} of {result['epochs']}",
                         str(score['beam_size']), *(f"{score[f'BLEU-{n}']:.3f}" for n in (1, 2, 3, 4)),
                         f"{score['seconds']:.1f}"))
        rows.append((name, '', 'training', '', '', '', '', '', f"{result['train_seconds']:.0f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for row in rows:
        print('  '.join(cell.ljust(width) if i == 0 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(row, widths, strict=True))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--build', type=Path, default=ROOT / 'build' / 'demo', help='build folder')
    parser.add_argument('--models', type=Path, default=ROOT / 'instructor' / 'models.py', help='models.py to lay in')
    parser.add_argument('--pictures', action='store_true', help='put its figures into README.md (docs/images)')
    arguments = parser.parse_args()
    start = time.perf_counter()
    # layers as small as the demo's gain nothing from a second thread, and lose much when anything else runs
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    try:
        build = assemble(arguments.models, arguments.build)
        for name in NOTEBOOKS:
            print(f'\n== {name} ==', flush=True)
            run_notebook(build / name, build / name)
    except ValueError as error:
        sys.exit(f'error: {error}')
    except PapermillExecutionError as error:
        sys.exit(f'error: {name} stopped: {error.ename}: {error.evalue}')
    print('\n== report ==', flush=True)
    subprocess.run([sys.executable, 'report/render.py'], cwd=build, check=True)

    run_folder = build / 'runs' / 'shapes'
    if arguments.pictures:
        for figure, picture in PICTURES.items():
            shutil.copy(run_folder / 'figures' / f'{figure}.png', ROOT / 'docs' / 'images' / f'{picture}.png')
    print('\n')
    print_results(run_folder)
    print(f'\nfigures    {run_folder / "figures"}\nreport     {build / "report" / "report.html"}\n'
          f'notebooks  {build}\n{time.perf_counter() - start:.0f} seconds in all')


if __name__ == '__main__':
    main()
