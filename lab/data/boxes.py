"""Does the attention look at what a word names? Boxes of things, and COCO's own."""

import json
from pathlib import Path

import numpy as np

# What captions call COCO's categories, beside their names and plurals.
COCO_WORDS = {
    'person': 'man men woman women boy girl child children kid lady guy people player skier surfer skateboarder',
    'bicycle': 'bike', 'motorcycle': 'motorbike', 'airplane': 'plane jet', 'fire hydrant': 'hydrant', 'sheep': 'lamb',
    'cow': 'cattle', 'dog': 'puppy', 'cat': 'kitten', 'frisbee': 'disc', 'sports ball': 'ball',
    'baseball bat': 'bat', 'baseball glove': 'glove mitt', 'tennis racket': 'racket racquet', 'cup': 'mug',
    'wine glass': 'glass', 'knife': 'knives', 'donut': 'doughnut', 'couch': 'sofa', 'potted plant': 'plant',
    'dining table': 'table', 'tv': 'television', 'cell phone': 'phone cellphone', 'refrigerator': 'fridge',
}


def pointing_game(named, alphas, objects, size):
    """Does the attention of a word peak in the box of what the word names?

    A word is a hit if the centre of its map's greatest weight (the first, on ties) lies in the box of an object of its
    name. A word that names something not in the picture is a miss.

    :param named: list of (position, name): which words of the caption name something, and what
    :param alphas: (words, h, w) attention weights; array or CPU tensor
    :param objects: list of (name, box); a box is (x0, y0, x1, y1), right and bottom exclusive
    :param size: (width, height) of the picture in which the boxes lie; the encoder sees it squashed to a square
    :return: list of (position, hit, chance); ``chance`` is the probability that a peak anywhere at random is a hit: the
        fraction of cells whose centre lies in a box that counts. For a word that names something not in the picture it
        is the mean over all boxes, so that a wrong caption does not make the comparison easier
    """
    alphas = np.asarray(alphas)
    _, h, w = alphas.shape
    x, y = (np.arange(w) + 0.5) / w * size[0], (np.arange(h)[:, np.newaxis] + 0.5) / h * size[1]
    inside = [(x0 <= x) & (x < x1) & (y0 <= y) & (y < y1) for _, (x0, y0, x1, y1) in objects]
    results = []
    for position, name in named:
        mine = [cells for cells, (other, _) in zip(inside, objects, strict=True) if other == name]
        counts = np.any(mine, axis=0) if mine else np.zeros((h, w), bool)
        chance = counts.mean() if mine else np.mean(inside or 0)
        results.append((position, bool(counts.flat[alphas[position].argmax()]), float(chance)))
    return results


def coco_names(categories):
    """What names a category in a caption: dict of tuples of words -> category."""
    names = {}
    for category in categories:
        for name in (category, *COCO_WORDS.get(category, '').split()):
            plural = name + ('es' if name.endswith(('s', 'x', 'ch', 'sh')) else 's')
            names |= {tuple(name.split()): category, tuple(plural.split()): category}
    names.pop(('orange',), None)  # mostly a colour
    return names


def coco_words(tokens, names):
    """The words of a caption that name a category: list of (position, category). Of a name of two words ('hot dog',
    which is no dog) the position is that of the second.

    :param names: of :func:`coco_names`
    """
    named, position = [], 0
    while position < len(tokens):
        name = next((name for n in (2, 1) if (name := tuple(tokens[position:position + n])) in names), ())
        if name:
            named.append((position + len(name) - 1, names[name]))
        position += max(len(name), 1)
    return named


def coco_pointing(captions, path):
    """The pointing game on COCO, for the words that name one of its 80 categories.

    :param captions: list of dicts of ``evaluate.caption_split``
    :param path: instances file of the pictures, such as 'annotations/instances_val2014.json' (Karpathy's test split is
        of val2014)
    :return: dict word -> list of (hit, chance)
    """
    content = json.loads(Path(path).read_text(encoding='utf-8'))
    categories = {category['id']: category['name'] for category in content['categories']}
    sizes = {image['file_name']: (image['id'], (image['width'], image['height'])) for image in content['images']}
    boxes = {}
    for annotation in content['annotations']:
        x, y, w, h = annotation['bbox']
        box = (x, y, x + w, y + h)
        boxes.setdefault(annotation['image_id'], []).append((categories[annotation['category_id']], box))
    names, per_word = coco_names(categories.values()), {}
    for c in captions:
        number, size = sizes[Path(c['name']).name]
        named = coco_words(c['caption'], names)
        for position, hit, chance in pointing_game(named, c['alphas'], boxes.get(number, []), size):
            per_word.setdefault(c['caption'][position], []).append((hit, chance))
    return per_word
