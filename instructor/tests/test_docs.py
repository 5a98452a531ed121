"""The table of docs/flickr8k_compared.md says what was measured, where the measurements are kept."""

import json

import pytest

from instructor.assemble import ROOT
from lab.experiments.compare import score_cells

RESULTS = {result['name']: result['seeds']
           for result in json.loads((ROOT / 'docs/flickr8k_results.json').read_text(encoding='utf-8'))}
PAGE = (ROOT / 'docs/flickr8k_compared.md').read_text(encoding='utf-8').splitlines()
ROWS = [[cell.strip() for cell in line.split('|')[1:-1]] for line in PAGE if line.startswith('| ')]
TABLE = {name: cells for name, *cells in ROWS}
KEPT_AS = {  # row -> its name among the results
    **{name: name for name in ('plain RNN', 'plain GRU', 'spatial attention', 'adaptive, at first',
                               'adaptive, then free', 'Bahdanau, gated', 'CaptionNet', 'soft attention, fine-tuned',
                               'soft attention, as long but frozen')},
    **{name: f'{name}, again' for name in ('plain LSTM', 'soft attention', 'adaptive attention',
                                           'soft attention, distilled', 'adaptive attention, distilled')},
    'soft attention, self-critical': 'soft attention, self-critical, feature dropout, again',
    'soft attention, before fine-tuning': 'soft attention',
    'ensemble: three soft': 'ensemble, soft, again',
    'ensemble: three soft, three adaptive': 'ensemble, soft and adaptive, again',
    'ensemble: six distilled': 'ensemble, distilled, again',
    'ensemble: three self-critical': 'ensemble, self-critical, feature dropout, again',
    'ensemble: three fine-tuned': 'ensemble: the three fine-tuned ones'}


def test_every_row_has_its_measurements():
    assert TABLE.keys() == {'decoder', *KEPT_AS}
    assert TABLE['decoder'] == ['seeds', 'parameters', 'BLEU-4, beam 1', 'beam 3', 'beam 5', 'METEOR',
                                'CIDEr-D, beam 1', 'beam 3']


@pytest.mark.parametrize('name', KEPT_AS)
def test_a_row_says_what_was_measured(name):
    seeds = RESULTS[KEPT_AS[name]]
    assert TABLE[name] == [
        '' if name.startswith('ensemble') else str(len(seeds)), f"{seeds[0]['parameters']:,}",
        *(cell for beam in range(3) for cell in score_cells(seeds, beam, ['BLEU-4'])),
        *score_cells(seeds, 1, ['METEOR']), *score_cells(seeds, 0, ['CIDEr-D']), *score_cells(seeds, 1, ['CIDEr-D'])]
