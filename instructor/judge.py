"""The checks of ``tests/test_todo*.py`` as a function: from what the probes found to verdicts and points.

No code of a student runs here: the probes' results may come from anywhere, and whatever is strange about them
counts as failed.
"""

import contextlib
import importlib
import inspect
import io
import sys
from dataclasses import dataclass

import pytest

from instructor.assemble import ROOT

sys.path.insert(0, str(ROOT / 'tests'))
import checking  # noqa: E402

TODOS = tuple(checking.rubric())


@dataclass(frozen=True)
class Verdict:
    """
    :ivar outcome: 'passed', 'failed' or 'open' (the TODO is not done yet)
    :ivar message: what is wrong; empty if nothing
    :ivar points: given; ``possible``: could be had
    """

    todo: int
    test: str
    outcome: str
    message: str
    points: float
    possible: float


def checks(todo):
    """The test functions of a TODO, in the order of their file."""
    module = importlib.import_module(f'test_todo{todo}')
    found = [(name, function) for name, function in vars(module).items()
             if name.startswith('test_') and inspect.isfunction(function) and function.__module__ == module.__name__]
    return sorted(found, key=lambda pair: pair[1].__code__.co_firstlineno)


def judge(todo, run, stored, inputs, skip=()):
    """
    :param run: function probe name -> result, as ``probes.run`` gives it
    :param stored: what must come out, see ``checking.Stored``
    :param inputs: the ``probes.Inputs`` that were used
    :param skip: names of checks to leave out
    :return: list of :class:`Verdict`
    """
    verdicts = []
    for name, check in checks(todo):
        if name in skip:
            continue
        outcome, message = 'passed', ''
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                check(checking.Lab(todo, run, stored, inputs))
        except pytest.fail.Exception as error:
            outcome, message = 'failed', error.msg
        except pytest.skip.Exception as error:
            outcome, message = 'open', error.msg
        except Exception as error:  # results that no honest run of the probes gives
            outcome, message = 'failed', f'TODO {todo}: the results make no sense ({type(error).__name__}: {error})'
        possible = checking.rubric()[todo]['points'][name]
        verdicts.append(Verdict(todo, name, outcome, message, possible if outcome == 'passed' else 0, possible))
    return verdicts
