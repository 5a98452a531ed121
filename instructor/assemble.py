"""Assemble: lay a ``models.py`` over a clean, complete copy of the assignment in a build folder.

    python -m instructor.assemble instructor/models.py build/reference

The demo, the tests and the grader all run on such a copy, so all run exactly what a student runs.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What a student gets, besides models.py.
ASSIGNMENT = ('*.py', 'lab/**/*.py', 'lab/app.js', '*.ipynb', 'notes/*.ipynb', 'notes/*.py', 'report/*.ipynb',
              'report/*.py', 'report/*.css', 'tests/**/*.py', 'tests/**/*.npz', 'tests/*.toml', 'weights/*',
              'requirements.txt', 'pyproject.toml', 'README.md', 'docs/**/*')

PROMISED = 'nbval-check-output'  # nbval compares what a cell with this tag prints: the text promises it


def assemble(models_file, build_folder):
    """Lay out the assignment with the given ``models.py``.

    Code, notebooks (of outputs only those that nbval compares), report and tests are written anew; what runs left in
    the build folder (``data/``, ``runs/``) stays, so that a second run goes on from there. Older files of the
    assignment that are not part of it any more are taken out.

    :param models_file: the ``models.py`` to lay in: the reference or a student's
    :param build_folder: made if need be; must not be the repository or lie above it
    :return: the build folder, a ``Path``
    :raises ValueError: a build folder that holds something else
    """
    build = Path(build_folder).resolve()
    stamp = build / '.assembled'
    if build.exists() and any(build.iterdir()) and not stamp.exists():
        raise ValueError(f'{build} holds files of yours: name an empty folder, or one that assemble made')

    model_source = Path(models_file).read_bytes()
    wanted = wanted_files()
    if stamp.exists():
        for old in {Path(line) for line in stamp.read_text(encoding='utf-8').splitlines()} - wanted:
            (build / old).unlink(missing_ok=True)
    build.mkdir(parents=True, exist_ok=True)
    stamp.write_text('\n'.join(sorted(path.as_posix() for path in wanted)), encoding='utf-8')
    for path in wanted:
        target = build / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path == Path('models.py'):
            target.write_bytes(model_source)
        elif path.suffix == '.ipynb':
            source = (ROOT / path).read_text(encoding='utf-8')
            target.write_text(without_outputs(source, keep=PROMISED), encoding='utf-8')
        else:
            shutil.copyfile(ROOT / path, target)
    return build


def wanted_files():
    """Paths of the assignment's files, ``models.py`` among them, relative to the repository."""
    return {path.relative_to(ROOT) for pattern in ASSIGNMENT for path in ROOT.glob(pattern)
            if path.is_file() and '__pycache__' not in path.parts} | {Path('models.py')}


def without_outputs(source, keep=None):
    """A notebook's JSON without outputs, execution counts and what a run noted in the metadata.

    :param keep: a tag; the outputs of cells that have it stay
    """
    notebook = json.loads(source)
    for cell in notebook['cells']:
        if cell['cell_type'] == 'code' and keep not in cell['metadata'].get('tags', []):
            cell['outputs'], cell['execution_count'] = [], None
        cell['metadata'] = {key: value for key, value in cell['metadata'].items() if key == 'tags'}
    for of_a_run in ('papermill', 'widgets'):
        notebook['metadata'].pop(of_a_run, None)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('models_file', help='the models.py to lay in')
    parser.add_argument('build_folder')
    arguments = parser.parse_args()
    try:
        print(assemble(arguments.models_file, arguments.build_folder))
    except ValueError as error:
        sys.exit(f'error: {error}')


if __name__ == '__main__':
    main()
