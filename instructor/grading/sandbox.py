"""Run probes on a submission in a sandbox of its own.

bubblewrap gives the submission a file system with only Python, the packages and a clean assignment, all read-only, a
small /tmp, no network, and process numbers of its own. Resource limits hold inside (``runner.py``). Where bubblewrap
is missing the limits are all there is; ``missing_isolation`` says so.
"""

import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

RUNNER = Path(__file__).with_name('runner.py')
START = 60         # seconds for Python and torch to be loaded
RESTARTS = 12      # of a sandbox that the submission has ended
RESULT_LIMIT = 9 << 20
TMP = 64 << 20     # bytes of /tmp
NOBODY = 65534


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
    return ('bubblewrap (the command bwrap) is missing or not allowed here, so submissions are NOT kept from this '
            "machine's files, network and processes: only memory, time and file sizes are limited. Install it, or "
            'grade only in a container or virtual machine that holds nothing else.')


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
    """Answers requests of the form probe and inputs; starts itself anew when the submission has ended it.

    :param lab: folder of a clean assignment with the submission laid in
    """

    def __init__(self, lab):
        self.lab, self.process, self.starts, self.number = Path(lab).resolve(), None, 0, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        """:return: whether it is running now"""
        self.starts += 1
        if bubblewrap():
            command = [*_wrap(bubblewrap()), '--ro-bind', str(self.lab), '/lab', '--ro-bind', str(RUNNER), '/runner.py']
            if os.getuid() == 0:  # limits on the number of processes do not hold for root
                command += ['--cap-add', 'CAP_SETUID', '--cap-add', 'CAP_SETGID', 'setpriv', f'--reuid={NOBODY}',
                            f'--regid={NOBODY}', '--clear-groups', '--no-new-privs', '--inh-caps=-all']
            command += [sys.executable, '-s', '-B', '/runner.py', '/lab']
            environment = None
        else:
            runner = shutil.copyfile(RUNNER, self.lab / '.runner.py')  # where it lies, nobody may be locked out
            command = [sys.executable, '-s', '-B', str(runner), str(self.lab)]
            environment = {'PATH': os.environ.get('PATH', ''), 'OMP_NUM_THREADS': '1', 'PYTHONDONTWRITEBYTECODE': '1'}
        # never as root, who may do anything; in bubblewrap setpriv sees to it
        nobody = dict(user=NOBODY, group=NOBODY, extra_groups=[]) if os.getuid() == 0 and not bubblewrap() else {}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, env=environment, start_new_session=True, **nobody)
        self.buffer = b''
        ready = self._read(START)
        if ready != {'ready': True}:
            self.stop()
            return False
        return True

    def stop(self):
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except OSError:
                pass
        self.process = None

    def run(self, probe, inputs, seconds):
        """
        :param inputs: dict of the fields of ``probes.Inputs``
        :param seconds: at most
        :return: the result, as JSON holds it; {'error': ...} where there is none
        """
        if self.process is None and (self.starts > RESTARTS or not self.start()):
            return {'error': 'the sandbox did not start' if self.starts == 1 else
                    'the sandbox was ended by the submission again and again', 'line': None}
        self.number += 1
        request = {'id': self.number, 'probe': probe, 'inputs': inputs, 'seconds': seconds}
        try:
            self.process.stdin.write(json.dumps(request).encode() + b'\n')
            self.process.stdin.flush()
            found = self._read(seconds + 15)
        except OSError:
            found = None
        if not isinstance(found, dict) or found.get('id') != self.number or not isinstance(found.get('result'), dict):
            self.stop()
            return {'error': 'the sandbox was ended by the submission', 'line': None}
        return found['result']

    def _read(self, seconds):
        """One JSON line, or None."""
        end = time.monotonic() + seconds
        while b'\n' not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or len(self.buffer) > RESULT_LIMIT:
                return None
            if select.select([self.process.stdout], [], [], left)[0]:
                piece = os.read(self.process.stdout.fileno(), 1 << 16)
                if not piece:
                    return None
                self.buffer += piece
        line, _, self.buffer = self.buffer.partition(b'\n')
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return None
