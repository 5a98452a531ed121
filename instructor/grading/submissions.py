"""What a student handed in, read with care: a folder, a zip, or a single ``models.py``.

Only what a student may change is taken: ``models.py``, a decoder file of his own, and, as evidence, notebooks, report
and what the notebooks left.
"""

import stat
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

CODE = ('models.py', 'my_decoder.py')
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
    :param path: a folder, a zip or a ``.py`` file
    :return: :class:`Submission`
    :raises SubmissionError: no such thing, a link, a damaged zip, one that is too large, no ``models.py`` in it
    """
    path = Path(path)
    if path.is_symlink():
        raise SubmissionError(f'{path} is a link: name what it leads to')
    if path.is_dir():
        submission = Submission(path.name, _folder(path))
    elif path.suffix == '.py' and path.is_file():
        submission = Submission(path.stem if path.name != 'models.py' else path.parent.name,
                                {'models.py': _reader(path, CODE_LIMIT)})
    elif path.is_file():
        submission = _zip(path)
    else:
        raise SubmissionError(f'{path}: there is no such file or folder')
    submission.files = _from_the_top(submission)
    return submission


def _reader(path, limit):
    def read():
        if path.stat().st_size > limit:
            raise SubmissionError(f'{path.name} is larger than {limit >> 10} kB')
        return path.read_bytes()
    return read


def _limit(name):
    return CODE_LIMIT if name.endswith('.py') else FILE_LIMIT


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


def _zip(path):
    try:
        archive = zipfile.ZipFile(path)
        entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, MemoryError) as error:
        raise SubmissionError(f'{path.name} is no zip, no folder and no .py file ({error})') from error
    submission, total = Submission(path.stem, {}), 0
    if len(entries) > 20 * MOST_FILES:
        raise SubmissionError(f'{path.name} holds {len(entries)} entries, too many')
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
            raise SubmissionError(f'{path.name} unpacks to more than {TOTAL_LIMIT >> 30} GB or {MOST_FILES} files')
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


def _from_the_top(submission):
    """Paths relative to where ``models.py`` lies: students pack the folder, or what is in it."""
    places = sorted((PurePosixPath(path).parent for path in submission.files
                     if PurePosixPath(path).name == 'models.py'), key=lambda place: (len(place.parts), str(place)))
    if not places:
        raise SubmissionError('there is no models.py in it')
    top = places[0]
    if len(places) > 1 and len(places[1].parts) == len(top.parts):
        raise SubmissionError(f'there are several models.py in it: {places[0]}/models.py and {places[1]}/models.py')
    return {PurePosixPath(path).relative_to(top).as_posix(): read for path, read in submission.files.items()
            if PurePosixPath(path).is_relative_to(top)}
