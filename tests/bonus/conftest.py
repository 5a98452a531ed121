"""The checks of a bonus task ask the files of ``lab/more`` in this process."""

import importlib
from pathlib import Path

import bonus_protocol
import protocol
import pytest
from bonus_requests import INPUTS, build
from checking import Stored, Subject


def ask(request):
    name = request['file'].removesuffix('.py').replace('/', '.')
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a syntax error, say
        return {'arrays': {}, 'errors': {'all': protocol.describe(error)}}
    return bonus_protocol.answer(request, module)


@pytest.fixture(scope='session')
def subject():
    return Subject(ask, Stored(Path(__file__).with_name('expected.npz')), INPUTS, build=build)
