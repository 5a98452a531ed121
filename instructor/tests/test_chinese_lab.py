"""What the Chinese lab prints is Chinese, but for names of code and words of the field; and figures of both labs."""

import ast
import os
import re
import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import pytest
from PIL import Image

from instructor import handout, pictures, translate
from instructor.assemble import ROOT
from instructor.cut import REFERENCE
from instructor.mistakes import mistakes

WORDS = {'TODO', 'LSTM', 'LOSS', 'TOP', 'ACCURACY', 'BLEU', 'GREEDY', 'CIDER', 'epoch', 'passed', 'in', 'TRAIN', 'VAL',
         'TEST', 'PDF', 'data', 'val', 'test', 'notebook', 'pip', 'install', 'mplfonts', 'fonts', 'noto', 'cjk',
         'Chrome', 'Chromium', 'Edge'}
MISTAKES = [pytest.param(mistakes([todo])[place], marks=[pytest.mark.slow] * (todo not in (2, 3)))
            for todo, place in ((1, 1), (2, 4), (3, 4), (4, 1), (5, 4))]
WHOLE = """
from create_input_files import create_input_files
from lab.data.shapes import generate_shapes
from lab.decode.evaluate import evaluate
from lab.train.checkpoints import load_models
from solver import train

create_input_files('shapes', generate_shapes('data', 24, 6, 6), 'data', min_word_freq=1, output_folder='data')
train(dict(data_folder='data', data_name='shapes_5_cap_per_img_1_min_word_freq', encoder='shapes_cnn', device='cpu',
           encoded_image_size=4, epochs=2, embed_dim=12, decoder_dim=16, output_folder='runs/shapes'))
evaluate(load_models('runs/shapes', 'Attention')['Attention'], beam_sizes=[1])
"""


@pytest.fixture(scope='module')
def lab(tmp_path_factory):
    """The Chinese handout with its TODOs done."""
    folder, _ = handout.build(tmp_path_factory.mktemp('chinese'), 'zh')
    (folder / 'models.py').write_bytes(REFERENCE.read_bytes())
    return folder


def printed_by(lab, *command):
    return subprocess.run([sys.executable, *command], cwd=lab, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, env=os.environ | dict(NO_COLOR='1', OMP_NUM_THREADS='1')).stdout


def english_in(printed):
    """Words, but for those in names: of functions, layers, tensors, tests and files."""
    assert re.search('[\u4e00-\u9fff]', printed)
    nodes = ast.walk(ast.parse(REFERENCE.read_text(encoding='utf-8')))
    names = {name for node in nodes for kind in ('id', 'arg', 'attr', 'name') if (name := getattr(node, kind, None))}
    return {*re.findall('[A-Za-z]{2,}', re.sub(r'`[^`]*`|[\w.]*[_./=(][\w./=)-]*', ' ', printed))} - names - WORDS


@pytest.mark.parametrize('mistake', MISTAKES, ids=lambda mistake: mistake.name)
def test_checks(lab, mistake):
    (lab / 'models.py').write_text(mistake.source(), encoding='utf-8')
    command = ['-m', 'pytest', '-q', '-p', 'no:cacheprovider', f'tests/test_todo{mistake.todo}.py']
    try:
        printed = printed_by(lab, *command)
        about = translate.chinese(f'instructor/mistakes/todo{mistake.todo}.toml')[mistake.about]
        assert english_in(printed) == set() and re.search(rf'^TODO {mistake.todo}  有错误', printed, re.M)
        assert ''.join(printed.split()).count(''.join(about.split())) == 1
    finally:
        (lab / 'models.py').write_bytes(REFERENCE.read_bytes())


@pytest.fixture(scope='module')
def of_training(lab):
    """The English words of a training and a test, which leave their files."""
    return english_in(printed_by(lab, '-c', WHOLE))


def test_training_and_report(lab, of_training):
    assert of_training == set() == english_in(printed_by(lab, 'report/render.py'))


def test_the_pages_figures_come_from_trained_models(lab, of_training, monkeypatch):
    monkeypatch.setattr(pictures, 'DEMO', lab)
    drawn = {path.name: path for path in pictures.draw('en')}
    pages = ''.join((ROOT / page).read_text(encoding='utf-8') for page in ('README.md', 'docs/photos.md'))
    assert {*drawn} == {*re.findall(r'images/(\w+\.png)', pages)}
    for path in drawn.values():
        with Image.open(path) as figure:
            assert min(figure.size) > 200 and figure.convert('L').getextrema()[0] < 128  # something is drawn


def test_labels_of_figures(tmp_path, monkeypatch):
    """Words of captions stay, and whatever has no label there, such as one of your own."""
    with matplotlib.rc_context():
        from instructor.zh import labels
    known = {'beam size': 'k', '{word}\np {}, peak {}': '{word}\nP {}; {}', 'people': 'P', 'plain LSTM': 'L'}
    monkeypatch.setattr(labels, 'IN_CHINESE', {labels.pattern_of(english): other for english, other in known.items()})
    figure, axes = plt.subplots()
    axes.set(title='two people\np 0.5, peak 3%', xlabel='beam\nsize', ylabel='my beam size')
    axes.set_xticks([0, 1], ['people', 'dogs'])
    axes.barh(['plain LSTM', 'mine'], [1, 1])
    labels.draw_in_chinese(figure)
    figure.savefig(tmp_path / 'figure.png')
    assert [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()] == ['two people\nP 0.5; 3%', 'k', 'my beam size']
    assert [text.get_text() for text in axes.get_xticklabels()] == ['people', 'dogs']
    assert [text.get_text() for text in axes.get_yticklabels()] == ['L', 'mine']
