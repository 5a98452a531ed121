"""``python -m instructor.test``: a test sees none of the programs at first; skipped, it runs again with those here."""

from instructor.test import run_tests
from tests.given.programs import path_without_programs

TESTS = """
import shutil
import pytest

@pytest.mark.skipif(not shutil.which('java'), reason='no Java here')
@pytest.mark.parametrize('name', ['java', 'other [of] these'])
def test_with(name):
    assert shutil.which(name)

@pytest.mark.skip('no GPU here')
def test_gpu():
    pass

def test_without():
    assert shutil.which('other [of] these') and not shutil.which('java')
"""


def test_what_was_skipped_runs_again(tmp_path, monkeypatch):
    (tmp_path / 'programs').mkdir()
    for name in ('java', 'other [of] these'):
        (tmp_path / 'programs' / name).touch(0o755)
    monkeypatch.setenv('PATH', str(tmp_path / 'programs'))
    (tmp_path / 'test_few.py').write_text(TESTS)
    with path_without_programs() as path:
        passed, skipped = run_tests('first', tmp_path, 'test_few.py', PATH=path)
    assert passed and skipped == {'test_few.py::test_gpu': 'no GPU here',
                                  'test_few.py::test_with[java]': 'no Java here',
                                  'test_few.py::test_with[other [of] these]': 'no Java here'}
    assert run_tests('again', tmp_path, *skipped) == (True, {'test_few.py::test_gpu': 'no GPU here'})
