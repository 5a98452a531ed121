"""Runs probes on a student's ``models.py``: the only place where his code is executed.

    python runner.py LAB_FOLDER

Speaks JSON lines: a request ``{"id", "probe", "inputs", "seconds"}`` comes in on stdin, ``{"id", "result"}`` goes
out on the descriptor that stdout was. This process itself never imports ``models``: each request is answered by a
child of its own, which may crash, hang or eat its memory. Nothing here decides about points; whatever the student's
code does to this process can only spoil its own results.

It must not import anything of the repository but what lies in LAB_FOLDER.
"""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import time

MEMORY = 1 << 30       # bytes that a child may take beyond what it starts with
PROCESSES = 24         # threads count as well
RESULT_LIMIT = 8 << 20  # bytes of one result
FILE_LIMIT = 32 << 20


def limit_resources(seconds):
    with open('/proc/self/statm') as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    for what, value in ((resource.RLIMIT_AS, used + MEMORY), (resource.RLIMIT_CPU, int(seconds) + 5),
                        (resource.RLIMIT_FSIZE, FILE_LIMIT), (resource.RLIMIT_NOFILE, 256),
                        (resource.RLIMIT_NPROC, PROCESSES), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (value, value))


def child(request, out, lab):
    """Answer one request and end."""
    os.setsid()
    os.closerange(3, out)  # requests and answers are not for him
    os.closerange(out + 1, 256)
    limit_resources(request['seconds'])
    import checking
    import probes

    inputs = probes.Inputs(**{name: tuple(value) if isinstance(value, list) else value
                              for name, value in request['inputs'].items()})
    try:
        import models
        result = probes.run(request['probe'], models, inputs) if request['probe'] != 'import' else {}
    except BaseException as error:  # SystemExit and KeyboardInterrupt too
        result = probes.describe(error, None)
    data = json.dumps(checking.to_json(result)).encode() + b'\n'
    view = memoryview(data)
    while view:
        view = view[os.write(out, view):]
    os._exit(0)


def answer(request, lab):
    """Fork a child for a request and wait for it, but not too long."""
    into, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(into)
            child(request, out, lab)
        finally:
            os._exit(1)
    os.close(out)
    data, end, reason = b'', time.monotonic() + request['seconds'], ''
    while True:
        left = end - time.monotonic()
        if left <= 0:
            reason = f"TimeoutError: no result within {request['seconds']} seconds: an endless loop?"
            break
        if not select.select([into], [], [], left)[0]:
            continue
        piece = os.read(into, 1 << 16)
        data += piece
        # the line's end, not the pipe's: a process left behind may hold that open
        if not piece or piece.endswith(b'\n') or len(data) > RESULT_LIMIT:
            break
    os.close(into)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    kill_all_others()
    with contextlib.suppress(ChildProcessError):
        _, status = os.waitpid(pid, 0)
        if not reason and os.WIFSIGNALED(status) and not data:
            reason = f'it was ended by {signal.Signals(os.WTERMSIG(status)).name}: too much memory or time, or a crash'
    if not reason:
        try:
            result = json.loads(data)
            if isinstance(result, dict):
                return result
        except (ValueError, RecursionError):
            pass
        reason = 'it ended without a result (os._exit, sys.exit or a crash)'
    return {'error': reason, 'line': None}


def kill_all_others():
    """End what a child left behind; only in a process namespace of our own, where nobody else can be hit."""
    if os.environ.get('OWN_PROCESSES') != '1' or os.getpid() > 50:
        return
    for _ in range(20):
        others = [int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) not in (1, os.getpid())]
        alive = [pid for pid in others if not is_zombie(pid)]
        if not alive:
            return
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def is_zombie(pid):
    with contextlib.suppress(OSError), open(f'/proc/{pid}/stat') as file:
        return file.read().rpartition(')')[2].split()[0] == 'Z'
    return True


def main():
    lab = sys.argv[1]
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    sys.path.insert(0, os.path.join(lab, 'tests'))
    sys.path.insert(0, lab)
    import torch

    torch.set_num_threads(1)
    # everything that a child needs but models.py, once for all
    import checking  # noqa: F401
    import probes  # noqa: F401
    import torchvision  # noqa: F401

    import create_input_files  # noqa: F401
    from lab.decode import metrics  # noqa: F401

    gc.freeze()
    requests = os.fdopen(os.dup(0), 'rb')
    os.dup2(nothing, 0)
    os.write(answers, b'{"ready": true}\n')
    for line in requests:
        request = json.loads(line)
        found = {'id': request['id'], 'result': answer(request, lab)}
        os.write(answers, json.dumps(found).encode() + b'\n')


if __name__ == '__main__':
    main()
