"""Prepare a notebook for the place where it runs: a laptop, a cluster, Colab, Kaggle or ModelWhale.

The first cell of the notebooks of the top folder calls this before anything is installed. So it imports only Python's
own modules and those of Jupyter.
"""

import importlib
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from IPython import get_ipython
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]


def service():
    """:return: 'Kaggle', 'Colab' or 'ModelWhale'; None on a laptop or a cluster"""
    if 'KAGGLE_KERNEL_RUN_TYPE' in os.environ:  # first: its machines are made from Colab's
        return 'Kaggle'
    if 'COLAB_RELEASE_TAG' in os.environ:
        return 'Colab'
    return 'ModelWhale' if ROOT.as_posix().startswith('/home/mw/') else None


def missing_packages(*extras):
    """What pyproject.toml asks for, and is not installed or too old.

    :param extras: names of optional dependencies that are wanted too
    :return: dict requirement -> version that is installed, or None: {'nltk>=3.9': '3.8.1', 'papermill>=2.6': None}
    :raises RuntimeError: this Python is too old
    """
    try:
        import tomllib
    except ModuleNotFoundError:
        raise RuntimeError(f'this is Python {sys.version.split()[0]}, and the lab needs 3.11 or newer: choose another '
                           'environment or image') from None

    project = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['project']
    wanted = project['dependencies'] + [name for extra in extras for name in project['optional-dependencies'][extra]]
    missing = {}
    for requirement in map(Requirement, wanted):
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = None
        # 2.11.0a0+git, built from the sources of 2.11, has what 2.11 has
        if version is None or not requirement.specifier.contains(Version(version).base_version):
            missing[f'{requirement.name}{requirement.specifier}'] = version
    return missing


def set_up():
    """Get ready for the cells that follow. Call it before torch is imported."""
    # nbconvert and papermill would keep each update of a progress bar as a line of its own; they let no cell ask
    kernel = getattr(get_ipython(), 'kernel', None)
    if not getattr(kernel, '_allow_stdin', True):
        os.environ['TQDM_DISABLE'] = '1'
    # on Linux a thread of torch that waits for another one keeps its core busy, unless it may sleep (docs/speed.md)
    os.environ.setdefault('GOMP_SPINCOUNT', '2000')
    install_missing()


def install_missing():
    """Install what is missing or too old on Colab, Kaggle or ModelWhale. Elsewhere only say what is.

    :raises RuntimeError: pip failed, or this Python is too old
    """
    place = service()
    missing = missing_packages('photos') if place else missing_packages()
    names = ', '.join(name + (f' (here is {version})' if version else '') for name, version in missing.items())
    if missing and not place:
        command = '%pip install ' + ' '.join(f'"{name}"' for name in missing)
        print(f'The lab needs {names}. In a cell of its own, run {command} and then restart the kernel.')
    elif missing:
        print(f'{place}: installing {names}')
        if subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', *missing]).returncode:
            raise RuntimeError('pip could not install them; on Kaggle, see whether Internet is on in the settings')
        importlib.invalidate_caches()
        if any(missing.values()):
            print('The older versions may be loaded already: restart the kernel (Colab: Runtime > Restart session), '
                  'and run this cell again.')
    if place == 'Colab' and 'drive' not in ROOT.parts:
        print(f'Colab forgets {ROOT} when it disconnects: keep the folder in your Google Drive, or download models.py '
              'and runs/ before.')
