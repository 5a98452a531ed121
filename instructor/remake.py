"""Make anew all that follows from the reference, the checks and the rubric: ``make remake``.

In this order: the student's ``models.py``, ``expected.npz`` of the checks and of those of the bonus, the handout.
Nothing is written if the reference fails its own tests or the checks of a TODO. docs/instructors.md says what to
change by hand before.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from instructor.assemble import ROOT, assemble
from instructor.cut import REFERENCE, student_source
from instructor.expected import WrongReference, differences, files
from instructor.handout import NAME, HandoutError, build, prove_nothing_is_given_away
from utils import atomic_path

HANDOUT = ROOT / 'build' / 'handout'


def prove_the_reference():
    """The checks compare with the reference itself, so the papers' equations come first.

    :raises WrongReference: a test fails; the message names the first
    """
    with tempfile.TemporaryDirectory() as scratch:
        lab = assemble(REFERENCE, Path(scratch) / 'lab')
        command = ['pytest', '-q', '-x', '-p', 'no:cacheprovider', 'tests/given/test_papers.py']
        done = subprocess.run([sys.executable, '-m', *command], cwd=lab, env={**os.environ, 'COLUMNS': '500'},
                              capture_output=True, text=True)
        if done.returncode:
            failed = re.search(r'^(?:FAILED|ERROR) (.*)', done.stdout, re.M)
            raise WrongReference(
                f'the reference fails its own test {failed[1] if failed else done.stdout + done.stderr}')


def write(path, content, same):
    """:param same: function old content -> whether it says the same"""
    changed = not (path.exists() and same(path.read_bytes()))
    if changed:
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)
    log(path, changed)


def log(path, changed):
    print(f'{path.relative_to(ROOT)}: {"written anew" if changed else "as it was"}', flush=True)


def main():
    try:
        prove_the_reference()
        models = student_source(REFERENCE.read_text(encoding='utf-8')).encode()
        results = files()
        write(ROOT / 'models.py', models, lambda old: old == models)
        # on another machine the last digits are others: no reason to write it
        for path, content in results.items():
            write(path, content, lambda old, content=content: not any(differences(old, content)))
        archive = HANDOUT / f'{NAME}.zip'
        before = archive.read_bytes() if archive.exists() else None
        build(HANDOUT)
        prove_nothing_is_given_away(archive)
        log(archive, archive.read_bytes() != before)
    except (WrongReference, HandoutError, ValueError) as error:
        sys.exit(f'error: {error}')


if __name__ == '__main__':
    main()
