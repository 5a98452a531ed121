"""COCO's metrics against published figures, and files that the official tools read."""

import builtins
import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from programs import needs

from lab.decode.cider import CiderD
from lab.decode.coco_metrics import NAMES, coco_scores, image_ids, write_coco_files

REFERENCES = [['a red star and a moon'.split(), 'one star'.split()], ['two blue moons'.split()],
              ['a green square left of a star'.split()] * 3]
CAPTIONS = ['a red star'.split(), 'two red moons'.split(), 'a green square left of a moon'.split()]


@pytest.mark.parametrize('meteor', [False, pytest.param(True, marks=needs('Java'))])
def test_published_figures(shared_data, meteor, monkeypatch):
    pytest.importorskip('pycocoevalcap')
    if not meteor:
        monkeypatch.setattr(shutil, 'which', lambda name: None)
    folder = shared_data / 'metrics'
    expected = json.loads((folder / 'expected.json').read_text())
    captions, first, second = ([line.split() for line in (folder / name).open()]
                               for name in ('hyp.txt', 'ref1.txt', 'ref2.txt'))
    scores = coco_scores([list(pair) for pair in zip(first, second, strict=True)], captions)
    assert list(scores) == [name for name in NAMES if name != 'METEOR' or meteor]
    assert scores == pytest.approx({name: expected[name] for name in scores}, abs=1e-6)


@needs('Java')
def test_wherever_python_lies_and_whatever_white_space_a_word_holds(tmp_path, monkeypatch):
    pytest.importorskip('pycocoevalcap')
    place = tmp_path / 'mein Übungsplatz, 图像 %20'
    shutil.copytree(Path(find_spec('pycocoevalcap').submodule_search_locations[0]) / 'meteor',
                    place / 'pycocoevalcap/meteor')
    monkeypatch.syspath_prepend(place)  # its parts are looked for in every folder of the path
    scores = coco_scores([[['a', 'dog\n', 'runs'], ['one', 'runs']], [['a', '|||', 'cat']]],
                         [['a', ' dog', 'runs\r'], ['\x0ba', '|||', 'cat', '\u3000']])
    assert (scores['METEOR'], scores['ROUGE-L']) == (1, 1)


def test_cider_is_the_cider_of_training(monkeypatch):
    pytest.importorskip('pycocoevalcap')
    monkeypatch.setattr(shutil, 'which', lambda name: None)  # METEOR's Java takes seconds to start
    scores = coco_scores(REFERENCES, CAPTIONS)
    assert scores['CIDEr'] == pytest.approx(CiderD(REFERENCES).score(CAPTIONS))


def test_a_java_that_fails(tmp_path, monkeypatch):
    pytest.importorskip('pycocoevalcap')
    (tmp_path / 'java').write_text('#!/bin/sh\necho Unable to locate a Java Runtime >&2\nexit 1\n')
    (tmp_path / 'java').chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    messages = []
    assert list(coco_scores(REFERENCES, CAPTIONS, log=messages.append)) == ['ROUGE-L', 'CIDEr']
    message, = messages
    assert 'METEOR is left out' in message and 'Unable to locate a Java Runtime' in message


def test_without_java(monkeypatch):
    pytest.importorskip('pycocoevalcap')
    messages = []
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    assert list(coco_scores(REFERENCES, CAPTIONS, log=messages.append)) == ['ROUGE-L', 'CIDEr']
    assert messages == ['METEOR is left out: it needs Java']


def test_without_the_package(monkeypatch):
    messages, real = [], builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith('pycocoevalcap'):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, '__import__', missing)
    assert coco_scores(REFERENCES, CAPTIONS, log=messages.append) == {}
    assert messages == ['METEOR, ROUGE-L and CIDEr are left out: they come with pip install ".[metrics]"']


def test_image_ids():
    assert image_ids(['val2014/COCO_val2014_000000391895.jpg', 'COCO_val2014_000000060623.jpg']) == [391895, 60623]
    assert image_ids(['123_a4.jpg', '77_b4.jpg']) == [0, 1]  # 4 and 4
    assert image_ids(['a.jpg', '3.png']) == [0, 1]
    assert image_ids(['10/a_7', '10/b_8']) == [7, 8]


@pytest.fixture
def official(tmp_path):
    """What the official tools read: references and results."""
    coco = pytest.importorskip('pycocotools.coco')
    captions = [dict(name=f'COCO_val2014_{i + 7:012}.jpg', caption=caption, references=references, score=-1.0)
                for i, (caption, references) in enumerate(zip(CAPTIONS, REFERENCES, strict=True))]
    write_coco_files(tmp_path / 'results.json', captions, tmp_path / 'annotations.json')
    assert sorted(path.name for path in tmp_path.iterdir()) == ['annotations.json', 'results.json']
    truth = coco.COCO(str(tmp_path / 'annotations.json'))
    return truth, truth.loadRes(str(tmp_path / 'results.json'))


def test_the_official_tools_read_the_files(official):
    truth, results = official
    assert len(truth.anns) == sum(map(len, REFERENCES))  # each has a number of its own
    assert results.getImgIds() == [7, 8, 9]
    assert [result['caption'] for result in results.imgToAnns[8]] == ['two red moons']
    assert [reference['caption'] for reference in truth.imgToAnns[7]] == ['a red star and a moon', 'one star']


@needs('Java')
def test_the_official_tokenizer_and_cider_take_them(official):
    cider = pytest.importorskip('pycocoevalcap.cider.cider').Cider()
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
    tokens = [PTBTokenizer().tokenize({i: of.imgToAnns[i] for i in (7, 8, 9)}) for of in official]
    assert cider.compute_score(*tokens)[0] == pytest.approx(CiderD(REFERENCES).score(CAPTIONS))
