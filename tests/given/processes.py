"""Connected processes within a second: a server that has loaded the lab forks them, where torchrun starts Python anew.

One process that fails ends the others, as with torchrun.
"""

import multiprocessing
import os
import signal
import socket
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import CompletedProcess

import torch


def run_in_processes(count, program, *arguments, timeout=300):
    """
    :param program: a function, or the source of a program
    :return: as of ``subprocess.run``; ``returncode`` is that of a process that failed
    """
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['solver'])
    with tempfile.TemporaryDirectory() as folder:
        running = [context.Process(target=_one, args=(rank, count, port, folder, program, arguments), daemon=True)
                   for rank in range(count)]
        for process in running:
            process.start()
        end, code = time.monotonic() + timeout, 0
        while (left := [process for process in running if process.exitcode is None]) and not code:
            wait([process.sentinel for process in left], max(0, end - time.monotonic()))
            code = next((process.exitcode for process in running if process.exitcode), 0)
            code = code or (124 if time.monotonic() > end else 0)
        if 0 < code < 124:  # perhaps its connection broke because another was killed, of which the word comes later
            wait([process.sentinel for process in running if process.exitcode is None], 1)
            code = min(process.exitcode for process in running if process.exitcode)
        for process in running:
            if code:
                process.kill()
            process.join()
        said = [''.join(path.read_text() for path in sorted(Path(folder).glob(f'{name}.*')))
                for name in ('stdout', 'stderr')]
    if code < 0:
        said[1] += f'\n{signal.Signals(-code).name}'
    return CompletedProcess(program, code, *said)


def _one(rank, count, port, folder, program, arguments):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count),
                      MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    for number, name in ((1, 'stdout'), (2, 'stderr')):
        os.dup2(os.open(os.path.join(folder, f'{name}.{rank}'), os.O_WRONLY | os.O_CREAT, 0o600), number)
    torch.set_num_threads(1)
    if callable(program):
        program(*arguments)
    else:
        exec(compile(program, 'program', 'exec'), {'__name__': '__main__'})
    from lab.train import distributed
    distributed.disconnect()
