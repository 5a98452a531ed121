"""COCO's metrics against published figures."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from programs import needs

from lab.decode.coco_metrics import coco_scores

REFERENCES = [['a red star and a moon'.split(), 'one star'.split()], ['two blue moons'.split()],
              ['a green square left of a star'.split()] * 3]
CAPTIONS = ['a red star'.split(), 'two red moons'.split(), 'a green square left of a moon'.split()]


@pytest.mark.parametrize('meteor', [False, pytest.param(True, marks=needs('Java'))])
def test_published_figures(published, meteor, tmp_path, monkeypatch):
    """METEOR wherever Python lies, and whatever white space a word holds."""
    pytest.importorskip('pycocoevalcap')
    references, captions, expected = published
    if meteor:
        place = tmp_path / 'mein Übungsplatz, 图像 %20'
        shutil.copytree(Path(find_spec('pycocoevalcap').submodule_search_locations[0]) / 'meteor',
                        place / 'pycocoevalcap/meteor')
        monkeypatch.syspath_prepend(place)  # its parts are looked for in every folder of the path
        captions = [['\x0b' + words[0], *(f' {word}\r' for word in words[1:]), '\u3000'] for words in captions]
    else:
        monkeypatch.setenv('PATH', '')
    scores = coco_scores(references, captions)
    assert set(scores) == ({'ROUGE-L', 'METEOR'} if meteor else {'ROUGE-L'})
    assert scores == pytest.approx({name: expected[name] for name in scores}, abs=1e-6)


def test_without_pycocoevalcap_all_are_left_out_with_a_message(monkeypatch):
    monkeypatch.setitem(sys.modules, 'pycocoevalcap.rouge.rouge', None)
    messages = []
    assert coco_scores(REFERENCES, CAPTIONS, log=messages.append) == {} and '.[metrics]' in messages[0]


def test_meteor_is_left_out_with_what_a_java_says_that_fails(tmp_path, monkeypatch):
    pytest.importorskip('pycocoevalcap')
    (tmp_path / 'java').write_text('#!/bin/sh\necho Unable to locate a Java Runtime >&2\nexit 1\n')
    (tmp_path / 'java').chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    messages = []
    scores = coco_scores(REFERENCES, CAPTIONS, log=messages.append)
    assert 'METEOR' in messages[0] and 'Unable to locate a Java Runtime' in messages[0]
    assert list(scores) == ['ROUGE-L']


def test_chinese_has_no_meteor():
    pytest.importorskip('pycocoevalcap')
    caption, messages = ['一个', '红色', '的', '圆形'], []
    scores = coco_scores([[caption]] * 2, [caption[:3]] * 2, log=messages.append)
    assert list(scores) == ['ROUGE-L'] and 'METEOR' in messages[0]
