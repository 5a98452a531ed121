"""HDF5 files with one large array whose rows are read, and perhaps written, straight at their place in the file."""

import mmap
import os
from pathlib import Path

import h5py
import numpy as np


def open_hdf5(path):
    """Open an HDF5 file for reading, without a lock: files of the lab do not change once they have their name.

    :raises FileNotFoundError: no such file
    :raises ValueError: a file that cannot be read; the message names it
    """
    try:
        return h5py.File(Path(path).expanduser(), 'r', locking=False)
    except FileNotFoundError:
        raise FileNotFoundError(f'{path} is not there') from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else 'it is cut, empty or no HDF5 file: make it again'
        if 'unable to lock' in str(error):
            why = 'its drive knows no locks, set the environment variable HDF5_USE_FILE_LOCKING=FALSE'
        raise ValueError(f'{path} cannot be read: {why} ({error})') from error


def create(path, name, shape, dtype, attributes, strings=()):
    """Write an HDF5 file that is whole but for its rows.

    :param name: of the array; ``shape``: its shape, rows first; ``dtype``: a numpy type
    :param attributes: dict of the file's attributes
    :param strings: dict name -> list of str, further data sets
    """
    with h5py.File(path, 'w', locking=False) as file:
        file.attrs.update(attributes)
        for key, values in dict(strings).items():
            file.create_dataset(key, data=values, dtype=h5py.string_dtype())
        file.create_dataset(name, shape, dtype)[-1:] = 0  # with the last row all rows get their place in the file


class Rows:
    """The rows of such a file, read from its bytes where they are indexed.

    (HDF5 itself takes several times as long for rows here and there, and an open file does not survive a fork.)

    :ivar array: numpy array, read only
    :raises OSError: the file was not made by :func:`create`
    """

    def __init__(self, path, name):
        with open_hdf5(path) as file:
            array = file[name]
            shape, dtype, self._first = array.shape, array.dtype, array.id.get_offset()
        if not shape[0]:
            self.array = np.empty(shape, dtype)
            return
        if self._first is None:
            raise OSError(f'{path}: its {name} are not in one piece; make the file again')
        with open(path, 'rb') as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.array = np.ndarray(shape, dtype, self._bytes, self._first)

    def __getitem__(self, numbers):
        return self.array[numbers]

    def expect(self, start, stop):
        """Let the operating system read these rows from the disk in one go, ahead of time, where it can."""
        stop = min(stop, len(self.array))
        if hasattr(mmap, 'MADV_WILLNEED') and start < stop:  # not on Windows
            row = self.array[0].nbytes
            begin = (self._first + start * row) // mmap.PAGESIZE * mmap.PAGESIZE
            self._bytes.madvise(mmap.MADV_WILLNEED, begin, self._first + stop * row - begin)


def open_rows(path, name):
    """Open such a file as plain bytes, at the first row of its array."""
    with open_hdf5(path) as file:
        first = file[name].id.get_offset() or 0  # None when there are no rows
    rows = open(path, 'r+b')
    rows.seek(first)
    return rows
