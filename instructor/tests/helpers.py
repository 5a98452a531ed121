"""What several tests need: marks of those that run submissions, and a Python of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from instructor.assemble import ROOT
from instructor.grading import sandbox
from tests.given.programs import needs


def others_read_python():
    folders = [Path(sys.executable).resolve(), Path(sys.prefix)]
    return all(p.stat().st_mode & 0o005 for folder in folders for p in [folder, *folder.parents])


# without bubblewrap, as on Gradescope perhaps, root runs submissions as another user
readable_python = os.name == 'posix' and (os.getuid() != 0 or others_read_python())
needs_isolation = needs('bubblewrap', sandbox.bubblewrap())
needs_readable_python = pytest.mark.skipif(
    not readable_python, reason='Python is not readable for all users here: run the tests as another user than root')
needs_a_sandbox = needs('bubblewrap', sandbox.bubblewrap() or readable_python)


def run_module(*command, cwd=ROOT, code=0, **environment):
    """:return: what ``python -m ...`` prints in this folder, if it ends with this code"""
    done = subprocess.run([sys.executable, '-m', *map(str, command)], cwd=cwd, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={**os.environ, 'OMP_NUM_THREADS': '1', **environment})
    assert done.returncode == code, done.stdout[-3000:]
    return done.stdout
