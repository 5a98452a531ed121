"""Prepare a notebook for the place where it runs: a laptop, a cluster, Colab, Kaggle or ModelWhale.

The first cell of the top folder's notebooks calls this before anything is installed, so it needs only Python itself.
"""

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def service():
    """:return: 'Kaggle', 'Colab' or 'ModelWhale'; None on a laptop or a cluster"""
    if 'KAGGLE_KERNEL_RUN_TYPE' in os.environ:  # first: its machines are made from Colab's
        return 'Kaggle'
    if 'COLAB_RELEASE_TAG' in os.environ:
        return 'Colab'
    return 'ModelWhale' if ROOT.as_posix().startswith('/home/mw/') else None


def set_up():
    """Get ready for the cells that follow. Call it before torch is imported."""
    # on Linux a thread of torch that waits for another one keeps its core busy, unless it may sleep (docs/speed.md)
    os.environ.setdefault('GOMP_SPINCOUNT', '2000')
    if name := service():
        install(name)


def install(name):
    """Install what pyproject.toml asks for; pip leaves alone what is there.

    :raises RuntimeError: pip failed
    """
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['project']
    wanted = project['dependencies'] + project['optional-dependencies']['photos']
    print(f'{name}: installing what is missing')
    if subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', *wanted]).returncode:
        raise RuntimeError('pip could not install the packages; on Kaggle, see whether Internet is on in the settings')
    importlib.invalidate_caches()
    print('If an import fails below, an older version is still loaded: restart the kernel (Colab: Runtime > Restart '
          'session), and run this cell again.')
    if name == 'Colab' and 'drive' not in ROOT.parts:
        print(f'Colab forgets {ROOT} when it disconnects: keep the folder in your Google Drive, or download models.py '
              'and runs/ before.')
