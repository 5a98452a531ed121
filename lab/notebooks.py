"""Check the TODOs in a notebook, or run a notebook from top to bottom without opening it:
``python -m lab.notebooks train_rnn.ipynb``.
"""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import papermill
from traitlets.config import Config

logging.getLogger('papermill').setLevel(logging.ERROR)  # it warns of each line of a settings cell with a comment


def run_notebook(path, output_path=None, **parameters):
    """Run a notebook in its own folder.

    :param path: the notebook; it must have a settings cell tagged ``parameters`` if there are any
    :param output_path: where to keep it with its outputs, possibly ``path`` itself; None keeps it nowhere
    :param parameters: values for names in the settings cell
    :return: the executed notebook, an nbformat node
    :raises papermill.exceptions.PapermillExecutionError: a cell failed; ``ename`` and ``evalue`` say how
    """
    path = Path(path).expanduser().resolve()
    os.environ.setdefault('TQDM_DISABLE', '1')  # the notebook would keep each update of a progress bar as a line
    # The kernel's own log warns of its local connection. It and tornado may call papermill's way to end it an error.
    quiet = ['--log-level=CRITICAL', '--Application.logging_config={"loggers": {"tornado": {"level": "CRITICAL"}}}']
    config = Config(NotebookClient=dict(extra_arguments=quiet))
    return papermill.execute_notebook(str(path), str(output_path) if output_path else None, parameters,
                                      cwd=str(path.parent), kernel_name='python3', progress_bar=False, config=config,
                                      stdout_file=sys.stdout, stderr_file=sys.stderr)


def check_todos(*todos):
    """Run the checks of these TODOs and print what they say: seconds, before training takes minutes or hours.

    :param todos: numbers
    :raises NotImplementedError: a TODO is not done yet; its sentence
    :raises RuntimeError: a TODO is wrong
    """
    command = [sys.executable, '-m', 'pytest', '-q', '-rs', '-p', 'no:cacheprovider',
               *(f'tests/test_todo{todo}.py' for todo in todos)]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[1], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, 'OMP_NUM_THREADS': '1', 'NO_COLOR': '1'})
    print(done.stdout)
    if still_open := re.findall(r'^SKIPPED.*not done yet: (TODO .*)', done.stdout, re.MULTILINE):
        raise NotImplementedError(min(still_open))
    if done.returncode == 1:
        raise RuntimeError('a TODO is wrong: mend it first; check = False in the settings trains all the same')
    if done.returncode:
        raise RuntimeError('the checks could not run; what pytest printed stands above')


if __name__ == '__main__':
    for name in sys.argv[1:]:
        run_notebook(name, name)
