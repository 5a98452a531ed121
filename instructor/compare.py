"""All decoders side by side: ``python -m instructor.compare``.

Lays the reference over a clean copy of the assignment in ``build/compare`` and runs ``compare.ipynb`` there, with other
settings if wanted: ``--settings FILE``, a JSON object with any of the names in the notebook's settings cell. What it
has of these takes the notebook's place as a whole: a ``cfg`` without ``encoder`` is one with the default encoder.
Scores are those of the test split.
"""

import argparse
import ast
import json
import os
import sys
from pathlib import Path

from instructor.assemble import ROOT, assemble
from instructor.cut import REFERENCE
from lab.notebooks import run_notebook
from utils import read_json

FILES = {'output_folder', 'data_folder', 'word_vectors', 'encoder_weights'}


def read_settings(path):
    """Settings of ``compare.ipynb`` from a JSON file; folders in it are as seen from the present folder, but for that
    of the embedded data, which the notebook draws beside itself.

    :raises ValueError: no JSON, or a name that the notebook does not know
    """
    settings = read_json(path, 'correct it')
    cells = json.loads((ROOT / 'compare.ipynb').read_text(encoding='utf-8'))['cells']
    cell, = (cell for cell in cells if 'parameters' in cell['metadata'].get('tags', []))
    names = [target.id for node in ast.parse(''.join(cell['source'])).body for target in node.targets]
    if strange := ', '.join(sorted(set(settings) - set(names))):
        raise ValueError(f'{path} may have the names {", ".join(names)}, not {strange}')
    drawn = {'data_folder'} if settings.get('data', 'shapes') == 'shapes' else set()
    for values in (settings, settings.get('cfg', {}), *settings.get('runs', {}).values()):
        for name in (FILES - drawn) & values.keys():
            # a text that names no file, such as a kind of weights, stays
            if isinstance(values[name], str) and (name.endswith('folder') or Path(values[name]).exists()):
                values[name] = str(Path(values[name]).resolve())
    return settings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--build', type=Path, default=ROOT / 'build' / 'compare', help='build folder')
    parser.add_argument('--settings', type=Path, help='JSON file with settings in place of those in the notebook')
    arguments = parser.parse_args()
    os.environ.setdefault('OMP_NUM_THREADS', '1')  # see instructor/demo.py
    try:
        settings = {'split': 'TEST'} | (read_settings(arguments.settings) if arguments.settings else {})
        build = assemble(REFERENCE, arguments.build)
        run_notebook(build / 'compare.ipynb', build / 'compare.ipynb', **settings)
    except (ValueError, OSError) as error:
        sys.exit(f'error: {error}')
    folder = Path(settings.get('output_folder', build / 'runs' / 'compare'))
    table = max(folder.glob('*comparison.md'), key=lambda path: path.stat().st_mtime_ns)  # of this split
    print(f'\n{table.read_text(encoding="utf-8")}\nfigures   {folder / "figures"}\nnotebook  {build / "compare.ipynb"}')


if __name__ == '__main__':
    main()
