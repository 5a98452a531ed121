"""The tables of docs/flickr8k_compared.md say what was measured, where the measurements are kept."""

import json

import pytest

from instructor.assemble import ROOT
from lab.experiments.compare import cells_of, of_seeds

RESULTS = {result['name']: result['seeds']
           for result in json.loads((ROOT / 'docs/flickr8k_results.json').read_text(encoding='utf-8'))}
PAGE = (ROOT / 'docs/flickr8k_compared.md').read_text(encoding='utf-8').splitlines()
THREE_SEEDS = {'adaptive, at first': 'adaptive, at first', 'adaptive, then free': 'adaptive, then free',
               'soft attention, fine-tuned': 'soft attention, fine-tuned',
               '(the soft attention that it began with)': 'soft attention',
               '(the same second phase, the encoder left frozen)': 'soft attention, as long but frozen',
               'ensemble: the three fine-tuned ones': 'ensemble: the three fine-tuned ones'}
ONE_SEED = ('plain RNN', 'plain GRU', 'plain LSTM', 'soft attention', 'spatial attention', 'adaptive, at first',
            'adaptive, then free', 'Bahdanau, gated', 'CaptionNet')


def table(heading, number):
    """Rows of a section's table, each a list of cells without bold."""
    lines = PAGE[PAGE.index(heading):]
    tables, before = [], ''
    for line in lines[:next((i for i, line in enumerate(lines[1:], 1) if line.startswith('## ')), None)]:
        if line.startswith('|'):
            if not before.startswith('|'):
                tables.append([])
            tables[-1].append([cell.strip() for cell in line.replace('**', '').split('|')[1:-1]])
        before = line
    return tables[number]


def row_of(seeds):
    """As the page has it: parameters, best epochs, BLEU-4 of three beam sizes, four metrics with beam 3, minutes."""
    minutes = of_seeds([sum(seed['train_seconds'] for seed in seeds) / len(seeds) / 60])[:-2]
    best = ', '.join(str(seed['best_epoch']) for seed in seeds) + f" of {seeds[0]['epochs']}"
    return [f"{seeds[0]['parameters']:,}", best if seeds[0]['epochs'] else '',
            *(cell for beam in range(3) for cell in cells_of(seeds, beam, ['BLEU-4'])),
            *cells_of(seeds, 1, ['BLEU-1', 'METEOR', 'ROUGE-L', 'CIDEr-D']), minutes if seeds[0]['epochs'] else '']


@pytest.mark.parametrize('name', THREE_SEEDS)
def test_rows_of_three_seeds(name):
    found = {row[0]: row[1:] for row in table('## Plain LSTM, soft and adaptive attention, three seeds', 0)}
    assert same_but_rounding(found[name], row_of(RESULTS[THREE_SEEDS[name]]))


def test_rows_of_what_was_done_once_more():
    rows = table('## Once more', 0)[2:]
    again = {name.removesuffix(', again'): seeds for name, seeds in RESULTS.items() if name.endswith(', again')}
    assert [row[0] for row in rows] == list(again)
    for name, *found in rows:
        assert same_but_rounding(found, row_of(again[name]))


@pytest.mark.parametrize('name', ONE_SEED)
def test_rows_of_one_seed(name):
    rows = table('## Every decoder, one seed', 0)
    assert [row[0] for row in rows[2:]] == list(ONE_SEED)
    found = {row[0]: row[1:] for row in rows}[name]
    found[-1] = found[-1].split(' ')[0]
    assert same_but_rounding(found, row_of(RESULTS[name][:1]))
    every_beam = table('## Every decoder, one seed', 1)
    first = [row[0] for row in every_beam].index(name)
    metrics = every_beam[0][2:]
    assert [row[1] for row in every_beam[first:first + 3]] == ['1', '3', '5']
    for beam, row in enumerate(every_beam[first:first + 3]):
        assert row[2:] == cells_of(RESULTS[name][:1], beam, metrics)


def same_but_rounding(found, expected):
    """Minutes to a tenth."""
    return found[:-1] == expected[:-1] and (
        found[-1] == expected[-1] or abs(float(found[-1]) - float(expected[-1])) < 0.11)
