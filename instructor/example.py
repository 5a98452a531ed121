"""The example of a finished report, ``report/example/report.html``: ``python -m instructor.example``.

Runs the notebooks with the reference solution, compares two grids as the improvement, and puts the texts of
``report_texts.md`` into the template.
"""

import argparse
import base64
import io
import json
import os
import re
import sys

from instructor.assemble import ROOT, assemble
from instructor.cut import REFERENCE
from instructor.demo import SIDE_BY_SIDE
from instructor.pictures import save_small
from lab.notebooks import run_notebook
from report.render import GUIDE, YOUR_NAME, YOUR_TEXT, still_open, write_page
from utils import atomic_path

TEXTS = ROOT / 'instructor' / 'report_texts.md'
PAGE = ROOT / 'report' / 'example' / 'report.html'
COMPARISON = dict(
    cfg=dict(data_folder='data/shapes', data_name='shapes_5_cap_per_img_5_min_word_freq', encoder='shapes_cnn',
             embed_dim=128, attention_dim=128, decoder_dim=256, dropout=0.5, alpha_c=0.0, epochs=10, batch_size=32,
             decoder_lr=3e-3, cosine=True),
    runs={'grid of 8 × 8': dict(attention=True, encoded_image_size=8),
          'grid of 16 × 16': dict(attention=True, encoded_image_size=16)},
    split='TEST', seeds=[0, 1], shown=[0], output_folder='runs/grids')
NUMBER = re.compile(r'(?<![\d.])\d+\.\d+(?!\.?\d)')  # 0.571, but no part of "sec. 4.2.1"
REPORT = dict(picture='test1', improvement=['../runs/grids'])


def read_texts():
    """:return: dict heading -> text below it, of ``report_texts.md``"""
    parts = re.split(r'^## *(.+)\n', TEXTS.read_text(encoding='utf-8'), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))


def fill(notebook, texts):
    """Put the texts in the place of the placeholders.

    :param notebook: a dict, the template; it is changed
    :param texts: dict heading of a section -> its text; 'Name' -> the line with the name
    :raises ValueError: a section without a text
    """
    section = ''
    for cell in notebook['cells']:
        source = ''.join(cell['source'])
        if GUIDE in cell['metadata'].get('tags', []):
            continue
        if heading := re.match('## *(.+)', source):
            section = heading[1]
        for placeholder, name in ((YOUR_NAME, 'Name'), (YOUR_TEXT, section)):
            if placeholder in source and name not in texts:
                raise ValueError(f'{TEXTS.name} has no text for {name!r}')
            source = source.replace(placeholder, texts.get(name, ''))
        cell['source'] = source


def without_evidence(text, notebook):
    """The numbers with a decimal point in a text that no table of the notebook has.

    :param notebook: executed
    """
    tables = ''.join(output['data'].get('text/markdown', '') for cell in notebook.cells
                     for output in cell.get('outputs', []) if 'data' in output)
    return sorted(set(NUMBER.findall(text)) - set(NUMBER.findall(tables)))


def with_fewer_colours(page):
    """The page with 256 colours in each picture: half as many bytes in the repository."""
    def fewer(match):
        file = io.BytesIO()
        save_small(io.BytesIO(base64.b64decode(match[1])), file)
        return f'src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"'
    return re.sub('src="data:image/png;base64,([^"]*)"', fewer, page)


def write_example(build):
    """Put the texts into the template, run it on the build folder's runs and write the page.

    :raises ValueError: a placeholder without a text, a table or figure without its run, a number without its table
    """
    path, texts = build / 'report' / 'report.ipynb', read_texts()
    notebook = json.loads(path.read_text(encoding='utf-8'))
    fill(notebook, texts)
    path.write_text(json.dumps(notebook), encoding='utf-8')
    executed = run_notebook(path, **REPORT)
    wrong = still_open(executed) + [f'{TEXTS.name} says {number}, and no table of the report does'
                                    for number in without_evidence(' '.join(texts.values()), executed)]
    if wrong:
        raise ValueError('; '.join(wrong))
    write_page(executed, PAGE)
    page = with_fewer_colours(PAGE.read_text(encoding='utf-8'))
    with atomic_path(PAGE) as temporary:
        temporary.write_text(page, encoding='utf-8')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--texts', action='store_true', help='with the runs that are in the build folder')
    arguments = parser.parse_args()
    os.environ.setdefault('OMP_NUM_THREADS', '1')  # see instructor/demo.py
    try:
        build = assemble(REFERENCE, ROOT / 'build' / 'example')
        notebooks = {name: {} for names in SIDE_BY_SIDE for name in names} | {'compare.ipynb': COMPARISON}
        for name, parameters in notebooks.items() if not arguments.texts else ():
            print(f'\n== {name} ==', flush=True)
            run_notebook(build / name, build / name, **parameters)
        write_example(build)
    except ValueError as error:
        sys.exit(f'error: {error}')
    print(PAGE)


if __name__ == '__main__':
    main()
