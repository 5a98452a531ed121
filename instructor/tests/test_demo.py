"""The demo: what it runs and prints; and at full size, what it promises on the embedded data set holds."""

import json
from types import SimpleNamespace

import pytest
from helpers import run_module
from papermill.exceptions import PapermillExecutionError
from PIL import Image

from instructor import demo as module
from instructor.assemble import ROOT


@pytest.fixture
def start(tmp_path, monkeypatch):
    """``start(run_notebook, option, ...)``: the demo with another in the place of ``run_notebook``; the processes that
    train and render the report do nothing but end with this code. It returns what was run."""
    def started(run_notebook, *options, code=0):
        ran = []

        def process(command, cwd, **_):
            ran.append(command[-1])
            return SimpleNamespace(wait=lambda: code)

        monkeypatch.setattr(module, 'run_notebook', lambda path, _: (ran.append(path.name), run_notebook(path.parent)))
        monkeypatch.setattr(module, 'subprocess', SimpleNamespace(run=process, Popen=process))
        monkeypatch.setattr('sys.argv', ['demo', '--build', str(tmp_path / 'build'), *options])
        module.main()
        return ran
    return started


def leave_runs(folder):
    """What the notebooks leave, as far as the demo needs it."""
    assert (folder / 'models.py').read_text() == (ROOT / 'instructor/models.py').read_text()
    (folder / 'runs/shapes/figures').mkdir(parents=True, exist_ok=True)
    for name, score in (('NoAttention', 0.25), ('Attention', 0.75)):
        (folder / f'runs/shapes/test_{name}.json').write_text(json.dumps(dict(
            model=name, parameters=1234567, best_epoch=8, scores=[{'beam_size': 3, 'seconds': 1, 'BLEU-4': score}])))
    for name in ('attention_test1', 'history_Attention'):
        (folder / f'runs/shapes/figures/{name}.png').write_text(name)


def test_it_runs_the_notebooks_then_the_report_and_prints_a_table(tmp_path, monkeypatch, capsys, start):
    """With --pictures its figures become those of README.md."""
    (tmp_path / 'docs/images').mkdir(parents=True)
    monkeypatch.setattr(module, 'ROOT', tmp_path)
    ran = start(leave_runs, '--models', str(ROOT / 'instructor/models.py'), '--pictures')
    assert sorted(ran[:2]) == ['train_attention.ipynb', 'train_rnn.ipynb']
    assert ran[2:] == ['test.ipynb', 'caption.ipynb', 'report/render.py']
    printed = capsys.readouterr().out
    for said in ('0.250', '0.750', '1,234,567', 'build/report/report.html', 'build/runs/shapes/figures'):
        assert said in printed
    pictures = {path.name: path.read_text() for path in (tmp_path / 'docs/images').iterdir()}
    assert pictures == {'attention.png': 'attention_test1', 'history.png': 'history_Attention'}
    assert all(f'docs/images/{name}' in (ROOT / 'README.md').read_text() for name in pictures)


def test_a_notebook_that_stops_is_said_in_a_sentence(tmp_path, start):
    def stops(*_):
        raise PapermillExecutionError(1, 1, 'cell', 'ValueError', 'no such picture', [])

    with pytest.raises(SystemExit, match='test.ipynb.*ValueError: no such picture'):
        start(stops)
    with pytest.raises(SystemExit, match='training'):
        start(stops, code=1)
    (tmp_path / 'mine.txt').write_text('mine')
    with pytest.raises(SystemExit, match='files of yours'):
        start(stops, '--build', str(tmp_path))


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
