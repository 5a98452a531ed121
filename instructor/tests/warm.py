"""A Python of its own within a second: forked from a server that has loaded torch, but nothing of the lab."""

import multiprocessing
import os
import runpy
import sys
import tempfile
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import CompletedProcess

ROOT = Path(__file__).resolve().parents[2]
LOADED = ['torch', 'torchvision.models', 'accelerate', 'h5py', 'nltk.translate.bleu_score', 'matplotlib.pyplot',
          'papermill', 'pytest', 'tqdm.auto']


def run_module(module, *arguments, cwd=ROOT, environment=None, timeout=500):
    """As ``subprocess.run([sys.executable, '-m', module, *arguments], cwd=cwd, capture_output=True, text=True)``.

    :param environment: what is added to this process's environment
    """
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(LOADED)
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=_run, args=(
            folder, module, [*map(str, arguments)], str(cwd), {**os.environ, **(environment or {})}))
        process.start()
        if not wait([process.sentinel], timeout):
            process.kill()
        process.join()
        said = [Path(folder, name).read_text() for name in ('stdout', 'stderr')]
    return CompletedProcess([module, *arguments], process.exitcode, *said)


def _run(folder, module, arguments, cwd, environment):
    for number, name in ((1, 'stdout'), (2, 'stderr')):
        os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.dont_write_bytecode = True  # sources that change within a second, by as many bytes, look the same to its cache
    sys.path[:] = [cwd, *(path for path in sys.path if not of_the_lab(path))]
    for name, loaded in list(sys.modules.items()):
        if name not in (__name__, '__main__') and of_the_lab(getattr(loaded, '__file__', None) or '/'):
            del sys.modules[name]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name='__main__', alter_sys=True)


def of_the_lab(path):
    path = Path(path or '.').absolute()
    return path.is_relative_to(ROOT) and not path.is_relative_to(sys.prefix)
