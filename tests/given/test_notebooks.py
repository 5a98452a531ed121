"""Every notebook runs from top to bottom on a tiny data set, in a copy of the assignment."""

import base64
import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from lab.notebooks import run_notebook

ROOT = Path(__file__).resolve().parents[2]
PICTURES = dict(train=12, val=4, test=4)
# many small steps: a decoder that has learned to end its captions is drawn in a fraction of the time
SIZES = dict(embed_dim=8, decoder_dim=8, epochs=1, batch_size=2, decoder_lr=5e-2)


def training_cfg(attention):
    return dict(attention=attention, data_folder='data/shapes', data_name='shapes_5_cap_per_img_5_min_word_freq',
                encoder='shapes_cnn', encoded_image_size=4, output_folder='runs/shapes', device='cpu', **SIZES)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A copy of the assignment, in which the notebooks run one after another, without the Java of METEOR.

    It would take longer to start than everything else; test_coco_metrics.py has it.
    """
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
    """:return: the executed notebook and all that its cells printed"""
    notebook = run_notebook(folder / name, folder / name, **parameters)
    outputs = [output for cell in notebook.cells for output in cell.get('outputs', [])]
    printed = ''.join(o['text'] for o in outputs if o.output_type == 'stream' and o.name == 'stdout')
    pictures = sum('image/png' in o.get('data', {}) for o in outputs)
    return printed, pictures


@pytest.mark.parametrize(('name', 'decoder'), [('train_rnn', 'NoAttention'), ('train_attention', 'Attention')])
def test_training(folder, name, decoder):
    printed, pictures = run(folder, f'{name}.ipynb', pictures=PICTURES, cfg=training_cfg(decoder == 'Attention'))
    assert ' * LOSS - ' in printed and 'GREEDY BLEU-4 - ' in printed
    assert printed.count('  done  ') == (3 if decoder == 'Attention' else 2)  # the TODOs were checked
    assert pictures == 2  # three pictures with captions; the learning curves
    assert '%|' not in (folder / f'{name}.ipynb').read_text(encoding='utf-8')  # no progress bars
    runs = folder / 'runs' / 'shapes'
    assert (runs / f'BEST_checkpoint_{decoder}.pth.tar').exists()
    assert (runs / f'checkpoint_shapes_5_cap_per_img_5_min_word_freq_{decoder}.pth.tar').exists()
    assert len(json.loads((runs / f'history_{decoder}.json').read_text())) == 1
    assert (runs / 'figures' / f'history_{decoder}.png').stat().st_size > 10_000


def test_test(folder):
    printed, pictures = run(folder, 'test.ipynb', beam_sizes=[1, 2])
    assert 'plain LSTM: every object right in ' in printed
    assert '\nsoft attention: every object right in ' in printed
    figures = {path.stem for path in (folder / 'runs/shapes/figures').glob('*.png')}
    assert figures >= {'bleu', 'captions_NoAttention', 'captions_Attention'}
    truth = json.loads((folder / 'runs/shapes/test_truth.json').read_text())['Attention']
    assert ('pointing_Attention' in figures) == bool(truth['words'])  # a tiny training may name no shape
    assert pictures == len([name for name in figures if not name.startswith('history')])
    result = json.loads((folder / 'runs/shapes/test_Attention.json').read_text())
    assert [score['beam_size'] for score in result['scores']] == [1, 2] and len(result['captions']) == 4


def test_caption(folder):
    shutil.copy(folder / 'data/shapes/images/train_00003.png', folder / 'mine.png')
    printed, pictures = run(folder, 'caption.ipynb', pictures=[1, 'mine.png'])
    assert printed.count('log-probability') == 4
    assert pictures == 4  # each with both scales
    mine, = set(re.findall('^mine-[0-9a-f]{6}', printed, re.MULTILINE))
    runs = folder / 'runs/shapes'
    assert {path.name for path in (runs / 'figures').glob('*') if re.match('attention_|spoken_', path.name)} == {
        *(f'attention_{picture}{scale}.{kind}' for picture in ('test1', mine) for scale in ('', '_one_scale')
          for kind in ('png', 'pdf')), 'spoken_test1.gif', f'spoken_{mine}.gif'}
    said = json.loads((runs / f'caption_{mine}.json').read_text())
    assert said['picture'] == 'mine.png' and all(caption in printed for caption in said['captions'].values())


@pytest.mark.slow  # three more kernels; test_figures.py draws what a sentinel decoder looks at
def test_a_decoder_with_a_sentinel(folder):
    cfg = {**training_cfg(True), 'batch_size': 20, 'decoder_lr': 4e-4,
           'decoder': 'lab.more.adaptive.DecoderWithAdaptiveAttention',
           'output_folder': 'runs/adaptive'}
    run(folder, 'train_attention.ipynb', pictures=PICTURES, cfg=cfg, check=False)
    name = 'DecoderWithAdaptiveAttention'
    printed, _ = run(folder, 'test.ipynb', run_folder='runs/adaptive', decoders=[name], beam_sizes=[1])
    assert 'adaptive attention: every object right in ' in printed
    printed, pictures = run(folder, 'caption.ipynb', run_folder='runs/adaptive', decoders=[name],
                            pictures=1, scales=['word'])  # one picture needs no list
    assert pictures == 1
    figures = {path.name for path in (folder / 'runs/adaptive/figures').iterdir()}
    assert {f'attention_test1_{name}.png', f'looks_{name}.png', f'history_{name}.png'} <= figures


@pytest.mark.slow
def test_another_decoder_is_drawn_under_its_own_name(folder):
    cfg = {**training_cfg(False), 'decoder': 'lab.more.cells.DecoderWithCell', 'output_folder': 'runs/cell'}
    run(folder, 'train_rnn.ipynb', pictures=PICTURES, cfg=cfg, check=False)
    assert {path.name for path in (folder / 'runs/cell/figures').iterdir()} == {
        'history_DecoderWithCell.png', 'history_DecoderWithCell.pdf'}
    cell, = (cell for cell in json.loads((folder / 'train_rnn.ipynb').read_text())['cells']
             if 'plot_history(' in ''.join(cell['source']))
    assert 'plot_history({decoder_name(cfg): history})' in ''.join(cell['source'])


def test_compare(folder):
    cfg = {key: value for key, value in training_cfg(True).items() if key not in ('attention', 'output_folder')}
    _, pictures = run(folder, 'compare.ipynb', pictures=PICTURES, cfg=cfg, split='TEST', shown=[0, 3], runs={
        'plain LSTM': dict(attention=False), 'CaptionNet': dict(decoder='lab.more.captionnet.CaptionNet'),
        'both': dict(ensemble=['plain LSTM', 'CaptionNet'])})
    assert pictures == 3
    figures = folder / 'runs/compare/figures'
    assert all((figures / f'{name}.png').stat().st_size > 10_000 for name in ('curves', 'bleu', 'captions'))
    table, of_beams = (folder / 'runs/compare/comparison.md').read_text().split('\n\n')
    assert len(table.splitlines()) == 2 + 3 and len(of_beams.splitlines()) == 2 + 3 * 3


def test_report(folder):
    notebook = folder / 'report/report.ipynb'
    answer = r'It reads $x_t = W_e S_t$: $$\alpha_t = \mathrm{softmax}(e_t)$$'
    text = notebook.read_text(encoding='utf-8')
    for before, after in (("picture = 'test0'", "picture = 'test1'"), ('*Name, student number, date*', 'Ada'),
                          ('improvement = []', "improvement = ['../runs/compare']"),
                          ('"*Your text*"', json.dumps(answer))):
        assert before in text
        text = text.replace(before, after, 1)
    notebook.write_text(text, encoding='utf-8')
    done = subprocess.run([sys.executable, 'report/render.py'], cwd=folder, check=True, text=True,
                          stdout=subprocess.PIPE)
    assert re.search(r'hand in:\n- 4 sections still hold \*Your text\*: 2. Best .*, 5. Comparison\n$', done.stdout)
    page = (folder / 'report/report.html').read_text(encoding='utf-8')
    said = json.loads((folder / 'runs/shapes/caption_test1.json').read_text())
    shown = page[page.index('3. Both models'):page.index('4. Your own')]
    assert all(html.escape(caption) in shown for caption in said['captions'].values())
    maps = (folder / 'runs/shapes/figures/attention_test1.png').read_bytes()
    assert base64.b64encode(maps).decode() in shown.replace('\n', '')
    for section in ('1. How each decoder works', '2. Best settings', '3. Both models on one picture',
                    '4. Your own improvement', '5. Comparison'):
        assert section in page
    assert page.count('data:image/png;base64,') >= 6
    own = page[page.index('4. Your own'):page.index('5. Comparison')]
    assert own.count('data:image/png;base64,') == 1 and own.count('>CaptionNet<') == 2  # settings, scores
    assert 'class="missing"' not in page and 'What is graded' not in page
    # formulas are whole, no tag of theirs is closed before its content
    assert '<math' in page and '$' not in page[page.index('1. How each'):page.index('2. Best settings')]
    assert re.search(r'<msub><mi>\w</mi>', page) and not re.search(r'</?math[^>]*></math>|<(m\w+)></\1>', page)
    assert not re.search(r'formula-\d+-mathml', page)
    # self-contained: nothing is loaded from anywhere
    assert not re.findall(r'''<(?:script|link|img)[^>]+(?:src|href)=["'](?!data:)[^"'#][^"']*''', page)
    assert not re.findall(r'@import|url\(["\']?https?:', page)
    assert not [path for path in (folder / 'report').iterdir()
                if path.suffix not in ('.ipynb', '.py', '.css', '.html', '.pdf', '')]


def test_notebooks_in_the_assignment_carry_no_outputs():
    for path in [*ROOT.glob('*.ipynb'), *ROOT.glob('report/*.ipynb')]:
        for cell in nbformat.read(path, as_version=4).cells:
            assert not cell.get('outputs') and cell.get('execution_count') is None, path


def test_the_command_needs_a_notebook():
    assert subprocess.run([sys.executable, '-m', 'lab.notebooks'], cwd=ROOT, capture_output=True).returncode == 2


def test_notebooks_from_the_command_line(tmp_path):
    """Two at once, in one folder."""
    runs = {}
    for name in '1', '2':
        path = tmp_path / f'{name}.ipynb'
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(f'print({name})')]), path)
        runs[name, path] = subprocess.Popen([sys.executable, '-m', 'lab.notebooks', path], cwd=ROOT, text=True,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for (name, path), run in runs.items():
        out, err = run.communicate()
        assert (run.returncode, out, err) == (0, name + '\n', '')
        cell, = nbformat.read(path, as_version=4).cells
        assert [output.text for output in cell.outputs] == [name + '\n']
