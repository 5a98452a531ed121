"""A lock that only one process of many can hold, on whatever system, until it ends, however it ends."""

from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

# no torch here: create_input_files imports this in every decoding process


@contextmanager
def locked(path, on_wait):
    """Hold the lock within the block; its file goes with it.

    :param path: the lock's file
    :param on_wait: called if another process holds the lock, before waiting for that one; it may raise
    :raises OSError: the folder cannot be written
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        with suppress(OSError):  # Windows does not remove an open file
            Path(path).unlink()
        lock.release()
