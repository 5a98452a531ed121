"""Ask a submission in a sandbox of its own.

bubblewrap gives the submission a file system with only Python, the packages and a clean assignment, all read-only, a
small /tmp, no network, and process numbers of its own. A control group limits the memory of all its processes, files
in memory counted. Each process has limits of its own (``runner.py``). ``missing_isolation`` says what is not there.
"""

import contextlib
import functools
import math
import os
import pickle
import secrets
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from instructor.expected import checking, protocol
from instructor.grading.runner import HEAD, PROCESSES, REPLY, REQUEST, TIMED, YARDSTICK

RUNNER = Path(__file__).with_name('runner.py')
START = 60         # seconds for Python and torch to be loaded
RESTARTS = 12      # of a sandbox that the submission has ended
SECONDS = 60       # for one request, however busy the machine is
IN_ALL = 300       # seconds for all requests of a submission
MEMORY = 5 << 29   # bytes of all its processes together
TMP = 64 << 20     # bytes of /tmp, and of /dev/shm
NOBODY, USERS = 65534, 1 << 30


@functools.cache
def bubblewrap():
    """The command, or None where it is missing or not allowed to work."""
    command = shutil.which('bwrap')
    if command is None:
        return None
    try:
        done = subprocess.run([*_wrap(command), 'true'], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return command if done.returncode == 0 else None


def missing_isolation():
    """What is not isolated here, in words; empty where all is."""
    if bubblewrap():
        return ''
    return ('bubblewrap (the command bwrap) is missing or not allowed here. Submissions are NOT kept from this '
            "machine's files, network and processes: a submission can read the reference and others' work, change "
            'their results and leave processes behind. Only memory and time of each process are limited.')


@contextlib.contextmanager
def control_group():
    """A control group with limits on memory and processes: the files to which a process writes its number to join.

    :return: list of paths; empty where this machine lets us make none
    """
    made, join = [], []
    processes = {'pids.max': 2 * PROCESSES}
    for hierarchy, limits in (('/sys/fs/cgroup', {'memory.max': MEMORY, 'memory.swap.max': 0, **processes}),
                              ('/sys/fs/cgroup/memory', {'memory.limit_in_bytes': MEMORY}),
                              ('/sys/fs/cgroup/pids', processes),
                              ('/sys/fs/cgroup/cpu', {})):  # each group gets as much of a busy processor as another
        with contextlib.suppress(OSError):
            if not (Path(hierarchy) / 'cgroup.procs').exists():
                continue
            group = Path(tempfile.mkdtemp(prefix='grader-', dir=hierarchy))
            made.append(group)
            for name, value in limits.items():
                if name != 'memory.swap.max' or (group / name).exists():
                    (group / name).write_text(str(value))
            join.append(group / 'cgroup.procs')
    try:
        yield join
    finally:
        for group in made:
            for _ in range(50):
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.02)


@functools.cache
def has_control_group():
    """Whether the memory of a whole submission can be limited here."""
    with control_group() as join:
        return any((path.parent / name).exists() for path in join for name in ('memory.max', 'memory.limit_in_bytes'))


def _wrap(command):
    folders = ['/usr', '/bin', '/sbin', '/lib', '/lib32', '/lib64', '/etc/ld.so.cache', '/etc/ld.so.conf',
               '/etc/ld.so.conf.d', '/etc/alternatives', sys.prefix, os.path.realpath(sys.prefix), sys.base_prefix,
               sysconfig.get_path('stdlib')]  # the environment may be a link
    arguments = [command, '--unshare-ipc', '--unshare-pid', '--unshare-net', '--unshare-uts', '--unshare-cgroup-try',
                 '--die-with-parent', '--new-session', '--clearenv', '--cap-drop', 'ALL',
                 '--perms', '1777', '--size', str(TMP), '--tmpfs', '/tmp',
                 '--proc', '/proc', '--dev', '/dev', '--chdir', '/tmp']
    for folder in dict.fromkeys(str(Path(f)) for f in folders):
        if not os.path.exists(folder):
            continue
        for parent in [*Path(folder).parents][-2::-1]:  # open to all, whatever they are outside
            arguments += ['--perms', '0755', '--dir', str(parent)]
        if os.path.islink(folder):
            arguments += ['--symlink', os.readlink(folder), folder]
        else:
            arguments += ['--ro-bind', folder, folder]
    if os.getuid() != 0:
        arguments += ['--unshare-user', '--uid', str(NOBODY), '--gid', str(NOBODY)]
    environment = {'PATH': '/usr/bin:/bin', 'HOME': '/tmp', 'OMP_NUM_THREADS': '1', 'MKL_NUM_THREADS': '1',
                   'OPENBLAS_NUM_THREADS': '1', 'OWN_PROCESSES': '1', 'PYTHONDONTWRITEBYTECODE': '1',
                   'LANG': 'C.UTF-8'}
    for name, value in environment.items():
        arguments += ['--setenv', name, value]
    return arguments


class Sandbox:
    """Carries out requests; starts itself anew when the submission has ended it.

    :param lab: folder of a clean assignment with the submission laid in
    """

    def __init__(self, lab):
        self.lab, self.process, self.starts, self.number, self.spent = Path(lab).resolve(), None, 0, 0, 0.0
        self.broken, self.step = None, 0.0  # the error that loading models.py ends in; seconds of the yardstick's step
        self.ran_out = False  # of time, by the clock of this process
        # as root, a user for each: limits on processes and the kernel's keyrings go by user
        self.user = USERS + secrets.randbelow(USERS)
        self.groups = contextlib.ExitStack()

    def __enter__(self):
        self.join = self.groups.enter_context(control_group())
        steps = min(checking.STEPS.values())  # before any code of the submission has run
        times = [self.run({'yardstick': steps}, YARDSTICK)['seconds'] for _ in range(3)]
        self.step = max(min(times), 1e-3) / steps
        self.broken = self.run({'calls': None})['errors'].get('all')
        return self

    def __exit__(self, *_):
        self.stop()
        self.groups.close()

    def start(self):
        """:return: whether it is running now"""
        self.starts += 1
        if bubblewrap():
            command = [*_wrap(bubblewrap()), '--ro-bind', str(self.lab), '/lab', '--perms', '0755', '--dir', '/runner',
                       '--ro-bind', str(RUNNER), '/runner/runner.py',
                       '--ro-bind', protocol.__file__, '/runner/protocol.py',
                       '--perms', '1777', '--size', str(TMP), '--tmpfs', '/dev/shm',
                       '--remount-ro', '/dev', '--remount-ro', '/']
            if os.getuid() == 0:  # limits on the number of processes do not hold for root
                command += ['--cap-add', 'CAP_SETUID', '--cap-add', 'CAP_SETGID', 'setpriv', f'--reuid={self.user}',
                            f'--regid={self.user}', '--clear-groups', '--no-new-privs', '--inh-caps=-all']
            command += [sys.executable, '-s', '-B', '/runner/runner.py', '/lab']
            environment = {}  # the first process shows its own to all others
        else:
            runner = shutil.copyfile(RUNNER, self.lab / '.runner.py')  # where it lies, nobody may be locked out
            shutil.copyfile(protocol.__file__, self.lab / 'protocol.py')
            command = [sys.executable, '-s', '-B', str(runner), str(self.lab)]
            environment = {'PATH': os.environ.get('PATH', ''), 'OMP_NUM_THREADS': '1', 'PYTHONDONTWRITEBYTECODE': '1'}
        # never as root, who may do anything; in bubblewrap setpriv sees to it
        nobody = dict(user=self.user, group=self.user, extra_groups=[]) if os.getuid() == 0 and not bubblewrap() else {}
        if self.join and not nobody:
            joining = ' && '.join(f'echo $$ > {path}' for path in self.join)
            command = ['/bin/sh', '-c', f'{joining} && exec "$@"', 'sh', *command]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
                start_new_session=True, **nobody)
        except PermissionError:  # that user may not run Python
            return False
        self.buffer = b''
        if self._read(START) != (0, 0, b''):
            self.stop()
            return False
        return True

    def stop(self):
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self.process = None

    def ask(self, request):
        """
        :param request: as ``protocol.answer`` takes it
        :return: the reply; its arrays hold what somebody wrote there
        """
        if self.broken:
            return {'arrays': {}, 'errors': {'all': self.broken}, 'seconds': math.inf}
        return self.run(request)

    def yardstick(self, steps):
        """Seconds, by the runner's clock."""
        return self.step * steps

    def run(self, request, what=REQUEST):
        start, seconds = time.monotonic(), min(SECONDS, IN_ALL - self.spent)
        if seconds <= 0:
            self.ran_out = True
            return failed(f'not asked: its {IN_ALL} seconds are spent')
        if self.process is None and (self.starts > RESTARTS or not self.start()):
            return failed('the sandbox did not start' if self.starts == 1 else
                          'the sandbox was ended by the submission again and again')
        self.number += 1
        data, number = pickle.dumps(request), None
        what = TIMED if request.get('timed') else what
        with contextlib.suppress(OSError):
            if self._write(HEAD.pack(self.number, what, seconds, len(data)) + data, seconds):
                number, taken, reply = self._read(seconds + 15) or (None, math.inf, None)
        taken_here = time.monotonic() - start
        self.spent, self.ran_out = self.spent + taken_here, self.ran_out or taken_here >= seconds
        if number != self.number:
            self.stop()
            return failed('the sandbox was ended by the submission')
        try:
            return {**protocol.unpack(reply), 'seconds': taken}
        except Exception:  # whatever it wrote
            return failed('it gave back something that is no reply')

    def _write(self, data, seconds):
        """:return: whether it was taken; a submission may have stopped the runner"""
        pipe, end, left = self.process.stdin.fileno(), time.monotonic() + seconds, memoryview(data)
        os.set_blocking(pipe, False)
        while left and select.select([], [pipe], [], max(0, end - time.monotonic()))[1]:
            left = left[os.write(pipe, left):]
        return not left

    def _read(self, seconds):
        """Number, seconds and bytes of one reply, or None."""
        end = time.monotonic() + seconds
        while len(self.buffer) < REPLY.size or len(self.buffer) < REPLY.size + REPLY.unpack_from(self.buffer)[2]:
            left = end - time.monotonic()
            if left <= 0 or len(self.buffer) > 2 * protocol.PAYLOAD:
                return None
            if select.select([self.process.stdout], [], [], left)[0]:
                piece = os.read(self.process.stdout.fileno(), 1 << 20)
                if not piece:
                    return None
                self.buffer += piece
        number, taken, length = REPLY.unpack_from(self.buffer)
        reply, self.buffer = self.buffer[REPLY.size:REPLY.size + length], self.buffer[REPLY.size + length:]
        return number, taken, reply


def failed(reason):
    return {'arrays': {}, 'errors': {'all': {'error': reason, 'line': None}}, 'seconds': math.inf}

