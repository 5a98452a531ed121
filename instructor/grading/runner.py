"""Carries out requests on a student's ``models.py``: the only place where his code is executed.

    python runner.py LAB_FOLDER

A request comes in on stdin: its number, what it is, seconds, length, then a pickle. Out on the descriptor that stdout
was go its number, the seconds of a processor that it took, the reply's length and the reply (``tests/protocol.py``).
This process itself never loads ``models.py``: each request is carried out by a child of its own, which may crash, hang
or eat its memory. Nothing here decides about points; whatever the student's code does here can only spoil his own
replies.

It must not import anything of the repository but ``protocol.py`` beside it and what lies in LAB_FOLDER.
"""

import contextlib
import ctypes
import gc
import glob
import os
import pickle
import resource
import select
import signal
import struct
import sys
import time

MEMORY = 1 << 30     # bytes that a child may take beyond what it starts with
PROCESSOR = 15       # seconds of the processor
PROCESSES = 24       # threads count as well
FILE_LIMIT = 32 << 20
REQUEST, TIMED, YARDSTICK = b'R', b'T', b'Y'
HEAD, REPLY = struct.Struct('>Icdq'), struct.Struct('>Idq')  # number, what, seconds, length; number, seconds, length
LOADED = b'L'
NOT_DUMPABLE, SUBREAPER = (4, 0), (36, 1)  # of prctl: nobody reads or writes this memory; orphans become our children


def limit_resources():
    with open('/proc/self/statm', encoding='utf-8') as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    for what, value in ((resource.RLIMIT_AS, used + MEMORY),
                        (resource.RLIMIT_FSIZE, FILE_LIMIT), (resource.RLIMIT_NOFILE, 256),
                        (resource.RLIMIT_NPROC, PROCESSES), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR + 1))  # SIGXCPU tells it from a lack of memory


def child(into, out, lab):
    """Load models.py, say so, carry out one request and end."""
    import protocol

    os.setsid()
    for other in range(3, 256):  # requests and replies are not for him
        if other not in (into, out):
            with contextlib.suppress(OSError):
                os.close(other)
    limit_resources()
    reply, models = {'arrays': {}, 'errors': {}}, None
    try:
        models = sys.modules['models'] = protocol.load(os.path.join(lab, 'models.py'))
    except BaseException as error:  # SystemExit and KeyboardInterrupt too
        reply['errors']['all'] = protocol.describe(error)
    os.write(out, LOADED)
    with open(into, 'rb') as file:
        request = pickle.loads(file.read())
    if models and request['calls'] is not None:
        try:
            reply = protocol.answer(request, models)
        except BaseException as error:
            reply['errors']['all'] = protocol.describe(error)
    view = memoryview(protocol.pack(reply))
    view = memoryview(len(view).to_bytes(8, 'big') + view)
    while view:
        view = view[os.write(out, view):]
    os._exit(0)


def measure(into, out, lab):
    """A child that runs the yardstick in the place of a models.py."""
    import protocol

    os.write(out, LOADED)
    with open(into, 'rb') as file:
        steps = pickle.loads(file.read())['yardstick']
    protocol.yardstick(steps)
    data = protocol.pack({'arrays': {}, 'errors': {}})
    os.write(out, len(data).to_bytes(8, 'big') + data)
    os._exit(0)


def answer(work, length, requests, seconds, lab, limit, alone):
    """Fork a child for a request and wait for it, but not too long.

    It gets the request when it has loaded models.py, and this process reads it then: nothing can be known before.

    :param work: what the child does
    :param requests: the file from which to read ``length`` bytes
    :param alone: from then on it can start no process and no thread, and processes that it has started are ended, so
        that all of its time is counted
    :return: the reply's bytes, or a sentence on why there is none; seconds of a processor that it and what it started
        took from then on, whatever else runs
    """
    before = processor_seconds()
    (into, request), (reply, out) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(request)
            os.close(reply)
            work(into, out, lab)
        finally:
            os._exit(1)
    os.close(into)
    os.close(out)
    os.set_blocking(request, False)
    read, left, end, reason, loading = b'', None, time.monotonic() + seconds, '', 0.0
    # the length says where it ends: a process that was left behind may hold the pipe open
    while len(read) < 9 or len(read) - 9 < int.from_bytes(read[1:9], 'big'):
        if time.monotonic() > end:
            reason = f'TimeoutError: no result within {seconds:.0f} seconds by the clock: does it wait for something?'
            break
        can_read, can_write, _ = select.select([reply], [request] if left else [], [], 0.5)
        if can_write:
            with contextlib.suppress(OSError):
                left = left[os.write(request, left):]
            if not left:
                os.close(request)
        if can_read:
            piece = os.read(reply, 1 << 20)
            if not read:
                if alone:
                    start_no_more(pid)
                    kill_all_others(pid)
                loading = time.clock_gettime(~pid << 3 | 2) if piece else 0.0  # that process's own clock
                left = memoryview(read_all(requests, length))
            read += piece
            if not piece or len(read) > limit + 9:
                break
    if left is None:
        read_all(requests, length)
    for end_of_pipe in [reply, *[request] * (left is None or bool(left))]:
        os.close(end_of_pipe)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    kill_all_others()
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass  # orphans
    if not reason and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        reason = f'TimeoutError: no result within {PROCESSOR} seconds of the processor: an endless loop?'
    if not reason and os.WIFSIGNALED(status) and len(read) < 2:
        reason = f'it was ended by {signal.Signals(os.WTERMSIG(status)).name}: too much memory or time, or a crash'
    if not reason and not 9 < len(read) <= limit + 9:
        reason = 'it ended without a result (os._exit, sys.exit or a crash)'
    return reason or read[9:], processor_seconds() - before - loading


def read_all(file, length):
    data = b''
    while len(data) < length and (piece := file.read(length - len(data))):
        data += piece
    return data


def processor_seconds():
    """Of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start_no_more(pid):
    """A process starts no other from now on, and no thread."""
    with contextlib.suppress(OSError):
        resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0))


def kill_all_others(*but):
    """End what a child left behind; only in a process namespace of our own, where nobody else can be hit."""
    if os.environ.get('OWN_PROCESSES') != '1' or os.getpid() > 50:
        return
    for _ in range(20):
        others = {int(name) for name in os.listdir('/proc') if name.isdigit()} - {1, os.getpid(), *but}
        alive = [pid for pid in others if is_alive(pid)]
        if not alive:
            return
        for pid in alive:
            start_no_more(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def is_alive(pid):
    """Whether one of its threads runs: the first may have ended long before the others."""
    for thread in glob.glob(f'/proc/{pid}/task/*/stat'):
        with contextlib.suppress(OSError), open(thread, encoding='utf-8') as file:
            if file.read().rpartition(')')[2].split()[0] not in 'ZX':
                return True
    return False


def main():
    folder = sys.argv[1]
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    sys.path[:0] = [folder, os.path.dirname(os.path.abspath(__file__))]
    import protocol
    protocol.torch.set_num_threads(1)
    protocol.torch.set_num_threads = lambda number: None  # while it is timed, more threads would end a submission
    protocol.torch.compile = lambda function=None, **_: function or protocol.torch.compile  # there is no compiler here
    with open(os.path.join(folder, 'models.py'), 'rb') as file:
        if any(line.lstrip().startswith((b'import torchvision', b'from torchvision')) for line in file):
            import torchvision  # noqa: F401  it takes seconds: once, for all requests
    import lab.data.encoders  # noqa: F401
    limit = protocol.HEADER + protocol.PAYLOAD + 4

    gc.freeze()
    requests = os.fdopen(os.dup(0), 'rb', buffering=0)
    os.dup2(nothing, 0)
    for option, value in (NOT_DUMPABLE, SUBREAPER):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    os.write(answers, REPLY.pack(0, 0, 0))
    while head := read_all(requests, HEAD.size):
        number, what, seconds, length = HEAD.unpack(head)
        work = measure if what == YARDSTICK else child
        reply, taken = answer(work, length, requests, seconds, folder, limit, what == TIMED)
        if isinstance(reply, str):
            reply = protocol.pack({'arrays': {}, 'errors': {'all': {'error': reply, 'line': None}}})
        view = memoryview(REPLY.pack(number, taken, len(reply)) + reply)
        while view:
            view = view[os.write(answers, view):]


if __name__ == '__main__':
    main()
