"""The demo: what it runs and prints; and at full size, what it promises on the embedded data set holds."""

import json
import subprocess
import sys

import nbformat
import pytest
from papermill.exceptions import PapermillExecutionError
from PIL import Image

from instructor import demo as module
from instructor.assemble import ROOT

FIGURES = ['history_NoAttention', 'history_Attention', 'bleu', 'captions_NoAttention', 'captions_Attention',
           'pointing_Attention', 'attention_test0', 'attention_test1', 'attention_test2', 'attention_test0_one_scale']


def started(monkeypatch, build, run_notebook, *options):
    """The demo with another in the place of ``run_notebook`` (test_notebooks.py of the lab runs the notebooks).

    :return: notebooks and programs in the order in which they were run
    """
    ran = []
    monkeypatch.setattr(module, 'run_notebook', lambda path, output: (
        ran.append(path.name), run_notebook(path.parent, nbformat.read(output, as_version=4)))[0])
    monkeypatch.setattr(module.subprocess, 'run', lambda command, cwd, check: ran.append((command[1], cwd, check)))
    monkeypatch.setattr(sys, 'argv', ['demo', '--build', str(build), *options])
    module.main()
    return ran


def test_it_runs_the_notebooks_then_the_report_and_prints_a_table(tmp_path, monkeypatch, capsys):
    build = tmp_path / 'build'
    scores = [{'beam_size': size, 'seconds': size / 4, **{f'BLEU-{n}': size / 10 + n / 100 for n in (1, 2, 3, 4)}}
              for size in (1, 3, 5)]

    def notebook(folder, _):
        assert (folder / 'models.py').read_text() == (ROOT / 'instructor/models.py').read_text()
        (folder / 'runs/shapes').mkdir(parents=True, exist_ok=True)
        for name, parameters in (('NoAttention', 1234567), ('Attention', 7654)):
            (folder / f'runs/shapes/test_{name}.json').write_text(json.dumps(dict(
                parameters=parameters, best_epoch=8, epochs=10, scores=scores, train_seconds=61.4)))

    ran = started(monkeypatch, build, notebook)
    assert ran == [*module.NOTEBOOKS, ('report/render.py', build, True)]
    assert set(module.NOTEBOOKS) == {f'{name}.ipynb' for name in ('train_rnn', 'train_attention', 'test', 'caption')}
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed[printed.index('decoder '):].splitlines()[:9]]
    assert rows[1] == ['NoAttention', '1,234,567', '8', 'of', '10', '1', '0.110', '0.120', '0.130', '0.140', '0.2']
    assert rows[4] == ['NoAttention', 'training', '61']
    assert rows[7] == ['Attention', '7,654', '8', 'of', '10', '5', '0.510', '0.520', '0.530', '0.540', '1.2']
    assert str(build / 'report' / 'report.html') in printed and str(build / 'runs' / 'shapes' / 'figures') in printed


def test_its_figures_become_those_of_the_readme(tmp_path, monkeypatch):
    def notebook(folder, _):
        (folder / 'runs/shapes/figures').mkdir(parents=True, exist_ok=True)
        for name in ('attention_test1', 'history_Attention'):
            (folder / f'runs/shapes/figures/{name}.png').write_text(name)

    (tmp_path / 'docs/images').mkdir(parents=True)
    monkeypatch.setattr(module, 'ROOT', tmp_path)
    monkeypatch.setattr(module, 'print_results', lambda run_folder: None)
    started(monkeypatch, tmp_path / 'build', notebook, '--models', str(ROOT / 'instructor/models.py'), '--pictures')
    pictures = {path.name: path.read_text() for path in (tmp_path / 'docs/images').iterdir()}
    assert pictures == {'attention.png': 'attention_test1', 'history.png': 'history_Attention'}
    assert all(f'docs/images/{name}' in (ROOT / 'README.md').read_text() for name in pictures)


def test_a_notebook_that_stops_is_said_in_a_sentence(tmp_path, monkeypatch):
    def stops(*_):
        raise PapermillExecutionError(1, 1, 'cell', 'ValueError', 'no such picture', [])

    with pytest.raises(SystemExit, match='error: train_rnn.ipynb stopped: ValueError: no such picture'):
        started(monkeypatch, tmp_path / 'build', stops)
    (tmp_path / 'mine.txt').write_text('mine')
    with pytest.raises(SystemExit, match='error: .* holds files of yours'):
        started(monkeypatch, tmp_path, stops)


@pytest.fixture(scope='module')
def demo(tmp_path_factory):
    """:return: the build folder and all that the demo printed"""
    build = tmp_path_factory.mktemp('demo') / 'build'
    done = subprocess.run([sys.executable, '-m', 'instructor.demo', '--build', str(build)], cwd=ROOT,
                          stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    assert done.returncode == 0
    return build, done.stdout


@pytest.mark.slow
def test_attention_captions_are_right_and_look_at_what_they_name(demo):
    build, _ = demo
    scores = json.loads((build / 'runs/shapes/test_Attention.json').read_text())['scores']
    truth = json.loads((build / 'runs/shapes/test_truth.json').read_text())['Attention']
    assert next(score['BLEU-4'] for score in scores if score['beam_size'] == 3) >= 0.70
    assert truth['images'] == 150
    assert truth['named'] >= 0.85
    assert truth['pointing'] >= 0.70
    assert truth['chance'] < 0.20


@pytest.mark.slow
def test_demo_ends_with_a_table_and_the_places(demo):
    build, printed = demo
    table = printed[printed.index('decoder '):].splitlines()
    assert [line.split()[0] for line in table[1:9]] == ['NoAttention'] * 4 + ['Attention'] * 4
    result = json.loads((build / 'runs/shapes/test_NoAttention.json').read_text())
    first = table[1].split()
    assert first[1] == f"{result['parameters']:,}" and f"{result['scores'][0]['BLEU-1']:.3f}" in first
    assert str(build / 'report' / 'report.html') in printed and (build / 'report' / 'report.html').exists()
    assert str(build / 'runs' / 'shapes' / 'figures') in printed


@pytest.mark.slow
@pytest.mark.parametrize('name', FIGURES)
def test_figures_are_there(demo, name):
    with Image.open(demo[0] / 'runs' / 'shapes' / 'figures' / f'{name}.png') as figure:
        assert min(figure.size) > 200
        assert figure.convert('L').getextrema()[0] < 128  # something is drawn
