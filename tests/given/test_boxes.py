"""Where the attention peaks against the boxes of things, such as those of an instances file of COCO's form."""

import json

import numpy as np
import pytest

from lab.data.boxes import coco_names, coco_pointing, coco_words, pointing_game

CATEGORIES = ['person', 'dog', 'hot dog', 'bench', 'sheep', 'knife', 'orange', 'cell phone']


def peak(*cells, shape=(4, 4)):
    alphas = np.full((len(cells), *shape), 0.01)
    for alpha, cell in zip(alphas, cells, strict=True):
        alpha[cell] = 0.9
    return alphas


@pytest.mark.parametrize(('caption', 'named'), [
    ('two men and a dog on benches', [(1, 'person'), (4, 'dog'), (6, 'bench')]),
    ('a dog eats a hot dog', [(1, 'dog'), (5, 'hot dog')]),
    ('people with cell phones and a phone', [(0, 'person'), (3, 'cell phone'), (6, 'cell phone')]),
    ('an orange car by sheep', [(4, 'sheep')]),
    ('three oranges and knives', [(1, 'orange'), (3, 'knife')]),
    ('', []),
])
def test_words_of_coco(caption, named):
    assert coco_words(caption.split(), coco_names(CATEGORIES)) == named


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


def test_coco_boxes_are_scaled_per_axis(tmp_path):
    """The grid covers the picture squashed to a square: a column is 160 pixels wide, a row 80 high."""
    path = tmp_path / 'instances_val2014.json'
    path.write_text(json.dumps(dict(
        categories=[dict(id=18, name='dog'), dict(id=1, name='person')],
        images=[dict(id=7, file_name='COCO_val2014_000000000007.jpg', width=640, height=320)],
        annotations=[dict(image_id=7, category_id=18, bbox=[480, 80, 160, 240], iscrowd=0),
                     dict(image_id=7, category_id=1, bbox=[0, 0, 320, 320], iscrowd=0)])))

    def looking(*cells):
        return dict(name='val2014/COCO_val2014_000000000007.jpg', caption=['man', 'and', 'dog'], alphas=peak(*cells))

    words = coco_pointing([looking((0, 1), (0, 0), (1, 3)), looking((3, 2), (0, 0), (3, 3)),
                           looking((3, 0), (0, 0), (0, 3))], path)
    assert words == dict(man=[(True, 8 / 16), (False, 8 / 16), (True, 8 / 16)],
                         dog=[(True, 3 / 16), (True, 3 / 16), (False, 3 / 16)])
