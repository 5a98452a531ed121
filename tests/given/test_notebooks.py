"""Every notebook runs from top to bottom on a tiny data set, in a copy of the assignment."""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from bs4 import BeautifulSoup

from lab.notebooks import run_notebook
from lab.train.source import ROOT

PICTURES = dict(train=12, val=4, test=4)
# many small steps: a decoder that has learned to end its captions is drawn in a fraction of the time
CFG = dict(data_folder='data/shapes', data_name='shapes_5_cap_per_img_5_min_word_freq', encoder='shapes_cnn',
           encoded_image_size=4, device='cpu', embed_dim=16, decoder_dim=16, epochs=4, batch_size=4, decoder_lr=2e-2)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A copy of the assignment, in which the notebooks run one after another, without METEOR's Java, which is slow."""
    folder = tmp_path_factory.mktemp('assignment')
    (folder / 'bin').mkdir()
    (folder / 'bin/java').write_text('#!/bin/sh\nexit 1\n')
    (folder / 'bin/java').chmod(0o755)
    for pattern in ('*.py', '*.ipynb', 'pyproject.toml'):
        for path in ROOT.glob(pattern):
            shutil.copy(path, folder)
    for name in ('lab', 'report', 'weights', 'tests'):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns('__pycache__', '*.html', 'given'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('PATH', str(folder / 'bin'), prepend=os.pathsep)
        yield folder


def run(folder, name, **parameters):
    """:return: what its cells printed, and how many pictures they show"""
    notebook = run_notebook(folder / name, folder / name, **parameters)
    outputs = [output for cell in notebook.cells for output in cell.get('outputs', [])]
    printed = ''.join(o['text'] for o in outputs if o.output_type == 'stream' and o.name == 'stdout')
    return printed, sum('image/png' in o.get('data', {}) for o in outputs)


def figures_of(folder):
    """Names of the figures, each a PNG with its PDF."""
    paths = [path for path in folder.glob('figures/*') if path.stat().st_size > 2000]
    assert {path.stem for path in paths if path.suffix == '.png'} == {
        path.stem for path in paths if path.suffix == '.pdf'}
    return {path.stem for path in paths}


@pytest.mark.parametrize(('name', 'decoder', 'todos'), [
    ('train_rnn', 'NoAttention', 2), ('train_attention', 'Attention', 0)])
def test_training(folder, name, decoder, todos):
    cfg = dict(**CFG, attention=decoder == 'Attention', output_folder='runs/shapes')
    printed, pictures = run(folder, f'{name}.ipynb', pictures=PICTURES, cfg=cfg, check=todos > 0)
    assert printed.count('  done  ') == todos and pictures == 2  # pictures with captions; the learning curves
    assert '%|' not in (folder / f'{name}.ipynb').read_text(encoding='utf-8')  # no progress bars
    runs = folder / 'runs/shapes'
    assert (runs / f'BEST_checkpoint_{decoder}.pth.tar').exists() and f'history_{decoder}' in figures_of(runs)
    assert len(json.loads((runs / f'history_{decoder}.json').read_text())) == 4


def test_test(folder):
    _, pictures = run(folder, 'test.ipynb', beam_sizes=[1, 2])
    runs = folder / 'runs/shapes'
    figures = {name for name in figures_of(runs) if not name.startswith('history')}
    truth = json.loads((runs / 'test_truth.json').read_text())
    assert figures - {'pointing_Attention'} == {'bleu', 'diversity', 'captions_NoAttention', 'captions_Attention'}
    assert ('pointing_Attention' in figures) == bool(truth['Attention']['words'])  # a tiny one may name no shape
    assert pictures == len(figures) and all(0 <= found['named'] <= 1 for found in truth.values())
    result = json.loads((runs / 'test_Attention.json').read_text())
    assert [score['beam_size'] for score in result['scores']] == [1, 2] and len(result['captions']) == 4


def test_caption(folder):
    shutil.copy(folder / 'data/shapes/images/train_00003.png', folder / 'mine.png')
    printed, pictures = run(folder, 'caption.ipynb', pictures=[1, 'mine.png'])
    mine, = set(re.findall('^mine-[0-9a-f]{6}', printed, re.MULTILINE))
    assert pictures == 4  # each with both scales
    runs = folder / 'runs/shapes'
    assert {name for name in figures_of(runs) if name.startswith('attention_')} == {
        f'attention_{name}{scale}' for name in ('test1', mine) for scale in ('', '_one_scale')}
    said = json.loads((runs / f'caption_{mine}.json').read_text())
    assert said['picture'] == 'mine.png' and all(caption in printed for caption in said['captions'].values())


@pytest.mark.slow  # three more kernels; test_figures.py draws what a sentinel decoder looks at
def test_a_decoder_with_a_sentinel(folder):
    name, runs = 'DecoderWithAdaptiveAttention', 'runs/adaptive'
    cfg = {**CFG, 'batch_size': 20, 'decoder_lr': 4e-4, 'decoder': f'lab.more.adaptive.{name}', 'output_folder': runs}
    run(folder, 'train_attention.ipynb', pictures=PICTURES, cfg=cfg, check=False)
    run(folder, 'test.ipynb', run_folder=runs, decoders=[name], beam_sizes=[1])
    _, pictures = run(folder, 'caption.ipynb', run_folder=runs, decoders=[name], pictures=1, scales=['word'])
    figures = {f'attention_test1_{name}', f'looks_{name}', f'history_{name}'}
    assert pictures == 1 and figures <= figures_of(folder / runs)


def test_compare(folder):
    _, pictures = run(folder, 'compare.ipynb', pictures=PICTURES, cfg=CFG, split='TEST', shown=[0, 3], runs={
        'plain LSTM': dict(attention=False), 'CaptionNet': dict(decoder='lab.more.captionnet.CaptionNet'),
        'both': dict(ensemble=['plain LSTM', 'CaptionNet'])})
    assert pictures == 3 and figures_of(folder / 'runs/compare') == {'curves', 'bleu', 'captions'}


def test_report(folder):
    notebook = folder / 'report/report.ipynb'
    text = notebook.read_text(encoding='utf-8')
    for before, after in (("picture = 'test0'", "picture = 'test1'"), ('*Name, student number, date*', 'Ada'),
                          ('improvement = []', "improvement = ['../runs/compare']"),
                          ('"*Your text*"', '"It reads $x_t$"')):
        assert before in text
        text = text.replace(before, after, 1)
    notebook.write_text(text, encoding='utf-8')
    done = subprocess.run([sys.executable, 'report/render.py'], cwd=folder, check=True, text=True,
                          stdout=subprocess.PIPE)
    assert re.search(r'\n- .*: 2\. .*3\. .*4\. .*5\. .*\n$', done.stdout)  # nothing else is open
    page = BeautifulSoup((folder / 'report/report.html').read_text(encoding='utf-8'), 'html.parser')
    assert [head.text[:2] for head in page.find_all('h2')] == ['1.', '2.', '3.', '4.', '5.']
    assert not page.select('.missing') and 'What is graded' not in page.text and page.find('msub').text == 'xt'
    cells = [cell.text for cell in page.find_all('td')]
    said = json.loads((folder / 'runs/shapes/caption_test1.json').read_text())['captions']
    assert {*said.values(), 'CaptionNet', 'both'} <= set(cells)
    sources = [part.get('src') or part.get('href') for part in page.find_all(['img', 'script', 'link'])]
    assert len(sources) >= 6 and all(source.startswith('data:') for source in sources if source)  # self-contained
    assert not re.findall(r'@import|url\(["\']?https?:', str(page))


def test_a_notebook_from_the_command_line(tmp_path):
    """It keeps its outputs, and what it prints is all that comes."""
    path = tmp_path / 'own.ipynb'
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('print(1)')]), path)
    done = subprocess.run([sys.executable, '-m', 'lab.notebooks', path], cwd=ROOT, text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, '1\n', '')
    assert nbformat.read(path, as_version=4).cells[0].outputs[0].text == '1\n'
