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
CODE_LIMIT, FILE_LIMIT = 1 << 18, 600 << 20  # bytes; ``limited.py`` limits what all of it takes to read
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
    :raises SubmissionError: no such thing, a link, a damaged zip, no ``models.py`` in it, or several
    """
    path = Path(path)
    if path.is_symlink():
        raise SubmissionError(f'{path} is a link: name what it leads to')
    if path.is_dir():
        submission = Submission(path.name, _folder(path))
    elif path.suffix.lower() == '.py' and path.is_file():
        submission = Submission(path.stem if path.name != 'models.py' else path.parent.name,
                                {'models.py': _of_a_folder(path)})
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


def _reader(name, size, read):
    """A function that returns a file's bytes, at most as many as a file of this name may have.

    :param size: that the file says it has
    :param read: function number of bytes -> bytes
    """
    limit = CODE_LIMIT if name.lower().endswith('.py') else FILE_LIMIT

    def of_a_file():
        data = b'' if size > limit else read(limit + 1)  # whatever size it says
        if max(size, len(data)) > limit:
            raise SubmissionError(f'{name} is too large: more than {limit >> 10} kB')
        return data
    return of_a_file


def _folder(root):
    """Regular files only; a link could lead anywhere."""
    found = {}
    for path in sorted(root.rglob('*')):
        relative = path.relative_to(root)
        if any(part in OTHER_PEOPLES for part in relative.parts):
            continue
        inside = not any(parent.is_symlink() for parent in [path, *path.parents][:len(relative.parts)])
        if inside and path.is_file():
            found[relative.as_posix()] = _of_a_folder(path)
    return found


def _of_a_folder(path):
    def read(most):
        with open(path, 'rb') as file:
            return file.read(most)
    return _reader(path.name, path.stat().st_size, read)


def _zip(file, title):
    try:
        archive = zipfile.ZipFile(file)
        entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, MemoryError) as error:
        raise SubmissionError(f'{title} is no zip, no folder and no .py file ({error})') from error
    submission = Submission(PurePosixPath(title).stem, {})
    for entry in entries:
        name = PurePosixPath(entry.filename.replace('\\', '/'))
        if entry.is_dir() or any(part in OTHER_PEOPLES for part in name.parts):
            continue
        if name.is_absolute() or '..' in name.parts or ':' in entry.filename:
            submission.notes.append(f'left out {entry.filename!r}: its path leaves the submission')
        elif stat.S_ISLNK(entry.external_attr >> 16):
            submission.notes.append(f'left out {entry.filename!r}: a link')
        else:
            submission.files[name.as_posix()] = _of_a_zip(archive, entry)
    return submission


def _of_a_zip(archive, entry):
    def read(most):
        try:
            with archive.open(entry) as file:
                return file.read(most)
        except Exception as error:  # damaged, encrypted, an unknown method
            raise SubmissionError(f'{entry.filename} cannot be unpacked ({error})') from error
    return _reader(entry.filename, entry.file_size, read)


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
