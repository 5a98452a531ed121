"""All tests: ``python -m instructor.test`` (what ``make test`` and CI run).

With ``--all`` the slow ones too (``make test-all``): before a release.

The lab's tests run on an assembled copy with the reference in it, so they see what a student's own run sees;
then come the instructor's tests, which build the handout and grade submissions (with ``--all`` the whole demo runs).
"""

import argparse
import os
import subprocess
import sys

from instructor.assemble import ROOT, assemble

# the files that take longest come first, so that neither process waits for the other in the end
LONG = [f'tests/given/test_{name}.py' for name in ('notebooks', 'app', 'processes', 'solver', 'extensions', 'compare')]
LONG_OF_INSTRUCTOR = [f'instructor/tests/test_{name}.py' for name in ('demo', 'grade', 'handout', 'bonus', 'mistakes')]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--all', action='store_true', help='also those marked slow: the whole demo, all attacks, ...')
    chosen = ['-m', ''] if parser.parse_args().all else []  # pyproject.toml leaves the slow ones out
    build = assemble(ROOT / 'instructor' / 'models.py', ROOT / 'build' / 'reference')
    environment = {**os.environ, 'MPLBACKEND': 'Agg'}
    environment.setdefault('OMP_NUM_THREADS', '1')  # see instructor/demo.py
    environment.setdefault('CAPTIONING_SHARED_DATA', str(ROOT.parent / 'shared' / 'data'))
    two_files_at_a_time = ['-n', '2', '--dist', 'loadfile', '--no-loadscope-reorder', *chosen]
    steps = [
        ('lint', ROOT, ['ruff', 'check', '.']),
        ('the lab, on the reference', build, ['pytest', *LONG, 'tests', *two_files_at_a_time]),
        ('the instructor', ROOT, ['pytest', *LONG_OF_INSTRUCTOR, 'instructor/tests', *two_files_at_a_time]),
    ]
    failed = []
    for title, folder, command in steps:
        print(f'\n== {title}: {" ".join(command)} ==', flush=True)
        if subprocess.run([sys.executable, '-m', *command], cwd=folder, env=environment).returncode:
            failed.append(title)
    sys.exit(f'failed: {", ".join(failed)}' if failed else 0)


if __name__ == '__main__':
    main()
