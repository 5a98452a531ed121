"""The demo at full size: what it promises on the embedded data set holds."""

import json

import pytest
from helpers import run_module
from PIL import Image


@pytest.mark.slow
def test_at_full_size(tmp_path):
    """Captions are right, attention looks at what they name, and all figures are there."""
    printed = run_module('instructor.demo', '--build', tmp_path / 'build')
    runs = tmp_path / 'build/runs/shapes'
    scores = json.loads((runs / 'test_Attention.json').read_text())['scores']
    assert next(score['BLEU-4'] for score in scores if score['beam_size'] == 3) >= 0.70
    assert f"{scores[0]['BLEU-1']:.3f}" in printed and (tmp_path / 'build/report/report.html').exists()
    truth = json.loads((runs / 'test_truth.json').read_text())['Attention']
    assert truth['images'] == 150 and truth['named'] >= 0.85
    assert truth['pointing'] >= 0.70 and truth['chance'] < 0.20
    for name in ('history_NoAttention', 'history_Attention', 'bleu', 'captions_NoAttention', 'captions_Attention',
                 'pointing_Attention', 'attention_test0', 'attention_test1', 'attention_test2',
                 'attention_test0_one_scale'):
        with Image.open(runs / f'figures/{name}.png') as figure:
            assert min(figure.size) > 200 and figure.convert('L').getextrema()[0] < 128  # something is drawn
