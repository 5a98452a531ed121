"""Where the attention peaks against the boxes of an instances file of COCO's form."""

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


def test_boxes_that_overlap_count_once():
    boxes = [('dog', (0, 0, 100, 100)), ('dog', (50, 0, 100, 100)), ('person', (0, 0, 25, 25))]
    (_, hit, chance), = pointing_game([(0, 'dog')], peak((0, 3)), boxes, (200, 200))
    assert not hit and chance == 4 / 16
    (_, hit, chance), = pointing_game([(0, 'bench')], peak((0, 0)), [], (200, 200))
    assert (hit, chance) == (False, 0)


@pytest.fixture
def instances(tmp_path):
    """A wide picture with a dog in its right quarter and a person in the left half, and one without any boxes."""
    path = tmp_path / 'instances_val2014.json'
    path.write_text(json.dumps(dict(
        categories=[dict(id=18, name='dog'), dict(id=1, name='person')],
        images=[dict(id=7, file_name='COCO_val2014_000000000007.jpg', width=640, height=320),
                dict(id=8, file_name='COCO_val2014_000000000008.jpg', width=100, height=100)],
        annotations=[dict(image_id=7, category_id=18, bbox=[480, 80, 160, 240], iscrowd=0),
                     dict(image_id=7, category_id=1, bbox=[0, 0, 320, 320], iscrowd=0)])))
    return path


def test_coco_boxes_are_scaled_per_axis(instances):
    """The grid covers the picture squashed to a square: a column is 160 pixels wide, a row 80 high."""
    def looking(*cells):
        return dict(name='val2014/COCO_val2014_000000000007.jpg', caption=['man', 'and', 'dog'], alphas=peak(*cells))

    words = coco_pointing([looking((0, 1), (0, 0), (1, 3)), looking((3, 2), (0, 0), (3, 3)),
                           looking((3, 0), (0, 0), (0, 3))], instances)
    assert words == dict(man=[(True, 8 / 16), (False, 8 / 16), (True, 8 / 16)],
                         dog=[(True, 3 / 16), (True, 3 / 16), (False, 3 / 16)])
    nothing = dict(name='val2014/COCO_val2014_000000000008.jpg', caption=['dog'], alphas=peak((0, 0)))
    assert coco_pointing([nothing], instances) == dict(dog=[(False, 0)])
