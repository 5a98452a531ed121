"""The field's metrics against published figures, and files that the official tools read."""

import builtins
import json
import shutil
from pathlib import Path
from urllib.error import URLError

import pytest

import coco_metrics
from cider import CiderD
from coco_metrics import NAMES, coco_scores, image_ids, write_coco_files

REFERENCES = [['a red star and a moon'.split(), 'one star'.split()], ['two blue moons'.split()],
              ['a green square left of a star'.split()] * 3]
CAPTIONS = ['a red star'.split(), 'two red moons'.split(), 'a green square left of a moon'.split()]


def test_published_figures(shared_data):
    pytest.importorskip('pycocoevalcap')
    folder = shared_data / 'metrics'
    expected = json.loads((folder / 'expected.json').read_text())
    captions, first, second = ([line.split() for line in (folder / name).open()]
                               for name in ('hyp.txt', 'ref1.txt', 'ref2.txt'))
    scores = coco_scores([list(pair) for pair in zip(first, second, strict=True)], captions)
    names = [name for name in NAMES if name in expected and (name != 'METEOR' or shutil.which('java'))]
    assert {'BLEU-4', 'ROUGE-L', 'CIDEr'} <= set(names)
    assert [name for name in scores if name != 'SPICE'] == names
    for name in names:
        assert scores[name] == pytest.approx(expected[name], abs=1e-6), name


def test_cider_is_the_cider_of_training():
    pytest.importorskip('pycocoevalcap')
    scores = coco_scores(REFERENCES, CAPTIONS)
    assert scores['CIDEr'] == pytest.approx(CiderD(REFERENCES).score(CAPTIONS))


def test_what_cannot_be_had_is_said(monkeypatch):
    pytest.importorskip('pycocoevalcap')
    said = []
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    scores = coco_scores(REFERENCES, CAPTIONS, spice=True, say=said.append)
    assert list(scores) == ['BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4', 'ROUGE-L', 'CIDEr']
    assert said == [f'{name} is left out: it runs in Java, which is not here' for name in ('METEOR', 'SPICE')]


@pytest.mark.parametrize('offline', [False, True])
def test_spice(monkeypatch, offline):
    """All but its jar, whose parser is a download of 400 MB: what it is given, and what becomes of its answer."""
    spice = pytest.importorskip('pycocoevalcap.spice.spice')
    asked, said, of_images = [], [], [0.5, 0.1, 0.3]

    def download():
        if offline:
            raise URLError('no internet')

    def java(command, cwd):
        asked.extend(json.loads(Path(command[4]).read_text()))
        answer = [dict(image_id=one['image_id'], scores=dict(All=dict(f=f)))
                  for one, f in zip(asked, of_images, strict=True)]
        Path(command[command.index('-out') + 1]).write_text(json.dumps(answer))

    monkeypatch.setattr(spice, 'get_stanford_models', download)
    monkeypatch.setattr(spice.subprocess, 'check_call', java)
    monkeypatch.setattr(shutil, 'which', lambda name: name)
    monkeypatch.setattr(coco_metrics, '_meteor', lambda *_: 0.0)
    scores = coco_scores(REFERENCES, CAPTIONS, spice=True, say=said.append)
    if offline:
        assert 'SPICE' not in scores and 'SPICE is left out: URLError: <urlopen error no internet>' in said
        return
    assert scores['SPICE'] == pytest.approx(0.3) and list(scores)[-1] == 'SPICE'
    assert [(one['test'], one['refs']) for one in asked] == [
        (' '.join(caption), [' '.join(words) for words in those])
        for caption, those in zip(CAPTIONS, REFERENCES, strict=True)]


def test_without_the_package(monkeypatch):
    said, real = [], builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith('pycocoevalcap'):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, '__import__', missing)
    assert coco_scores(REFERENCES, CAPTIONS, say=said.append) == {}
    assert said == ['METEOR, ROUGE-L, CIDEr and SPICE are left out: they come with pip install ".[metrics]"']


def test_one_caption_per_image():
    with pytest.raises(ValueError, match='2 captions for 3 images'):
        coco_scores(REFERENCES, CAPTIONS[:2])


def test_image_ids():
    assert image_ids(['val2014/COCO_val2014_000000391895.jpg', 'COCO_val2014_000000060623.jpg']) == [391895, 60623]
    assert image_ids(['123_a4.jpg', '77_b4.jpg']) == [0, 1]  # 4 and 4
    assert image_ids(['a.jpg', '3.png']) == [0, 1]


def test_the_official_tools_read_the_files(tmp_path):
    coco = pytest.importorskip('pycocotools.coco')
    captions = [dict(name=f'COCO_val2014_{i + 7:012}.jpg', caption=caption, references=references, score=-1.0)
                for i, (caption, references) in enumerate(zip(CAPTIONS, REFERENCES, strict=True))]
    write_coco_files(tmp_path / 'results.json', captions, tmp_path / 'annotations.json')
    assert sorted(path.name for path in tmp_path.iterdir()) == ['annotations.json', 'results.json']
    truth = coco.COCO(str(tmp_path / 'annotations.json'))
    results = truth.loadRes(str(tmp_path / 'results.json'))
    assert results.getImgIds() == [7, 8, 9]
    assert [found['caption'] for found in results.imgToAnns[8]] == ['two red moons']
    assert [found['caption'] for found in truth.imgToAnns[7]] == ['a red star and a moon', 'one star']
    if shutil.which('java'):
        evaluation = pytest.importorskip('pycocoevalcap.eval').COCOEvalCap(truth, results)
        evaluation.evaluate = None  # it would run SPICE; its tokenizer and CIDEr are enough here
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
        tokens = [PTBTokenizer().tokenize({i: of.imgToAnns[i] for i in (7, 8, 9)}) for of in (truth, results)]
        assert Cider().compute_score(*tokens)[0] == pytest.approx(CiderD(REFERENCES).score(CAPTIONS))
