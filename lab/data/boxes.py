"""Does the attention look at what a word names?"""

import numpy as np


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
