"""Programs that not every machine has. A test that needs one says so, and is skipped where it is missing.

``python -m instructor.test`` runs all tests without these programs, then what was skipped with those that are here.
"""

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

BROWSERS = ['chromium', 'chromium-browser', 'google-chrome', 'microsoft-edge']
# program -> its commands, what brings it
PROGRAMS = {
    'bubblewrap': (['bwrap'], 'apt install bubblewrap, and the right to make namespaces'),
    'browser': (BROWSERS, 'apt install chromium'),
    'Java': (['java'], 'apt install default-jre-headless'),
    'make': (['make'], 'apt install make')}


def needs(program, works=None):
    """Marks a test that needs one of PROGRAMS.

    :param works: whether it works here, where that takes more than a command on the PATH
    """
    commands, brings_it = PROGRAMS[program]
    found = any(map(shutil.which, commands)) if works is None else works
    return pytest.mark.skipif(not found, reason=f'no {program} here: {brings_it}')


@contextmanager
def path_without_programs():
    """In the block this is a PATH on which all but PROGRAMS is found: folders that hold one become folders of links."""
    hidden = {command for commands, _ in PROGRAMS.values() for command in commands}
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(folder).absolute() for folder in os.get_exec_path() if os.access(folder, os.R_OK | os.X_OK)]
        for number, folder in enumerate(folders):
            if hidden & set(os.listdir(folder)):
                folders[number] = Path(scratch, str(number))
                folders[number].mkdir()
                for path in folder.iterdir():
                    if path.name not in hidden:
                        (folders[number] / path.name).symlink_to(path)
        yield os.pathsep.join(map(str, folders))
