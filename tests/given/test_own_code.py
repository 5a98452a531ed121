"""Fingerprints of code: other code gives another, and nothing else does."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ensembles
import extensions
import models
import own_code
from own_code import code_digest, open_todo

FOLDER = Path(models.__file__).parent
BEGIN = '''
import contextlib, functools, torch
import models
from dataclasses import dataclass
from torch import nn
from torch.nn import functional as F
from models import DecoderWithAttention, flatten_pixels
'''
HELPER = 'def scaled(x):\n    return x * 2\n\n\ndef unused(x):\n    return x - 7\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in the lab's place, with models.py and two files of helpers."""
    monkeypatch.setattr(own_code, 'FOLDER', tmp_path)
    (tmp_path / 'parts').mkdir()
    for name, text in (('models', (FOLDER / 'models.py').read_text()), ('given', HELPER), ('parts/inner', HELPER),
                       ('parts/__init__', 'from .inner import scaled\n')):
        (tmp_path / f'{name}.py').write_text(text)
    own_code.parsed.cache_clear()
    yield tmp_path
    own_code.parsed.cache_clear()


def digest(folder, code):
    (folder / 'mine.py').write_text(BEGIN + code)
    return code_digest('mine.Mine')


LOOK = 'class Look(nn.Module):\n    def forward(self, x): return x * 2\n'
CALLS = 'class Mine(DecoderWithAttention):\n    def start(self, x): return {}\n'
CHANGES = {  # code, what is replaced, by what
    'a method': (CALLS.format('x * 2'), 'x * 2', 'x * 3'),
    'a class attribute': (CALLS.format('x') + '    sizes = dict(a=[1])\n', '[1]', '[2]'),
    'a default value': ('class Mine(DecoderWithAttention):\n    def f(self, x, act=F.relu): return act(x)\n', 'relu',
                        'silu'),
    'names of parameters': (CALLS.format('self.f(a=x, b=1)') + '    def f(self, a, b): return a - b\n', '(self, a, b)',
                            '(self, b, a)'),
    'the order of bases': ('class Mine(models.Attention, DecoderWithAttention): pass\n',
                           'models.Attention, DecoderWithAttention', 'DecoderWithAttention, models.Attention'),
    'a constant': ('CFG = dict(heads=[4])\n' + CALLS.format("CFG['heads']"), '[4]', '[5]'),
    'a constant that is changed later': ('CFG = {}\nCFG.update(a=1)\n' + CALLS.format('CFG'), 'a=1', 'a=2'),
    'a constant of a constant': ('ONE = 1\nTWO = ONE + 1\n' + CALLS.format('TWO'), 'ONE = 1', 'ONE = 3'),
    'a constant under if': ('if torch.cuda.is_available():\n    N = 1\nelse:\n    N = 2\n' + CALLS.format('N'), 'N = 2',
                            'N = 3'),
    'a function under try': ('try:\n    import jax as scaled\nexcept ImportError:\n    def scaled(n): return n * 2\n'
                             + CALLS.format('scaled(x)'), '* 2', '* 3'),
    'a class by way of a dict': (f"{LOOK}KINDS = {{'look': Look}}\n" + CALLS.format("KINDS['look']()(x)"), '* 2',
                                 '* 3'),
    'a class as an attribute': (f'{LOOK}class Mine(DecoderWithAttention):\n    kind = Look\n', '* 2', '* 3'),
    'a base class': (f'{LOOK}class Middle(Look): pass\nclass Mine(Middle): pass\n', '* 2', '* 3'),
    'a class in another, and its base': ('class Mine(DecoderWithAttention):\n    class Cell(nn.LSTMCell): pass\n',
                                         'LSTMCell', 'GRUCell'),
    'a class named as one of models.py': (
        LOOK.replace('Look', 'Attention') + CALLS.format('Attention()(models.init_word_layers(x))'), '* 2', '* 3'),
    'a decorated function': ('@contextlib.contextmanager\ndef f(x):\n    yield x * 2\n' + CALLS.format('f(x)'), '* 2',
                             '* 3'),
    'a decorated method': ('class Mine(DecoderWithAttention):\n    @functools.lru_cache\n    def f(self): return 2\n',
                           'return 2', 'return 3'),
    'a decorator': ('def twice(f):\n    return lambda *a: f(*a) * 2\nclass Mine(DecoderWithAttention):\n    @twice\n'
                    '    def f(self): return 1\n', '* 2', '* 3'),
    'a partial function': ('def f(k, x): return x * k\ng = functools.partial(f, 2)\n' + CALLS.format('g(x)'), 'f, 2',
                           'f, 3'),
    'one of two lambdas': ('f, g = lambda x: x * 2, lambda x: x + 1\n' + CALLS.format('f(g(x))'), 'x + 1', 'x + 2'),
    "another library's function": ('from torch import relu as act\n' + CALLS.format('act(x)'), 'relu', 'tanh'),
    'a method put in later': ('def f(self, x): return x * 2\n' + CALLS.format('x') + 'Mine.start = f\n', '* 2', '* 3'),
    'what a factory is given': ('def make(n):\n    class Mine(DecoderWithAttention):\n        size = n\n'
                                '    return Mine\nMine = make(2)\n', 'make(2)', 'make(3)'),
    'a data class': ('@dataclass\nclass C:\n    a: int = 1\n' + CALLS.format('C().a'), 'int = 1', 'int = 2'),
    'a formatted text': (CALLS.format("f'{x} a'"), ' a', ' b')}


@pytest.mark.parametrize('what', CHANGES)
def test_other_code_is_seen(folder, what):
    code, old, new = CHANGES[what]
    assert code.count(old) == 1
    assert digest(folder, code) != digest(folder, code.replace(old, new))


@pytest.mark.parametrize('code', [
    'from given import scaled, unused\n' + CALLS.format('scaled(x)'),
    'from given import scaled\n' + CALLS.format('scaled(x)'), 'import given\n' + CALLS.format('given.scaled(x)'),
    'import given as g\n' + CALLS.format("getattr(g, 'scaled')(x)"),
    'from given import *\n' + CALLS.format('scaled(x)'),
    'class Mine:\n    def f(self, x):\n        from given import scaled\n        return scaled(x)\n',
    'class Mine:\n    def f(self, x):\n        import given\n        return given.scaled(x)\n'])
def test_other_code_in_another_file_is_seen(folder, code):
    before = digest(folder, code)
    (folder / 'given.py').write_text(HELPER.replace('* 2', '* 3'))
    assert code_digest('mine.Mine') != before
    (folder / 'given.py').write_text(HELPER)
    assert code_digest('mine.Mine') == before
    (folder / 'given.py').write_text(HELPER.replace('- 7', '- 8'))
    assert (code_digest('mine.Mine') == before) == ('getattr' not in code)  # which may take anything
    (folder / 'models.py').write_text((FOLDER / 'models.py').read_text().replace('class Encoder', 'class Other'))
    assert (code_digest('mine.Mine') == before) == ('getattr' not in code)


@pytest.mark.parametrize('code', [
    'from parts import scaled\n' + CALLS.format('scaled(x)'),
    'from parts.inner import scaled\n' + CALLS.format('scaled(x)'),
    'from parts import inner\n' + CALLS.format('inner.scaled(x)'),
    'import parts.inner\n' + CALLS.format('parts.inner.scaled(x)'),
    'import parts.inner as p\n' + CALLS.format('p.scaled(x)')])
def test_other_code_in_a_folder_is_seen(folder, code):
    before = digest(folder, code)
    (folder / 'parts/inner.py').write_text(HELPER.replace('* 2', '* 3'))
    assert code_digest('mine.Mine') != before


@pytest.mark.parametrize(('old', 'new'), [
    ('        return x', "        'doc'\n        return x"), ('# first', '# second\n'), ('"""Mine."""', '"""Yours."""'),
    ('x + 1)', 'x\n   + 1)'), ('"""Inner."""', ''), ('return 8', 'return 9'), ('import random', 'import math'),
    ('import random\n', ''), ('UNUSED = HALF + 1', 'UNUSED = HALF + 2'), ('HALF + 3', 'HALF + 4'),
    ("print('loaded')", "print('now')")])
def test_what_does_not_count(folder, old, new):
    code = ('import random\nHALF = 0.5\nUNUSED = HALF + 1\nOTHER: float = HALF + 3\ndef unused(): return 8\n'
            'class Mine(DecoderWithAttention):\n    """Mine."""\n    share = HALF\n'
            '    def start(self, x):  # first\n        return x.unused(x + 1)\n    def f(self):\n'
            '        def g():\n            """Inner."""\n            return 1\n        return g()\n'
            "print('loaded')\n")
    if old == 'return 8':
        code = code.replace('x.unused', 'x.other')  # an attribute, not the function of that name
    assert code.count(old) == 1 and digest(folder, code) == digest(folder, code.replace(old, new))


def test_it_is_of_what_was_loaded(folder, monkeypatch):
    """A file that is edited counts when it is loaded again."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, 'dont_write_bytecode', True)
    before = digest(folder, CALLS.format('x * 2'))
    module = importlib.import_module('mine')
    try:
        own_code.remember_sources()
        assert digest(folder, CALLS.format('x * 33')) == before
        importlib.reload(module)
        after = code_digest('mine.Mine')
        assert after != before
        module.Mine.start = lambda self, x: x
        module.Mine.start.__module__ = '__main__'  # as in a notebook
        assert code_digest('mine.Mine') not in (before, after)
    finally:
        del sys.modules['mine'], own_code.SEEN['mine']


def test_it_is_the_same_in_every_process():
    """Python has sets in another order in each."""
    names = 'extensions.CaptionNet', 'self_critical.SelfCritical', 'models.Encoder'
    found = [subprocess.run([sys.executable, '-c', f'import own_code; print(own_code.code_digest(*{names}))'],
                            cwd=FOLDER, check=True, capture_output=True, text=True,
                            env={**os.environ, 'PYTHONHASHSEED': seed, 'PYTHONPATH': str(FOLDER)}) for seed in '17']
    assert {one.stdout.strip() for one in found} == {code_digest(*names)}


def test_each_decoder_has_its_own(monkeypatch):
    names = ['models.DecoderWithAttention', 'models.DecoderWithRNN', 'extensions.DecoderWithAdaptiveAttention',
             'extensions.DecoderWithSpatialAttention', 'extensions.CaptionNet', 'ensembles.Ensemble', 'models.Encoder']
    before = [code_digest(name) for name in names]
    assert len(set(before)) == len(names) and all(len(one) == 16 for one in before)
    for owner, method in ((models.Attention, 'forward'), (extensions.DecoderWithSpatialAttention, 'look')):
        def other(self, *_):
            return None

        other.__module__ = '__main__'  # as if a notebook had put it there
        monkeypatch.setattr(owner, method, other)
    changed = [old != code_digest(name) for old, name in zip(before, names, strict=True)]
    assert changed == [True, False, True, True, False, False, False]


def test_open_todos(monkeypatch):
    def to_do(*_):
        raise NotImplementedError('TODO 13: Ensemble.step is still to do: follow its steps in ensembles.py')

    assert open_todo(extensions.true_or_own, ensembles.Ensemble.step) is None
    monkeypatch.setattr(ensembles.Ensemble, 'step', torch.no_grad()(to_do))
    assert open_todo(extensions.true_or_own, ensembles.Ensemble.step).startswith('TODO 13: Ensemble.step is')
