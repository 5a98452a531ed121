"""What a student handed in, read with care: a folder, a zip, or a single ``models.py``.

Only what a student may change is taken: ``models.py``, a decoder file of his own, and, as evidence, notebooks, report
and what the notebooks left.
"""

import io
import re
import stat
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

CODE = ('models.py', 'my_decoder.py')
# What a learning platform puts before a name: smithjohn_LATE_12345_678910_ (Canvas), ..._2026-11-27-10-00-00_
# (Blackboard), A Student_123_assignsubmission_file_ (Moodle). What it, a browser or a file manager puts after it: -1,
# (1), - Copy.
RENAMED = r'(.*(\d|_file)_)?{}([\s\d_()（）-]|copy|kopie|的?副本)*\.py'
EVIDENCE = ('*.ipynb', 'report/*.ipynb', 'report/*.html', 'runs/*/*.json', 'runs/*/*.pth.tar', 'runs/*/figures/*.png')
CODE_LIMIT, FILE_LIMIT, TOTAL_LIMIT = 1 << 18, 600 << 20, 2 << 30  # bytes
MOST_FILES = 5000
OTHER_PEOPLES = ('.venv', 'venv', '__pycache__', '__MACOSX', '.git', '.ipynb_checkpoints', 'site-packages')


class SubmissionError(Exception):
    """A submission that cannot be graded; the message says why."""


@dataclass
class Submission:
    """
    :ivar name: of the folder or file
    :ivar files: path in the submission -> function that returns its bytes
    :ivar notes: what was left out, and why
    """

    name: str
    files: dict
    notes: list = field(default_factory=list)

    def code(self):
        """:return: name -> bytes of ``models.py`` and of a decoder file of his own"""
        return {name: self.files[name]() for name in CODE if name in self.files}

    def evidence(self):
        """Paths of notebooks, report and what runs left."""
        return [path for path in self.files if any(PurePosixPath(path).match(pattern) for pattern in EVIDENCE)]


def read_submission(path):
    """
    :param path: a folder, a zip, either of them with a single zip in it, or a ``.py`` file
    :return: :class:`Submission`
    :raises SubmissionError: no such thing, a link, a damaged zip, one that is too large, no ``models.py`` in it, or
        several
    """
    path = Path(path)
    if path.is_symlink():
        raise SubmissionError(f'{path} is a link: name what it leads to')
    if path.is_dir():
        submission = Submission(path.name, _folder(path))
    elif path.suffix.lower() == '.py' and path.is_file():
        submission = Submission(path.stem if path.name != 'models.py' else path.parent.name,
                                {'models.py': _reader(path, CODE_LIMIT)})
    elif path.is_file():
        submission = _zip(path, path.name)
    else:
        raise SubmissionError(f'{path}: there is no such file or folder')
    zips = [name for name in submission.files if name.lower().endswith('.zip')]
    if len(zips) == 1 and not _best(submission.files, 'models.py'):
        inner = _zip(io.BytesIO(submission.files[zips[0]]()), zips[0])
        submission = Submission(submission.name, inner.files, submission.notes + inner.notes)
    submission.files = _from_the_top(submission)
    return submission


def _reader(path, limit):
    def read():
        if path.stat().st_size > limit:
            raise SubmissionError(f'{path.name} is larger than {limit >> 10} kB')
        return path.read_bytes()
    return read


def _limit(name):
    return CODE_LIMIT if name.lower().endswith('.py') else FILE_LIMIT


def _folder(root):
    """Regular files only; a link could lead anywhere."""
    found = {}
    for path in sorted(root.rglob('*')):
        relative = path.relative_to(root)
        if any(part in OTHER_PEOPLES for part in relative.parts):
            continue
        inside = not any(parent.is_symlink() for parent in [path, *path.parents][:len(relative.parts)])
        if inside and path.is_file():
            found[relative.as_posix()] = _reader(path, _limit(path.name))
        if len(found) > MOST_FILES:
            raise SubmissionError(f'{root.name} holds more than {MOST_FILES} files')
    return found


def _zip(file, title):
    try:
        archive = zipfile.ZipFile(file)
        entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, MemoryError) as error:
        raise SubmissionError(f'{title} is no zip, no folder and no .py file ({error})') from error
    submission, total = Submission(PurePosixPath(title).stem, {}), 0
    if len(entries) > 20 * MOST_FILES:
        raise SubmissionError(f'{title} holds {len(entries)} entries, too many')
    for entry in entries:
        name = PurePosixPath(entry.filename.replace('\\', '/'))
        if entry.is_dir() or any(part in OTHER_PEOPLES for part in name.parts):
            continue
        if name.is_absolute() or '..' in name.parts or ':' in entry.filename:
            submission.notes.append(f'left out {entry.filename!r}: its path leaves the submission')
        elif stat.S_ISLNK(entry.external_attr >> 16):
            submission.notes.append(f'left out {entry.filename!r}: a link')
        elif entry.file_size > _limit(name.name):
            submission.notes.append(f'left out {entry.filename!r}: {entry.file_size >> 20} MB is too large')
        else:
            total += entry.file_size
            submission.files[name.as_posix()] = _zip_reader(archive, entry)
        if total > TOTAL_LIMIT or len(submission.files) > MOST_FILES:
            raise SubmissionError(f'{title} unpacks to more than {TOTAL_LIMIT >> 30} GB or {MOST_FILES} files')
    return submission


def _zip_reader(archive, entry):
    def read():
        try:
            with archive.open(entry) as file:
                data = file.read(_limit(entry.filename) + 1)  # whatever size the zip claims
        except Exception as error:  # damaged, encrypted, an unknown method
            raise SubmissionError(f'{entry.filename} cannot be unpacked ({error})') from error
        if len(data) > _limit(entry.filename):
            raise SubmissionError(f'{entry.filename} is larger than it says')
        return data
    return read


def _best(paths, name):
    """What is meant by a name: the file of exactly this name, or else a renamed one, with the fewest folders above it.

    :return: list of paths; several if nothing tells them apart
    """
    found = [path for path in paths if re.fullmatch(RENAMED.format(name[:-3]), PurePosixPath(path).name, re.IGNORECASE)]
    ranks = [(PurePosixPath(path).name != name, path.count('/')) for path in found]
    return sorted(path for path, rank in zip(found, ranks, strict=True) if rank == min(ranks))


def _from_the_top(submission):
    """Paths relative to where ``models.py`` lies: students pack the folder, or what is in it."""
    found = _best(submission.files, 'models.py')
    if not found:
        there = [*sorted(submission.files, key=lambda path: (path.count('/'), path)), *submission.notes]
        raise SubmissionError(f'there is no models.py in it. There is: {_some(there)}')
    if len(found) > 1:
        raise SubmissionError(f'there are several models.py in it: {_some(found)}')
    top = PurePosixPath(found[0]).parent
    files = {PurePosixPath(path).relative_to(top).as_posix(): read for path, read in submission.files.items()
             if PurePosixPath(path).is_relative_to(top)}
    for name in CODE:
        candidates = _best([path for path in files if '/' not in path], name)
        if len(candidates) > 1:
            submission.notes.append(f'left out {_some(candidates)}: which of them is {name}?')
        elif candidates and candidates != [name]:
            submission.notes.append(f'took {candidates[0]!r} for {name}')
            files[name] = files.pop(candidates[0])
    return files


def _some(names):
    return ', '.join(names[:5]) + (f' and {len(names) - 5} more' if len(names) > 5 else '') or 'nothing'
