"""Where a notebook runs: which service it is, what is missing there, whether somebody watches, how it shares the cores.

The first cell of the notebooks of the top folder calls this before anything is installed: no imports but Python's own
and Jupyter's.
"""

import importlib
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from IPython import get_ipython

ROOT = Path(__file__).resolve().parents[1]


def service():
    """:return: 'Kaggle', 'Colab' or 'ModelWhale'; None on a laptop or a cluster"""
    if 'KAGGLE_KERNEL_RUN_TYPE' in os.environ:  # first: its machines are made from Colab's
        return 'Kaggle'
    if 'COLAB_RELEASE_TAG' in os.environ:
        return 'Colab'
    return 'ModelWhale' if ROOT.as_posix().startswith('/home/mw/') else None


def missing_packages(*extras):
    """What pyproject.toml asks for and is not installed in any version: list such as ['papermill>=2.6'].

    :param extras: names of optional dependencies that are wanted too
    :raises RuntimeError: this Python is too old
    """
    try:
        import tomllib
    except ModuleNotFoundError:
        raise RuntimeError(f'this is Python {sys.version.split()[0]}, and the lab needs 3.11 or newer: choose another '
                           'environment or image') from None

    def is_missing(requirement):
        try:
            metadata.version(re.match(r'[\w.-]+', requirement)[0])
        except metadata.PackageNotFoundError:
            return True

    project = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['project']
    wanted = project['dependencies'] + [name for extra in extras for name in project['optional-dependencies'][extra]]
    return list(filter(is_missing, wanted))


def set_up():
    """Get ready for the cells that follow: see the functions below. Call it before torch is imported."""
    hide_progress_bars()
    share_cores()
    install_missing()


def hide_progress_bars():
    """Where nbconvert or papermill runs the notebook. Each update of a bar would stay there as a line of its own."""
    kernel = getattr(get_ipython(), 'kernel', None)
    if not getattr(kernel, '_allow_stdin', True):  # nobody could answer a question either
        os.environ['TQDM_DISABLE'] = '1'


def share_cores():
    """Let a thread of torch that waits for another one sleep soon. Otherwise, on Linux, it keeps its core busy, and two
    notebooks that train at once are many times slower (docs/speed.md).
    """
    os.environ.setdefault('GOMP_SPINCOUNT', '2000')


def install_missing():
    """Install what is missing on Colab, Kaggle or ModelWhale; what is there stays as it is. Elsewhere do nothing.

    :raises RuntimeError: pip failed, or this Python is too old
    """
    place = service()
    if place is None:
        return
    if missing := missing_packages('photos'):
        print(f'{place}: installing {", ".join(missing)}')
        if subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', *missing]).returncode:
            raise RuntimeError('pip could not install them; on Kaggle, see whether Internet is on in the settings')
        importlib.invalidate_caches()
    if place == 'Colab' and 'drive' not in ROOT.parts:
        print(f'Colab forgets {ROOT} when it disconnects: keep the folder in your Google Drive, or download models.py '
              'and runs/ before.')
