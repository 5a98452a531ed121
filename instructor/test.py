"""All tests: ``python -m instructor.test`` (what ``make test`` and CI run).

With ``--all`` the slow ones too (``make test-all``): before a release.

The lab's tests run on an assembled copy with the reference in it, so they see what a student's own run sees;
then come the instructor's tests, which build the handout and grade submissions (with ``--all`` the whole demo runs).
The notes run through nbval: two every day, with ``--all`` all seven, and then the notebooks as they are handed out.
All run as on a machine without the programs of tests/given/programs.py. What was skipped for one that is here runs
again with it. What is skipped then is listed at the end.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

from instructor.assemble import ROOT, assemble
from tests.given.programs import PROGRAMS, path_without_programs

# the files that take longest come first, so that neither process waits for the other in the end
LONG = [f'tests/given/test_{name}.py' for name in ('notebooks', 'app', 'processes', 'solver', 'extensions', 'compare')]
NOTEBOOKS = 'train_rnn.ipynb', 'train_attention.ipynb', 'test.ipynb', 'caption.ipynb', 'report/report.ipynb'
LONG_OF_INSTRUCTOR = [f'instructor/tests/test_{name}.py' for name in ('demo', 'grade', 'handout', 'bonus', 'mistakes')]


def run(title, folder, *command, **environment):
    """:return: whether it ended well"""
    print(f'\n== {title}: {" ".join(command)} ==', flush=True)
    done = subprocess.run([sys.executable, '-m', *command], cwd=folder, env={**os.environ, **environment})
    return done.returncode == 0


def run_tests(title, folder, *arguments, **environment):
    """:return: whether all passed; dict test that was skipped, as pytest takes it -> reason"""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, 'report.xml')
        passed = run(title, folder, 'pytest', *arguments, '-o', 'junit_family=xunit1', f'--junit-xml={report}',
                     **environment)
        cases = ElementTree.parse(report).iter('testcase') if report.exists() else []
        return passed, {f'{case.get("file")}::{case.get("name")}': reason.get('message')
                        for case in cases for reason in case.iter('skipped')}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--all', action='store_true', help='also those marked slow: the whole demo, all attacks, ...')
    every = parser.parse_args().all
    chosen = ['-m', ''] if every else []  # pyproject.toml leaves the slow ones out
    build = assemble(ROOT / 'instructor' / 'models.py', ROOT / 'build' / 'reference')
    os.environ['MPLBACKEND'] = 'Agg'
    os.environ.setdefault('OMP_NUM_THREADS', '1')  # see instructor/demo.py
    os.environ.setdefault('CAPTIONING_SHARED_DATA', str(ROOT.parent / 'shared' / 'data'))
    two_files_at_a_time = ['-n', '2', '--dist', 'loadfile', '--no-loadscope-reorder', '--nbval-lax', *chosen]
    notes = [f'notes/{path.name}' for path in sorted(ROOT.glob('notes/*.ipynb')) if every or path.name[0] in '45']
    with_todos = [note for note in notes if note.startswith(('notes/4', 'notes/7'))]  # need the student's own decoders
    others = [note for note in notes if note not in with_todos]  # run with every TODO open
    steps = [('the lab, on the reference', build, [*LONG, *with_todos, 'tests']),
             ('the instructor', ROOT, [*LONG_OF_INSTRUCTOR, *others, 'instructor/tests']),
             *[(name, build, [name]) for name in NOTEBOOKS if every]]  # one after the other: each reads what is there
    passed = {'lint': run('lint', ROOT, 'ruff', 'check', '.')}
    here = tuple(f'no {name} here' for name, (commands, _) in PROGRAMS.items() if any(map(shutil.which, commands)))
    missing = defaultdict(list)  # reason -> tests
    with path_without_programs() as path:
        for title, folder, files in steps:
            passed[title], skipped = run_tests(title, folder, *files, *two_files_at_a_time, PATH=path)
            if again := [test for test, reason in skipped.items() if reason.startswith(here)]:
                title = f'{title}, what was skipped'
                passed[title], still_skipped = run_tests(title, folder, *again, *two_files_at_a_time)
                skipped = {test: reason for test, reason in skipped.items() if test not in again} | still_skipped
            for test, reason in skipped.items():
                missing[reason].append(test)
    for reason, tests in missing.items():
        files = ', '.join(sorted({Path(test.partition('::')[0]).name for test in tests}))
        print(f'skipped {len(tests)} test{"s"[:len(tests) > 1]} of {files}: {reason}', flush=True)
    failed = [title for title, well in passed.items() if not well]
    sys.exit(f'failed: {", ".join(failed)}' if failed else 0)


if __name__ == '__main__':
    main()
