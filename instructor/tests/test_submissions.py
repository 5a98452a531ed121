"""What a submission may look like, and what of it is read."""

import base64
import os
import stat
import tracemalloc
import zipfile

import pytest

from instructor.cut import REFERENCE
from instructor.grading import evidence, submissions
from instructor.grading.submissions import SubmissionError, read_submission

RIGHT = REFERENCE.read_bytes()


def packed(path, entries):
    """A zip of these (name, content)."""
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


def packed_with_lies(path, entries):
    """Whose large entries say that they are small."""
    data = packed(path, entries).read_bytes()
    for size in {len(content) for _, content in entries if len(content) > 1 << 20}:
        data = data.replace(size.to_bytes(4, 'little'), (100).to_bytes(4, 'little'))
    path.write_bytes(data)
    return path


def unpacked(path, entries):
    """A folder of them."""
    for name, data in entries:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def link(name, target):
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return entry, target


def test_only_what_a_student_may_change_is_taken(tmp_path):
    names = ['lab/models.py', 'lab/my_decoder.py', 'lab/tests/test_todo1.py', 'lab/tests/rubric.toml', 'lab/solver.py',
             'lab/conftest.py', 'lab/results.json', 'lab/test.ipynb', 'lab/runs/shapes/test_Attention.json',
             'lab/.venv/models.py', '__MACOSX/models.py', *(f'lab/data/{i}.jpg' for i in range(8091))]
    submission = read_submission(packed(tmp_path / 'a.zip', [(name, name) for name in names]))
    assert submission.code() == {'models.py': b'lab/models.py', 'my_decoder.py': b'lab/my_decoder.py'}
    assert submission.evidence() == ['test.ipynb', 'runs/shapes/test_Attention.json']


def test_paths_that_lead_out_and_links_are_left_out(tmp_path):
    out = ['../evil.py', '/etc/evil.py', 'a/../../evil.py', *(f'../{i}' for i in range(50))]
    path = packed(tmp_path / 'a.zip', [('models.py', RIGHT), link('my_decoder.py', '/etc/passwd'),
                                       *((name, 'x') for name in out)])
    assert set(read_submission(path).files) == {'models.py'}
    notes = evidence.read(path)['notes']
    assert 'my_decoder.py' in notes[0] and 'evil.py' in notes[1] and len(notes) < 25
    folder = unpacked(tmp_path / 'folder', [('models.py', RIGHT)])
    (folder / 'my_decoder.py').symlink_to('/etc/passwd')
    (folder / 'runs').symlink_to('/etc')
    assert set(read_submission(folder).files) == {'models.py'}


@pytest.mark.parametrize('name', ['models.py', 'test.ipynb'])
@pytest.mark.parametrize('written', [unpacked, packed, packed_with_lies])
def test_what_is_too_large_is_not_read_and_the_code_is(tmp_path, monkeypatch, written, name):
    monkeypatch.setattr(submissions, 'FILE_LIMIT', submissions.CODE_LIMIT)
    path = written(tmp_path / 'a', list({'models.py': RIGHT, name: b'#' * (20 << 20)}.items()))
    tracemalloc.start()
    read = evidence.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 << 20
    if name == 'models.py':
        assert 'code' not in read and name in read['error']
    else:
        assert base64.b64decode(read['code']['models.py']) == RIGHT and name in ' '.join(read['notes'])


def test_what_was_read_is_known_by_its_content(tmp_path):
    """Not by its size and time: another solution may have both."""
    path = tmp_path / 'models.py'
    digests = []
    for content in (RIGHT, RIGHT.replace(b'eqs. 4 and 5', b'eqs. 5 and 4'), RIGHT):
        path.write_bytes(content)
        os.utime(path, ns=(0, 0))
        digests.append(evidence.read(path)['digest'])
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize('name', [
    'models (1).py', 'models(1).py', 'a/models-1.py', 'Models.PY', 'models - Copy.py', 'models - Kopie (2).py',
    'models 副本.py', 'smithjohn_12345_678910_models.py', 'smithjohn_LATE_12345_678910_models-1.py',
    'Lab 1_student_attempt_2026-11-27-10-00-00_models.py', 'A Student_123_assignsubmission_file_models.py'])
def test_a_renamed_file_is_found_where_there_is_none_of_its_name(tmp_path, name):
    entries = [(name, 'mine'), (name.replace('odels', 'y_decoder'), 'too'), ('test_models.py', ''),
               ('models_old.py', '')]
    renamed = read_submission(packed(tmp_path / 'a.zip', entries))
    assert renamed.code() == {'models.py': b'mine', 'my_decoder.py': b'too'}
    assert name.split('/')[-1] in ' '.join(renamed.notes)
    both = read_submission(packed(tmp_path / 'b.zip', [*entries, ('b/c/models.py', 'the other')]))
    assert both.code() == {'models.py': b'the other'}


def test_a_zip_within_a_folder_or_a_zip(tmp_path):
    inner = packed(tmp_path / 'inner.zip', [('lab/models.py', 'mine'), ('lab/test.ipynb', '{}')]).read_bytes()
    for path in (unpacked(tmp_path / 'A Student_123_assignsubmission_file_', [('lab.zip', inner)]),
                 packed(tmp_path / 'a.zip', [('b/lab.zip', inner), ('a.pdf', '')])):
        assert read_submission(path).files.keys() == {'models.py', 'test.ipynb'}


@pytest.mark.parametrize(('names', 'message'), [
    (['readme.txt', 'a/old_models.py'], 'readme.txt, a/old_models.py'), (['a.zip', 'b.zip'], 'a.zip, b.zip'),
    (['models (1).py', 'models-1.py'], r'models \(1\).py, models-1.py'),
    (['a/models.py', 'b/models.py'], 'several models.py')])
def test_submissions_without_one_models_file(tmp_path, names, message):
    with pytest.raises(SubmissionError, match=message):
        read_submission(packed(tmp_path / 'a.zip', [(name, 'x') for name in names]))


def test_a_submission_that_is_none(tmp_path):
    (tmp_path / 'link').symlink_to(REFERENCE)
    (tmp_path / 'text.zip').write_text('not a zip')
    for name in ('nobody.zip', 'link', 'text.zip'):
        with pytest.raises(SubmissionError, match=name):
            read_submission(tmp_path / name)
