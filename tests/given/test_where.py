"""The first cell of the notebooks, on folders laid out as Colab, Kaggle, ModelWhale and a cluster have them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {path.name: next(cell for cell in json.loads(path.read_text(encoding='utf-8'))['cells']
                             if cell['cell_type'] == 'code') for path in ROOT.glob('*.ipynb')}
CELL = ''.join(NOTEBOOKS['train_rnn.ipynb']['source'])
COLAB, KAGGLE = {'COLAB_RELEASE_TAG': 'release-colab'}, {'KAGGLE_KERNEL_RUN_TYPE': 'Interactive'}


def test_every_notebook_begins_with_the_same_cell():
    assert len(NOTEBOOKS) == 5 and 'lab.where' in CELL
    assert all(cell == NOTEBOOKS['train_rnn.ipynb'] for cell in NOTEBOOKS.values())


@pytest.fixture
def pip(tmp_path):
    """A pip that only notes what it was asked for, and fails if this file says so; its notes."""
    (tmp_path / 'pip').mkdir()
    (tmp_path / 'pip/__init__.py').touch()
    notes = tmp_path / 'pip/asked.txt'
    (tmp_path / 'pip/__main__.py').write_text(
        f'import os, sys\nopen({str(notes)!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")\n'
        'sys.exit(int(os.environ.get("PIP_FAILS", 0)))')
    return notes


def lay_out(folder):
    """What the cell looks at of the lab, in this folder."""
    (folder / 'lab').mkdir(parents=True)
    for name in ('lab/__init__.py', 'lab/where.py', 'solver.py', 'pyproject.toml'):
        shutil.copy(ROOT / name, folder / name)
    (folder / 'models.py').write_text('# as it was handed out')
    return folder


def run_cell(folder, pip, **environment):
    """:return: the folder that the cell goes to, what it prints, what it raises"""
    plain = {key: value for key, value in os.environ.items() if key not in (*COLAB, *KAGGLE, 'SLURM_JOB_ID')}
    folder.mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, '-c', f'{CELL}\nprint(os.getcwd())'], cwd=folder, capture_output=True,
                          text=True, env={**plain, 'PYTHONPATH': str(pip.parents[1]), **environment})
    *printed, last = done.stdout.splitlines() or ['']
    return Path(last), ' '.join(printed), done.stderr


@pytest.mark.parametrize('environment', [{}, {'SLURM_JOB_ID': '17'}])
def test_on_a_laptop_or_a_cluster_it_installs_nothing(tmp_path, pip, environment):
    lab = lay_out(tmp_path / 'any_name')
    assert run_cell(lab, pip, **environment) == (lab, '', '') and not pip.exists()


@pytest.mark.parametrize(('place', 'environment'), [('captioning', COLAB), *[(place, {**KAGGLE, **COLAB}) for place in (
    'input/lab/captioning', 'input/captioning', 'input/datasets/me/lab/captioning')]])
def test_colab_with_a_zip_and_kaggle_work_on_a_copy_and_install(tmp_path, pip, place, environment):
    """One's own work is left alone when the cell runs again."""
    lab, working = lay_out(tmp_path / place), tmp_path / 'working'
    if place == 'captioning':
        shutil.make_archive(str(working / 'captioning'), 'zip', tmp_path, 'captioning')
    folder, printed, _ = run_cell(working, pip, **environment)
    assert folder == working / 'captioning' and 'restart' in printed
    assert {'torch>=2.11', 'efficientnet-lite-pytorch>=0.1'} < set(pip.read_text().split())
    assert (f'forgets {folder}' in printed) == (environment == COLAB)
    (folder / 'models.py').write_text('# my own work')
    assert run_cell(working, pip, **environment)[0] == folder
    assert (folder / 'models.py').read_text() == '# my own work' != (lab / 'models.py').read_text()


@pytest.mark.parametrize('place', ['captioning', 'Colab Notebooks/captioning'])
def test_colab_with_a_drive(tmp_path, pip, place):
    lab = lay_out(tmp_path / 'content/drive/MyDrive' / place)
    folder, printed, _ = run_cell(tmp_path / 'content', pip, **COLAB)
    assert folder == lab and 'forgets' not in printed


@pytest.mark.parametrize(('place', 'environment', 'hint'), [
    ('captioning', {**KAGGLE, 'PIP_FAILS': '1'}, 'Internet is on'), ('a/b/c', COLAB, 'upload captioning.zip')])
def test_without_internet_or_without_the_folder_it_says_what_to_do(tmp_path, pip, place, environment, hint):
    lay_out(tmp_path / place)
    *_, error = run_cell(tmp_path, pip, **environment)
    assert hint in error.splitlines()[-1]
