"""The fingerprint of the code: what changes it, what does not, and which files were edited since they were loaded."""

import json
import re
import subprocess
import sys
from functools import partial
from unittest import mock

import pytest
from test_papers import DECODERS, every_decoder
from torch import nn

from lab.train.model import find_decoder
from lab.train.source import ROOT, code_digest, edited, function_digest, modules_of

MINE = 'my_own_decoder'
OWN = dict(decoder=f'{MINE}.Mine')


@pytest.fixture
def mine():
    """A student's file beside models.py."""
    path = ROOT / f'{MINE}.py'
    path.write_text('from models import DecoderWithRNN\n\n\nclass Mine(DecoderWithRNN):\n    """My decoder."""\n')
    find_decoder(OWN)
    yield path
    path.unlink()
    sys.modules.pop(MINE, None)


def more_code(source):
    return source + b'\nX = 1\n'


def reworded(source):
    return re.sub(rb'"""(?=\w)', b'"""In other words: ', source).replace(b'\n\n\n', b'\n\n\n\n') + b'# a comment\n'


@pytest.mark.parametrize(('name', 'training', 'test'), [
    *[(name, True, True) for name in ('models', 'datasets', 'solver', 'utils', 'lab.decode.greedy_search',
                                      'lab.decode.cider', 'lab.train.batches', 'lab.train.fast', 'lab.data.encoders')],
    *[(name, False, True) for name in ('lab.decode.beam_search', 'lab.decode.evaluate', 'lab.decode.metrics',
                                       'lab.decode.coco_metrics', 'lab.more.ensembles')],
    *[(name, False, False) for name in ('lab.experiments.compare', 'lab.data.download', 'lab.data.shapes',
                                        'lab.figures.style', 'lab.more.adaptive', 'lab.more.self_critical')]])
def test_code_counts_for_what_it_changes(other_source, name, training, test):
    before = code_digest({}), code_digest({}, tests=True)
    with other_source(name, more_code):
        assert (code_digest({}) != before[0], code_digest({}, tests=True) != before[1]) == (training, test)
    with other_source(name, reworded):  # comments and docstrings do not count
        assert (code_digest({}), code_digest({}, tests=True)) == before


def test_functions_of_ones_own():
    """A docstring does not count, the arguments of a partial do, and the functions of the file that are called."""
    def loss(gamma):
        return gamma

    plain = loss

    def loss(gamma):  # noqa: F811
        """Mine."""
        return gamma  # as it is

    digests = [function_digest(partial(one, gamma=gamma)) for one in (plain, loss) for gamma in (1, 2)]
    assert digests[:2] == digests[2:] and digests[0] != digests[1]
    relu, gelu = (function_digest(module).split()[1] for module in (nn.ReLU(), nn.GELU()))
    assert relu != gelu  # of a module the code of its class
    helped = partial(lambda source: reworded(source), b'')
    before = function_digest(helped)
    with mock.patch(f'{__name__}.reworded', more_code):
        assert function_digest(helped) != before


def test_an_edit_after_the_import_changes_nothing_and_is_named(tmp_path):
    """A student imports solver, mends models.py, and only then trains. In this other process the fingerprint is the
    same; and of the lab a training loads what counts, and else only what it does not run."""
    script = """
import json, sys
from pathlib import Path
import solver
from lab.train.source import code_digest, edited
read = Path.read_bytes
Path.read_bytes = lambda path: read(path) + b'X = 1' if path.name == 'models.py' else read(path)
print(json.dumps([code_digest({}), edited({}), [*sys.modules]]))
"""
    run = subprocess.run([sys.executable, '-c', script], cwd=ROOT, capture_output=True, text=True, check=True)
    digest, files, loaded = json.loads(run.stdout)
    assert digest == code_digest({}) and files == ['models.py'] and 'matplotlib' not in loaded
    of_the_lab = {name for name in loaded if re.fullmatch(r'lab\.\w+\.\w+', name)}
    assert of_the_lab - set(modules_of({})) <= {
        'lab.data.box', 'lab.data.images', 'lab.decode.metrics', 'lab.more.self_critical', 'lab.more.word_vectors'}


def test_a_decoders_own_file_counts_for_this_decoder_only(mine):
    others, before = code_digest({}), code_digest(OWN)
    assert others != before and edited(OWN) == []
    for added in ('    extra = 1\n', '    def\n'):  # it is the code that was loaded, not what was edited since
        mine.write_text(mine.read_text() + added)
        assert code_digest(OWN) == before and edited(OWN) == [mine.name] and edited({}) == []


@every_decoder
def test_what_a_decoder_is_built_on_counts(name):
    cfg = dict(decoder=DECODERS[name][0])
    used = {getattr(value, '__module__', None) for value in vars(sys.modules[find_decoder(cfg).__module__]).values()}
    assert {module for module in used if (module or '').startswith('lab.')} <= set(modules_of(cfg))
