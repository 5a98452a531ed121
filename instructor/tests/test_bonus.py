"""The bonus task: every TODO of extensions.py open, each reported as such, and the reference does them all."""

import io
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from instructor import handout
from instructor.assemble import ROOT
from instructor.bonus import files
from instructor.cut import BEGIN, END

SOLUTION = (ROOT / 'extensions.py').read_text(encoding='utf-8')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A student's folder: the handout with the lab's TODOs done, the bonus unzipped over it."""
    folder = tmp_path_factory.mktemp('student')
    handout.build(folder / 'handout')
    with zipfile.ZipFile(io.BytesIO(handout.pack(files()))) as packed:
        packed.extractall(folder / 'handout')
    shutil.copy(ROOT / 'instructor' / 'models.py', folder / 'handout' / handout.NAME / 'models.py')
    return folder / 'handout' / handout.NAME


def check(folder, *arguments):
    return subprocess.run([sys.executable, '-m', 'pytest', '-q', '-rs', '-p', 'no:cacheprovider', 'tests/bonus',
                           *arguments], cwd=folder, capture_output=True, text=True)


def test_no_line_of_the_solution_is_in_it(folder):
    inside, lines = False, set()
    for line in map(str.strip, SOLUTION.splitlines()):
        if line in (BEGIN, END):
            inside = line == BEGIN
        elif inside and len(line) >= handout.SHORTEST:
            lines.add(line)
    assert len(lines) > 30
    handed_out = {line.strip() for line in (folder / 'extensions.py').read_text().splitlines()}
    # what every decoder has, the classes without a TODO show as well
    assert {line for line in lines & handed_out if not re.match(r'self\.\w+ = nn\.', line)} == set()
    titles = re.findall(r'# TODO (\d+): ', SOLUTION)
    assert sorted(set(map(int, titles))) == [6, 7, 8, 9, 10, 11]
    assert (folder / 'extensions.py').read_text().count('raise NotImplementedError(') == len(titles)


def test_open_todos_are_not_done_yet(folder):
    found = check(folder, '-k', 'adaptive or bahdanau or captionnet')
    assert found.returncode == 0, found.stdout
    assert ' passed' not in found.stdout.splitlines()[-1] or int(re.search(r'(\d+) passed', found.stdout)[1]) < 6
    todo = 'TODO 6: DecoderWithSpatialAttention.__init__ is still to do: follow its steps in extensions.py'
    assert f'not done yet: {todo}' in found.stdout


def test_one_todo_done_is_checked_by_itself(folder):
    """The attention of the Bahdanau decoder without the rest."""
    source = (folder / 'extensions.py').read_text()
    done = re.search(r'        keys = self\.U\(.*?\n        return weighted_sum\(alpha, encoder_out\), alpha\n',
                     SOLUTION, re.DOTALL)[0]
    raised = re.search(r"        raise NotImplementedError\(\n            'TODO 9: BahdanauAttention\.forward.*?\)\n",
                       source)[0]
    (folder / 'extensions.py').write_text(source.replace(raised, done))
    found = check(folder, '-k', 'test_bahdanau_attention_with_elu')
    (folder / 'extensions.py').write_text(source)
    assert '1 passed' in found.stdout, found.stdout


def test_one_todo_alone(folder):
    """The others are done, so that nothing but this one is to do."""
    before = (folder / 'extensions.py').read_bytes()
    source = files([7])['extensions.py']
    assert source.decode().count('raise NotImplementedError(') == 3 and b'### ' not in source
    (folder / 'extensions.py').write_bytes(source)
    found = check(folder, '-k', '(adaptive or spatial or bahdanau or captionnet) and not large and not killed')
    (folder / 'extensions.py').write_bytes(before)
    assert found.returncode == 0, found.stdout
    left = re.findall(r'not done yet: TODO (\d+)', found.stdout)
    assert set(left) == {'7'} and int(re.search(r'(\d+) passed', found.stdout)[1]) > 20, found.stdout


def test_the_reference_does_them_all(folder):
    before = (folder / 'extensions.py').read_text()
    (folder / 'extensions.py').write_text(SOLUTION)
    found = check(folder, '-k', 'not trained_by and not large and not ratio_falls and not killed')
    (folder / 'extensions.py').write_text(before)
    assert found.returncode == 0 and 'skipped' not in found.stdout.splitlines()[-1], found.stdout
