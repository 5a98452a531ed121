"""What ``map`` does, in several processes."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial

# no torch here: the decoding processes of create_input_files import this module, and torch takes seconds


def default_workers(tasks):
    """One process per CPU core, 16 at most; for few tasks it is not worth starting them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    return min(cores, 16, 1 + tasks // 200)


@contextmanager
def map_in(workers):
    """Give a function like ``map``; with one worker it is ``map`` itself."""
    if workers == 1:
        yield map
        return
    # spawn: the start method that every system has and that is safe beside torch's and notebooks' threads
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context('spawn'), _start)
    try:
        yield partial(pool.map, chunksize=8)
    finally:
        pool.shutdown(cancel_futures=True)


def _start():
    """Leave Ctrl-C to the main process, and end when that is killed (a pool's process would wait forever)."""
    def follow_parent():
        multiprocessing.parent_process().join()
        os._exit(1)

    bytearray(2 ** 24)  # from now on glibc keeps freed blocks up to this size: new ones for each picture take time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=follow_parent, daemon=True).start()
