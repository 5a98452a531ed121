"""The report: which settings it shows, what is said where runs left nothing, what is still open, page and PDF."""

import json
import re

import nbformat
import numpy as np
import pytest
import torch
from bs4 import BeautifulSoup

from lab.app import figure_html
from lab.experiments.compare import comparison_table
from lab.figures import bleu_table
from lab.train.checkpoints import FORMAT
from lab.train.source import ROOT
from report import contents, render
from solver import check_settings

CELLS = [contents.settings_table, contents.settings_compared, contents.learning_curves, contents.bleu_by_beam,
         contents.bleu_figure, lambda folder: contents.captions(folder, 'test0'),
         lambda folder: contents.attention_maps(folder, 'test0'), contents.curves_compared, contents.scores_compared,
         contents.decoders_compared, contents.where_it_looks, contents.caption_sheet]


def leave_run(folder, name, fingerprints=(), **settings):
    """What a training and ``test.ipynb`` leave, as far as the tables need it."""
    folder.mkdir(exist_ok=True, parents=True)
    epoch = dict(epoch=1, val_greedy_bleu4=0.5, val_loss=1.0, train_top5=90.0)
    (folder / f'history_{name}.json').write_text(json.dumps([epoch]))
    (folder / f'test_{name}.json').write_text(json.dumps(dict(model=name)))
    torch.save(dict(format=FORMAT, settings=check_settings(settings), fingerprints=dict(fingerprints)),
               folder / f'BEST_checkpoint_{name}.pth.tar')


def rows_of(table):
    return {cells[0]: cells[1:] for line in table.data.splitlines() if line.startswith('| ') and ':---' not in line
            if (cells := [cell.strip() for cell in line.strip('|').split('|')])}


def page_of(notebook, folder):
    render.write_page(notebook, folder / 'report.html')
    return (folder / 'report.html').read_text(encoding='utf-8')


def test_only_settings_that_differ_are_shown(tmp_path):
    leave_run(tmp_path / 'a', 'NoAttention', attention=False, epochs=10, alpha_c=0.0, output_folder='a')
    leave_run(tmp_path / 'a', 'Attention', epochs=10, alpha_c=0.0)
    leave_run(tmp_path / 'b', 'Attention', epochs=10, dropout=0.2, seed=3)
    assert rows_of(contents.settings_table([tmp_path / 'a', tmp_path / 'b'])) == {
        'setting': ['plain LSTM (a)', 'soft attention (a)', 'soft attention (b)', 'default'],
        'attention': ['False', 'True', 'True', 'True'], 'dropout': ['0.5', '0.5', '0.2', '0.5'],
        'epochs': ['10', '10', '10', '120'], 'alpha_c': ['–', '0.0', '1.0', '1.0'], 'seed': ['0', '0', '3', '0']}
    assert list(rows_of(contents.settings_compared([tmp_path / 'a', tmp_path / 'b']))) == [
        'setting', 'attention', 'dropout', 'alpha_c', 'seed']
    leave_run(tmp_path / 'own', 'Attention', dict(loss='focal 12345678', code='0123'), epochs=10)
    leave_run(tmp_path / 'usual', 'Attention', dict(code='0123'), epochs=10)
    compared = rows_of(contents.settings_compared([tmp_path / 'own', tmp_path / 'usual']))
    assert compared.pop('setting') and compared == {'loss': ['focal 12345678', 'caption_loss']}
    leave_run(tmp_path / 'c/b', 'Attention')
    first, second = contents.read_runs([tmp_path / 'b', tmp_path / 'c/b'])
    assert first['name'] != second['name']  # though their folders are both called b


def test_text_of_data_is_shown_as_it_is(tmp_path):
    text = r'$x$ $$ \(y\) \begin{z} | *a* _b_ `c` <i>d</i> [e](f) ~~g~~ h_i & www.j.k/*'
    (tmp_path / 'caption_dog-1a2b3c.json').write_text(json.dumps(dict(beam_size=1, captions={text: text})))
    seed = dict(parameters=1, best_epoch=1, epochs=1, captions_beam_size=1, train_seconds=60,
                scores=[{f'BLEU-{n}': 0.5 for n in (1, 2, 3, 4)} | {'beam_size': 1, 'CIDEr-D': 0.75, 'seconds': 1}])
    named = [dict(name=text, seeds=[seed])]
    parts = [('html', contents.note(text.replace('`', ''))),
             ('html', figure_html(np.zeros((4, 4, 3), np.uint8), text, 9)),
             *(('markdown', table) for table in (
                 contents.captions(tmp_path, 'dog-1a2b3c').data, comparison_table(named),
                 bleu_table([seed | dict(model=text)])))]
    outputs = [nbformat.v4.new_output('display_data', {f'text/{kind}': part}) for kind, part in parts]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=outputs)])
    page = BeautifulSoup(page_of(notebook, tmp_path), 'html.parser')
    assert [cell.text for cell in page.select('td, figcaption')].count(text) == 5
    assert {part.name for part in page.select('td *, .missing *, figcaption *')} == {'span'}
    # MathJax, in Jupyter, looks for the beginning and end of a formula in the text of one element
    strings = BeautifulSoup(''.join(part for _, part in parts), 'html.parser').find_all(string=re.compile(r'[$\\]'))
    assert set(strings) == {'$', '\\'}
    assert render.still_open(notebook) == [text.replace('`', '')]


@pytest.mark.parametrize('cell', CELLS)
def test_a_missing_file_is_replaced_by_the_notebook_that_makes_it(cell, tmp_path):
    assert re.search(r'class="missing".*\w+\.ipynb', cell(tmp_path).data)


def test_no_checkpoint_and_no_folder(tmp_path):
    leave_run(tmp_path / 'a', 'Attention')
    (tmp_path / 'a' / 'BEST_checkpoint_Attention.pth.tar').unlink()
    assert '.pth.tar' in contents.settings_table(tmp_path / 'a').data
    assert 'improvement' in contents.scores_compared([]).data


def test_what_is_open():
    notebook = nbformat.read(ROOT / 'report/report.ipynb', as_version=4)
    texts = [cell for cell in notebook.cells if cell.source == '*Your text*']
    name, sections = render.still_open(notebook)
    assert 'name' in name and [number for number in '12345' if f'{number}. ' in sections] == list('12345')
    texts[0].source = texts[3].source = 'The LSTM reads $x_t$.'
    code = next(cell for cell in notebook.cells if cell.cell_type == 'code')
    lacking = nbformat.v4.new_output('display_data', {'text/html': contents.note('no maps: run `caption.ipynb`')})
    code.outputs = [lacking, lacking]
    _, sections, missing = render.still_open(notebook)
    assert [number for number in '12345' if f'{number}. ' in sections] == list('235')
    assert missing == 'no maps: run `caption.ipynb`'
    for cell in notebook.cells:
        cell.source = cell.source.replace('*Your text*', 'Done.').replace('*Name, student number, date*', 'Ada')
    code.outputs = []
    assert render.still_open(notebook) == []


def test_own_pictures_and_formulas_are_in_the_page(tmp_path):
    (tmp_path / 'mine.png').write_bytes(b'PNG')
    cell = nbformat.v4.new_markdown_cell('![mine](mine.png) $x_t$: `$y$`\n\n'
                                         '$$\n\\alpha_t = \\mathrm{softmax}(e_t)\n$$\n')
    guide = nbformat.v4.new_markdown_cell('How to write this', metadata=dict(tags=['guide']))
    page = page_of(nbformat.v4.new_notebook(cells=[guide, cell]), tmp_path)
    assert 'How to write' not in page and 'src="data:image/png;base64,UE5H"' in page
    maths = BeautifulSoup(page, 'html.parser').find_all('math')
    assert [math.text for math in maths] == ['xt', 'αt=softmax(et)'] and page.count('$') == 2
    for formula in (r'$\frac{a}{$', '$a^$'):
        cell.source = f'$h_t$ and {formula}'
        with pytest.raises(ValueError, match=re.escape(formula)):
            page_of(nbformat.v4.new_notebook(cells=[cell]), tmp_path)
