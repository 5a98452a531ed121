"""The whole demo, at full size: what it promises on the embedded data set holds."""

import json
import subprocess
import sys

import pytest
from PIL import Image

from instructor.assemble import ROOT

FIGURES = ['history_NoAttention', 'history_Attention', 'bleu', 'captions_good_NoAttention', 'captions_bad_NoAttention',
           'captions_good_Attention', 'captions_bad_Attention', 'attention_test0', 'attention_test1', 'attention_test2']


@pytest.fixture(scope='module')
def demo(tmp_path_factory):
    """:return: the build folder and all that the demo printed"""
    build = tmp_path_factory.mktemp('demo') / 'build'
    done = subprocess.run([sys.executable, '-m', 'instructor.demo', '--build', str(build)], cwd=ROOT,
                          stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    assert done.returncode == 0
    return build, done.stdout


def test_attention_captions_are_right_and_look_at_what_they_name(demo):
    build, _ = demo
    scores = json.loads((build / 'runs/shapes/test_Attention.json').read_text())['scores']
    truth = json.loads((build / 'runs/shapes/test_truth.json').read_text())['Attention']
    assert next(score['BLEU-4'] for score in scores if score['beam_size'] == 3) >= 0.70
    assert truth['images'] == 150
    assert truth['named'] >= 0.85
    assert truth['pointing'] >= 0.70
    assert truth['chance'] < 0.20


def test_demo_ends_with_a_table_and_the_places(demo):
    build, printed = demo
    table = printed[printed.index('decoder '):].splitlines()
    assert [line.split()[0] for line in table[1:9]] == ['NoAttention'] * 4 + ['Attention'] * 4
    result = json.loads((build / 'runs/shapes/test_NoAttention.json').read_text())
    first = table[1].split()
    assert first[1] == f"{result['parameters']:,}" and f"{result['scores'][0]['BLEU-1']:.3f}" in first
    assert str(build / 'report' / 'report.html') in printed and (build / 'report' / 'report.html').exists()
    assert str(build / 'runs' / 'shapes' / 'figures') in printed


@pytest.mark.parametrize('name', FIGURES)
def test_figures_are_there(demo, name):
    with Image.open(demo[0] / 'runs' / 'shapes' / 'figures' / f'{name}.png') as figure:
        assert min(figure.size) > 200
        assert figure.convert('L').getextrema()[0] < 128  # something is drawn
