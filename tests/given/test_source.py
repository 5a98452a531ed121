"""The fingerprint of the code: what changes it, what does not, and which files were edited since they were loaded."""

import importlib
import shutil
import subprocess
import sys

import pytest
import torch

from lab.more import decoder, ensembles
from lab.train.checkpoints import find_decoder
from lab.train.source import ROOT, class_source, code_digest, edited, open_todo
from models import Encoder

MINE = 'my_own_decoder'


@pytest.fixture
def mine():
    """A student's file beside models.py."""
    path = ROOT / f'{MINE}.py'
    path.write_text('from models import DecoderWithRNN\n\n\nclass Mine(DecoderWithRNN):\n    """My decoder."""\n')
    yield path
    path.unlink()
    sys.modules.pop(MINE, None)


@pytest.mark.parametrize('name', ['models', 'solver', 'datasets', 'lab.decode.cider'])
def test_other_code_is_another_fingerprint(other_source, name):
    before = code_digest()
    with other_source(name, lambda source: source + b'\nX = 1\n'):
        assert code_digest() != before
    assert code_digest() == before


@pytest.mark.parametrize('change', [
    lambda source: source + b'# a comment\n', lambda source: source.replace(b'\n\n\n', b'\n\n\n\n')])
def test_comments_and_empty_lines_do_not_count(other_source, change):
    before = code_digest()
    with other_source('solver', change):
        assert code_digest() == before


def test_a_training_neither_loads_nor_minds_the_figures(other_source):
    loaded = subprocess.run([sys.executable, '-c', 'import sys, solver; print("matplotlib" in sys.modules)'], cwd=ROOT,
                            capture_output=True, text=True)
    assert loaded.stdout == 'False\n', loaded.stderr
    before = code_digest()
    with other_source('lab.figures.style', lambda source: source + b'\nX = 1\n'):
        assert code_digest() == before


def test_a_decoders_own_file_counts_for_this_decoder_only(mine):
    find_decoder(dict(decoder=f'{MINE}.Mine'))
    others, before = code_digest(), code_digest(f'{MINE}.Mine')
    assert others != before
    mine.write_text(mine.read_text() + '    extra = 1\n')
    importlib.reload(sys.modules[MINE])
    assert code_digest() == others and code_digest(f'{MINE}.Mine') != before


def test_it_is_of_what_was_loaded_not_of_what_was_edited_since(mine):
    find_decoder(dict(decoder=f'{MINE}.Mine'))
    before = code_digest(f'{MINE}.Mine')
    assert edited(f'{MINE}.Mine') == []
    mine.write_text(mine.read_text() + '    # a comment\n')
    assert edited(f'{MINE}.Mine') == []
    for added in ('    extra = 1\n', '    def\n'):
        mine.write_text(mine.read_text() + added)
        assert code_digest(f'{MINE}.Mine') == before and edited(f'{MINE}.Mine') == [mine.name] and edited() == []
    mine.write_text(mine.read_text().replace('    def\n', ''))
    importlib.reload(sys.modules[MINE])
    assert edited(f'{MINE}.Mine') == [] and code_digest(f'{MINE}.Mine') != before


def test_an_edit_before_the_first_training_is_seen(tmp_path):
    """A student imports solver, mends models.py, and only then trains."""
    for name in ('lab', 'weights'):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('models.py', 'datasets.py', 'solver.py', 'utils.py'):
        shutil.copy(ROOT / name, tmp_path)
    script = """
import solver
from lab.train.source import code_digest, edited
print(edited())
with open('models.py', 'a') as file:
    file.write('X = 1')
print(edited(), code_digest())
"""
    run = subprocess.run([sys.executable, '-c', script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split('\n')[:2] == ['[]', f"['models.py'] {code_digest()}"]


def test_it_is_the_same_in_every_process():
    run = subprocess.run([sys.executable, '-c', 'from lab.train.source import code_digest; print(code_digest())'],
                         cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == code_digest()


def test_the_source_of_a_class_has_no_comments_and_no_other_class(other_source):
    before = class_source(Encoder)
    assert before.startswith('class Encoder(nn.Module):') and '#' not in before and 'DecoderWithRNN' not in before
    with other_source('models', lambda source: source + b'\nX = 1\n'):
        assert class_source(Encoder) == before
    with other_source('models', lambda source: source.replace(b'.permute(0, 2, 3, 1)', b'.permute(0, 3, 2, 1)')):
        assert class_source(Encoder) != before


def test_open_todos(monkeypatch):
    def to_do(*_):
        raise NotImplementedError('TODO 13: Ensemble.step is still to do: follow its steps in lab/more/ensembles.py')

    assert open_todo(decoder.true_or_own, ensembles.Ensemble.step) is None
    monkeypatch.setattr(ensembles.Ensemble, 'step', torch.no_grad()(to_do))
    assert open_todo(decoder.true_or_own, ensembles.Ensemble.step).startswith('TODO 13: Ensemble.step is')
