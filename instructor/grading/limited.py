"""Read what a submission left in a process of its own, with limits: a file may be made to fill all memory."""

import json
import multiprocessing
import os
import resource
import tempfile
from multiprocessing.connection import wait
from pathlib import Path

MEMORY, SECONDS, ANSWER = 2 << 30, 60, 2 << 20  # bytes beyond Python's own, seconds, bytes of what comes back


class LimitError(Exception):
    """It needed more than it may, or ended."""


def call(function, *arguments):
    """
    :param function: of a module that can be imported; it returns what JSON can hold
    :raises LimitError: it did not come to an end within the limits
    """
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload([__name__, function.__module__])
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / 'answer'
        process = context.Process(target=_child, args=(str(answer), function, arguments), daemon=True)
        process.start()
        ended = wait([process.sentinel], SECONDS)
        process.kill()
        process.join()
        if not ended or process.exitcode or not answer.exists() or answer.stat().st_size > ANSWER:
            raise LimitError(f'it cannot be read within {SECONDS} seconds and {MEMORY >> 30} GB')
        return json.loads(answer.read_text(encoding='utf-8'))


def _child(answer, function, arguments):
    with open('/proc/self/statm', encoding='utf-8') as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY,) * 2)
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    found = function(*arguments)
    Path(answer).write_text(json.dumps(found)[:ANSWER + 1], encoding='utf-8')
