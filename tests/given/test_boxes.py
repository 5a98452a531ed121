"""Where the attention peaks against the boxes of things."""

import numpy as np
import pytest

from lab.data.boxes import pointing_game


def peak(*cells, shape=(4, 4)):
    alphas = np.full((len(cells), *shape), 0.01)
    for alpha, cell in zip(alphas, cells, strict=True):
        alpha[cell] = 0.9
    return alphas


@pytest.mark.parametrize(('cell', 'shape', 'boxes', 'expected'), [
    # boxes that overlap count once
    ((0, 3), (4, 4), [('dog', (0, 0, 100, 100)), ('dog', (50, 0, 100, 100)), ('cat', (0, 0, 25, 25))], (False, 4 / 16)),
    ((0, 0), (4, 4), [], (False, 0)),
    # right and bottom are exclusive: the centre of the first cell is at 25
    ((0, 0), (4, 4), [('dog', (0, 0, 25, 200))], (False, 0)),
    ((0, 0), (4, 4), [('dog', (25, 0, 26, 200))], (True, 1 / 4)),
    # rows are y, and grids need not be square
    ((0, 7), (4, 8), [('dog', (150, 0, 200, 100))], (True, 1 / 8)),
    ((2, 7), (4, 8), [('dog', (150, 0, 200, 100))], (False, 1 / 8)),
    # what is not there has the mean share of the boxes
    ((0, 0), (4, 4), [('cat', (0, 0, 50, 50)), ('cow', (0, 0, 100, 100))], (False, (1 + 4) / 16 / 2)),
])
def test_pointing_game(cell, shape, boxes, expected):
    assert pointing_game([(0, 'dog')], peak(cell, shape=shape), boxes, (200, 200)) == [(0, *expected)]
