"""The example of a finished report, ``report/example/report.html``: ``python -m instructor.example``.

Runs the notebooks with the reference solution, compares two grids as the improvement, and puts the texts of
``report_texts.md`` into the template.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

from papermill.exceptions import PapermillExecutionError

from instructor.assemble import ROOT, assemble
from instructor.demo import NOTEBOOKS
from lab.notebooks import run_notebook
from report.render import YOUR_NAME, YOUR_TEXT, still_open, write_page

TEXTS = ROOT / 'instructor' / 'report_texts.md'
PAGE = ROOT / 'report' / 'example' / 'report.html'
COMPARISON = dict(
    cfg=dict(data_folder='data/shapes', data_name='shapes_5_cap_per_img_5_min_word_freq', encoder='shapes_cnn',
             embed_dim=128, attention_dim=128, decoder_dim=256, dropout=0.5, alpha_c=0.0, epochs=10, batch_size=32,
             decoder_lr=3e-3, cosine=True),
    runs={'grid of 8 × 8': dict(attention=True, encoded_image_size=8),
          'grid of 16 × 16': dict(attention=True, encoded_image_size=16)},
    seeds=[0, 1], shown=[0], output_folder='runs/grids')
REPORT = dict(picture='test1', improvement=['../runs/grids'])


def read_texts():
    """:return: dict heading -> text below it, of ``report_texts.md``"""
    parts = re.split(r'^## *(.+)\n', TEXTS.read_text(encoding='utf-8'), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))


def fill(notebook, texts):
    """Put the texts in the place of the placeholders.

    :param notebook: a dict, the template; it is changed
    :param texts: dict heading of the section -> text; that of the line with the name is called 'Name'
    """
    section = ''
    for cell in notebook['cells']:
        source = ''.join(cell['source'])
        if heading := re.match('## *(.+)', source):
            section = heading[1]
        if cell['metadata'].get('tags'):
            continue
        if YOUR_NAME in source:
            cell['source'] = source.replace(YOUR_NAME, texts['Name'])
        if YOUR_TEXT in source:
            cell['source'] = source.replace(YOUR_TEXT, texts[section])


def unsupported(text, evidence):
    """:return: the numbers with a decimal point in a text that the evidence does not have"""
    return [number for number in re.findall(r'\d+\.\d+', text) if number not in re.findall(r'\d+\.\d+', evidence)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--build', type=Path, default=ROOT / 'build' / 'example', help='build folder')
    parser.add_argument('--texts', action='store_true', help='take the runs that are in the build folder')
    arguments = parser.parse_args()
    os.environ.setdefault('OMP_NUM_THREADS', '1')  # see instructor/demo.py
    try:
        build = assemble(ROOT / 'instructor' / 'models.py', arguments.build)
        steps = {} if arguments.texts else {name: {} for name in NOTEBOOKS} | {'compare.ipynb': COMPARISON}
        for name, parameters in steps.items():
            print(f'\n== {name} ==', flush=True)
            run_notebook(build / name, build / name, **parameters)
        path, texts = build / 'report' / 'report.ipynb', read_texts()
        notebook = json.loads(path.read_text(encoding='utf-8'))
        fill(notebook, texts)
        path.write_text(json.dumps(notebook), encoding='utf-8')
        executed = run_notebook(path, **REPORT)
        write_page(executed, PAGE)
    except ValueError as error:
        sys.exit(f'error: {error}')
    except PapermillExecutionError as error:
        sys.exit(f'error: {error.ename}: {error.evalue}')
    for sentence in still_open(executed):
        print(sentence)
    print(PAGE)


if __name__ == '__main__':
    main()
