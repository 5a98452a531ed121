"""Helpers around notebooks: check the TODOs first, or run one from top to bottom without opening it:
``python -m lab.notebooks train_rnn.ipynb``.
"""

import argparse
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import papermill
from tqdm import tqdm
from traitlets.config import Config

logging.getLogger('papermill').setLevel(logging.ERROR)  # it warns of each line of a settings cell with a comment


def run_notebook(path, output_path=None, show=True, **parameters):
    """Run a notebook in its own folder.

    :param path: the notebook; it must have a settings cell tagged ``parameters`` if there are any
    :param output_path: where to keep it with its outputs, possibly ``path`` itself; None keeps it nowhere
    :param show: let what the cells print appear in this process's output as it comes
    :param parameters: values for names in the settings cell
    :return: the executed notebook, an nbformat node
    :raises papermill.exceptions.PapermillExecutionError: a cell failed; ``ename`` and ``evalue`` say how
    """
    path = Path(path).expanduser().resolve()
    # The kernel's own log warns of its local connection. It and tornado may call papermill's way to end it an error.
    quiet = ['--log-level=CRITICAL', '--Application.logging_config={"loggers": {"tornado": {"level": "CRITICAL"}}}']
    config = Config(NotebookClient=dict(extra_arguments=quiet))
    streams = dict(stdout_file=sys.stdout, stderr_file=sys.stderr) if show else {}
    return papermill.execute_notebook(str(path), str(output_path) if output_path else None, parameters,
                                      cwd=str(path.parent), kernel_name='python3', progress_bar=False, config=config,
                                      **streams)


def check_todos(*todos):
    """Run the checks of these TODOs and print their table: seconds, before training takes minutes or hours.

    :param todos: numbers
    :raises NotImplementedError: a TODO is not done yet; its sentence
    :raises RuntimeError: a TODO is wrong
    """
    folder = Path(__file__).resolve().parents[1]
    names = [f'tests/test_todo{todo}.py' for todo in todos]
    command = [sys.executable, '-m', 'pytest', '-v', '-rs', '-p', 'no:cacheprovider', *names]
    lines = []
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, 'OMP_NUM_THREADS': '1', 'NO_COLOR': '1'}) as process, \
            tqdm(desc='checks', unit='check', leave=False) as bar:
        for line in process.stdout:
            lines.append(line.rstrip())
            if collected := re.search(r'collected (\d+) items', line):
                bar.total = int(collected[1])
            bar.update(bool(re.search(r'::test_\w+ (PASSED|FAILED|SKIPPED|ERROR)', line)))
    titles = [i for i, line in enumerate(lines) if re.match('=+ .+ =+', line)]
    ours = titles[1] if len(titles) > 1 else len(lines)  # the first title is pytest's own
    print('\n'.join(line for line in lines[ours:] if not line.startswith('====')))
    still_open = [match[1] for line in lines if (match := re.search(r'^SKIPPED.*not done yet: (TODO .*)', line))]
    if still_open:
        raise NotImplementedError(min(still_open))
    if process.returncode == 1:
        raise RuntimeError('a TODO is wrong: mend it first; check = False in the settings trains all the same')
    if process.returncode:
        raise RuntimeError('the checks could not run:\n' + '\n'.join(lines))


if __name__ == '__main__':
    parser = argparse.ArgumentParser(prog='python -m lab.notebooks',
                                     description='Run notebooks from top to bottom; they keep their outputs.')
    parser.add_argument('notebooks', nargs='+')
    for name in parser.parse_args().notebooks:
        run_notebook(name, name)
