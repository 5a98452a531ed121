"""The demo: what it runs and prints; and at full size, what it promises on the embedded data set holds."""

import json
from types import SimpleNamespace

import pytest
from helpers import run_module
from PIL import Image

from instructor import demo
from instructor.assemble import ROOT
from instructor.cut import REFERENCE


def test_it_runs_the_notebooks_then_the_report_and_prints_a_table(tmp_path, monkeypatch, capsys):
    """With --pictures its figures become those of README.md. Nothing is trained: a notebook only leaves these files."""
    ran = []

    def process(command, **_):
        ran.append(command[-1])
        return SimpleNamespace(wait=lambda: 0)

    def notebook(path, _):
        ran.append(path.name)
        assert (path.parent / 'models.py').read_text() == REFERENCE.read_text()
        runs = path.parent / 'runs/shapes'
        (runs / 'figures').mkdir(parents=True, exist_ok=True)
        for name, score in (('NoAttention', 0.25), ('Attention', 0.75)):
            scores = [{'beam_size': 3, 'seconds': 1, 'BLEU-4': score}]
            (runs / f'test_{name}.json').write_text(json.dumps(
                dict(model=name, parameters=1234567, best_epoch=8, scores=scores)))
        for name in ('attention_test1', 'history_Attention'):
            (runs / f'figures/{name}.png').write_text(name)

    (tmp_path / 'docs/images').mkdir(parents=True)
    monkeypatch.setattr(demo, 'ROOT', tmp_path)
    monkeypatch.setattr(demo, 'run_notebook', notebook)
    monkeypatch.setattr(demo, 'subprocess', SimpleNamespace(run=process, Popen=process))
    monkeypatch.setattr('sys.argv', ['demo', f'--build={tmp_path / "build"}', f'--models={REFERENCE}', '--pictures'])
    demo.main()
    assert sorted(ran[:2]) == ['train_attention.ipynb', 'train_rnn.ipynb']
    assert ran[2:] == ['test.ipynb', 'caption.ipynb', 'report/render.py']
    printed = capsys.readouterr().out
    for said in ('0.250', '0.750', '1,234,567', 'build/report/report.html', 'build/runs/shapes/figures'):
        assert said in printed
    pictures = {path.name: path.read_text() for path in (tmp_path / 'docs/images').iterdir()}
    assert pictures == {'attention.png': 'attention_test1', 'history.png': 'history_Attention'}
    assert all(f'docs/images/{name}' in (ROOT / 'README.md').read_text() for name in pictures)


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
