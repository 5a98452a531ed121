"""CIDEr-D against a plain reading of its equations and the reference implementation.

Its published figure is tested in ``test_metrics.py``.
"""

import math
import random

import numpy as np
import pytest

from lab.decode.cider import CiderD, cider_d


def plain_cider(references, image, caption):
    """The paper's equations, over vectors with an entry for each n-gram of the caption and its references."""
    def ngrams(words, n):
        return [tuple(words[i:i + n]) for i in range(len(words) - n + 1)]

    total = 0
    for n in range(1, 5):
        grams = list({gram for words in [caption, *references[image]] for gram in ngrams(words, n)})
        of_images = [{gram for words in those for gram in ngrams(words, n)} for those in references]
        images_with = np.array([sum(gram in of_image for of_image in of_images) for gram in grams])
        idf = np.log(len(references) / images_with.clip(min=1))
        c, *vectors = (np.array([ngrams(words, n).count(gram) for gram in grams]) * idf
                       for words in (caption, *references[image]))
        for s, reference in zip(vectors, references[image], strict=True):
            lengths = max(len(caption) - 1, 0) - max(len(reference) - 1, 0)  # counted in bigrams
            norms = np.linalg.norm(c) * np.linalg.norm(s)
            cosine = np.minimum(c, s) @ s / norms if norms else 0
            total += 10 * math.exp(-lengths ** 2 / (2 * 6 ** 2)) * cosine / 4 / len(vectors)
    return total


@pytest.fixture(scope='module')
def some():
    """40 images with one to six references each, of words that differ much in how common they are; captions."""
    rng, vocabulary = random.Random(0), [f'w{i}' for i in range(100)]

    def caption():
        return rng.choices(vocabulary, [1 / (i + 1) for i in range(100)], k=rng.randint(1, 14))

    references = [[caption() for _ in range(rng.randint(1, 6))] for _ in range(40)]
    return references, [rng.choice([caption(), rng.choice(those) + ['never', 'seen', 'never'] * rng.randint(0, 1)])
                        for those in references]


def test_the_equations(some):
    references, captions = [[*those, []] for those in some[0]], [*some[1][:-1], []]
    expected = [plain_cider(references, image, caption) for image, caption in enumerate(captions)]
    scorer = CiderD(references)
    assert [scorer.score(i, caption) for i, caption in enumerate(captions)] == pytest.approx(expected, abs=1e-9)
    assert cider_d(references, captions) == {'CIDEr-D': pytest.approx(np.mean(expected))} and max(expected) > 1


def test_the_reference_implementation(some):
    cider = pytest.importorskip('pycocoevalcap.cider.cider').Cider()
    references, captions = some
    mean, each = cider.compute_score({i: [' '.join(words) for words in those] for i, those in enumerate(references)},
                                     {i: [' '.join(caption)] for i, caption in enumerate(captions)})
    scorer = CiderD(references)
    assert [scorer.score(i, caption) for i, caption in enumerate(captions)] == pytest.approx(list(each), abs=1e-6)
    assert cider_d(references, captions)['CIDEr-D'] == pytest.approx(mean, abs=1e-6)
