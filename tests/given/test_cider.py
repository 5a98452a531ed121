"""CIDEr-D against the reference implementation.

Its published figure is tested in ``test_metrics.py``.
"""

import random

import pytest

from lab.decode.cider import CiderD, cider_d


def test_the_reference_implementation():
    """40 images with one to six references each and an empty one, of words that differ much in how common they are."""
    cider = pytest.importorskip('pycocoevalcap.cider.cider').Cider()
    rng, vocabulary = random.Random(0), [f'w{i}' for i in range(100)]

    def caption():
        return rng.choices(vocabulary, [1 / (i + 1) for i in range(100)], k=rng.randint(1, 14))

    references = [[*(caption() for _ in range(rng.randint(1, 6))), []] for _ in range(40)]
    captions = [rng.choice([caption(), rng.choice(those) + ['never', 'seen', 'never'] * rng.randint(0, 1), []])
                for those in references]
    mean, each = cider.compute_score({i: [' '.join(words) for words in those] for i, those in enumerate(references)},
                                     {i: [' '.join(caption)] for i, caption in enumerate(captions)})
    scorer = CiderD(references)
    assert [scorer.score(i, caption) for i, caption in enumerate(captions)] == pytest.approx(list(each), abs=1e-6)
    assert cider_d(references, captions)['CIDEr-D'] == pytest.approx(mean, abs=1e-6) and [] in captions
