"""Run a notebook from top to bottom without opening it, as the demo, the report and the tests do."""

import os
import sys
from pathlib import Path

import papermill
from traitlets.config import Config


def run_notebook(path, output_path=None, show=True, **parameters):
    """Run a notebook in its own folder.

    :param path: the notebook; it must have a settings cell tagged ``parameters`` if there are any
    :param output_path: where to keep it with its outputs, possibly ``path`` itself; None keeps it nowhere
    :param show: let what the cells print (progress bars too) appear in this process's output as it comes
    :param parameters: values for names in the settings cell
    :return: the executed notebook, an nbformat node
    :raises papermill.exceptions.PapermillExecutionError: a cell failed; ``ename`` and ``evalue`` say how
    """
    path = Path(path).resolve()
    config = Config()
    if os.name == 'posix':  # sockets in a private folder instead of TCP ports that others could listen to
        config.KernelManager.transport = 'ipc'
    streams = dict(stdout_file=sys.stdout, stderr_file=sys.stderr) if show else {}
    return papermill.execute_notebook(
        str(path), str(output_path) if output_path else None, parameters, cwd=str(path.parent),
        kernel_name='python3', progress_bar=False, config=config, **streams)
