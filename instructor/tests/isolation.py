"""Marks of tests that run submissions: in the grader's sandbox, and without one as Gradescope may."""

import os
import sys
from pathlib import Path

import pytest

from instructor.grading import sandbox
from tests.given.programs import needs


def others_read_python():
    folders = [Path(sys.executable).resolve(), Path(sys.prefix)]
    return all(p.stat().st_mode & 0o005 for folder in folders for p in [folder, *folder.parents])


needs_isolation = needs('bubblewrap', sandbox.bubblewrap())
# root runs submissions as another user
needs_readable_python = pytest.mark.skipif(
    os.name != 'posix' or os.getuid() == 0 and not others_read_python(),
    reason='Python is not readable for all users here: run the tests as another user than root')
