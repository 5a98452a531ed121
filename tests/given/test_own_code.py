"""Fingerprints of code: other code gives another, and nothing else does."""

import os
import subprocess
import sys
import types
from pathlib import Path

import ensembles
import extensions
import models
from own_code import code_digest, open_todo

FOLDER = Path(models.__file__).parent
CODE = '''
import torch
import helper_under_test
from models import DecoderWithAttention
from helper_under_test import TWICE, scaled

HALF = 0.5


class Looker(torch.nn.Module):
    def look(self, x):
        """Look."""
        return scaled(x) * HALF


class Mine(DecoderWithAttention):
    share = 0.25

    def start(self, encoder_out, words={'a', 'b', 'c'}):
        # first
        self.looker = Looker()
        kept = [x for x in words if x in {'d', 'e', 'f'}]
        return super().start(encoder_out), kept, TWICE, helper_under_test.twice(1)
'''
HELPER = '''
TWICE = 2

def scaled(x):
    return x * 3

def twice(x):
    return x + x

def unused(x):
    return x
'''


def digest(old='', new=''):
    """The fingerprint of class ``Mine``, with a piece of the code changed."""
    assert old in CODE + HELPER
    for name, text in (('helper_under_test', HELPER), ('decoder_under_test', CODE)):
        module = sys.modules[name] = types.ModuleType(name)
        module.__file__ = str(FOLDER / f'{name}.py')  # as if it lay there
        exec(text.replace(old, new) if old else text, module.__dict__)
    return code_digest(module.Mine)


def test_what_counts():
    before = digest()
    assert len(before) == 16
    for old, new in (('# first', '# at first\n'), ('"""Look."""', '"""Look once more."""'),
                     ('def unused(x):\n    return x', 'def unused(x):\n    return 2 * x')):
        assert digest(old, new) == before, old
    changes = [('HALF = 0.5', 'HALF = 0.6'), ('share = 0.25', 'share = 0.5'), ('x * 3', 'x * 4'),
               ('TWICE = 2', 'TWICE = 3'), ("{'d', 'e', 'f'}", "{'d', 'e', 'g'}"), ("={'a'", "={'g'"),
               ('return x + x', 'return x - x'), ('scaled(x) * HALF', 'scaled(x)'), ('if x in', 'if x not in'),
               ('(DecoderWithAttention)', '(__import__("models").DecoderWithRNN)')]
    assert len({before, *(digest(*change) for change in changes)}) == 1 + len(changes)


def test_it_is_the_same_in_every_process():
    """Python has sets in another order in each."""
    found = [subprocess.run([sys.executable, '-c', 'from test_own_code import digest; print(digest())'],
                            cwd=FOLDER, check=True, capture_output=True, text=True, env={
        **os.environ, 'PYTHONHASHSEED': seed, 'PYTHONPATH': os.pathsep.join([str(FOLDER), str(Path(__file__).parent)])})
        for seed in '17']
    assert {one.stdout.strip() for one in found} == {digest()}


def test_each_decoder_has_its_own(monkeypatch):
    kinds = [models.DecoderWithAttention, models.DecoderWithRNN, extensions.DecoderWithAdaptiveAttention,
             extensions.DecoderWithSpatialAttention, extensions.CaptionNet, ensembles.Ensemble]
    before = [code_digest(kind) for kind in kinds]
    assert len(set(before)) == len(kinds) and before == [code_digest(kind) for kind in kinds]
    monkeypatch.setattr(models.Attention, 'forward', lambda self, *_: None)
    monkeypatch.setattr(extensions.DecoderWithSpatialAttention, 'look', lambda self, *_: None)
    changed = [old != code_digest(kind) for old, kind in zip(before, kinds, strict=True)]
    assert changed == [True, False, True, True, False, False]


def test_open_todos(monkeypatch):
    def to_do(*_):
        raise NotImplementedError('TODO 6: DecoderWithSpatialAttention.attend is still to do: follow its steps in x.py')

    to_do.__module__ = 'extensions'
    assert open_todo(extensions.DecoderWithSpatialAttention, extensions.true_or_own, ensembles.Ensemble) is None
    monkeypatch.setattr(extensions.DecoderWithSpatialAttention, 'attend', to_do)
    assert open_todo(extensions.DecoderWithSpatialAttention).startswith('TODO 6: DecoderWithSpatialAttention.attend is')
    assert open_todo(extensions.DecoderWithAdaptiveAttention) is None  # it has an attend of its own
    assert open_todo(to_do).startswith('TODO 6: ')
