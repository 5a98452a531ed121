"""CIDEr-D against its formula, the reference implementation, and the clock."""

import math
import random
import time
from collections import Counter

import numpy as np
import pytest

from lab.decode.cider import CiderD

SENTENCES = ['a red star is left of a blue moon', 'the red star and a blue moon', 'a moon', 'two red stars',
             'a star a star a star', 'blue']


def words(*sentences):
    return [sentence.split() for sentence in sentences]


def slow_cider(references, images, captions):
    """The paper's formula, n-gram by n-gram."""
    def count(caption, n):
        return Counter(tuple(caption[i:i + n]) for i in range(len(caption) - n + 1))

    scores = []
    for image, caption in zip(images, captions, strict=True):
        total = 0
        for n in range(1, 5):
            images_with = Counter(gram for those in references for gram in {g for r in those for g in count(r, n)})

            def vector(those, n=n, images_with=images_with):
                return {gram: tf * (math.log(len(references)) - math.log(max(1, images_with[gram])))
                        for gram, tf in count(those, n).items()}

            c = vector(caption)
            for reference in references[image]:
                s = vector(reference)
                norms = math.sqrt(sum(w * w for w in c.values())) * math.sqrt(sum(w * w for w in s.values()))
                if norms:
                    apart = max(len(caption) - 1, 0) - max(len(reference) - 1, 0)
                    total += (sum(min(w, s.get(gram, 0)) * s.get(gram, 0) for gram, w in c.items()) / norms
                              * math.exp(-apart ** 2 / (2 * 6 ** 2))) / len(references[image])
        scores.append(10 * total / 4)
    return scores


@pytest.fixture(scope='module')
def many():
    """800 images with one to six captions each, of words that differ much in how common they are."""
    rng = random.Random(0)
    vocabulary = [f'w{i}' for i in range(300)]
    weights = [1 / (i + 1) for i in range(300)]

    def caption(those=vocabulary):
        return rng.choices(those, weights[:len(those)], k=rng.randint(0, 14))

    references = [[caption() or ['w0'] for _ in range(rng.randint(1, 6))] for _ in range(800)]
    captions = [caption() if rng.random() < 0.5 else rng.choice(references[i])[:] for i in range(800)]
    for i in range(0, 800, 7):
        captions[i] = captions[i] + ['never', 'seen', 'never']
    return references, captions


def test_the_formula(many):
    references, captions = many
    found = CiderD(references).scores(range(800), captions)
    chosen = range(0, 800, 23)
    assert found[list(chosen)] == pytest.approx(slow_cider(references, chosen, [captions[i] for i in chosen]), abs=1e-9)


def test_a_small_case_by_hand():
    references = [words('a red star'), words('a blue moon', 'one moon')]
    scorer = CiderD(references)
    # 'a' is in both images: no weight; the others and all longer n-grams weigh log 2
    assert scorer.scores([0], words('a red star')) == pytest.approx([10 * 3 / 4])  # it has no 4-grams
    assert scorer.scores([0], words('a blue moon')) == pytest.approx([0])
    assert scorer.scores([0], words('red')) == pytest.approx([10 / 4 / math.sqrt(2) * math.exp(-4 / 72)])
    assert scorer.scores([1], words('a')) == [0] and scorer.scores([1], [[]]) == [0]


def test_the_reference_implementation(many):
    cider = pytest.importorskip('pycocoevalcap.cider.cider')
    references, captions = many
    captions = [caption or ['w1'] for caption in captions]
    mean, each = cider.Cider().compute_score({i: [' '.join(c) for c in those] for i, those in enumerate(references)},
                                             {i: [' '.join(caption)] for i, caption in enumerate(captions)})
    scorer = CiderD(references)
    assert np.abs(scorer.scores(range(800), captions) - each).max() < 1e-6
    assert scorer.score(captions) == pytest.approx(mean, abs=1e-6)


def test_published_figure(shared_data):
    hypotheses, first, second = ([line.split() for line in (shared_data / 'metrics' / name).open()]
                                 for name in ('hyp.txt', 'ref1.txt', 'ref2.txt'))
    assert CiderD([list(pair) for pair in zip(first, second, strict=True)]).score(hypotheses) == pytest.approx(
        1.242192, abs=1e-6)


def test_images_in_any_order_and_several_captions_of_one():
    references = [words(*SENTENCES[:2]), words(*SENTENCES[2:4]), words(*SENTENCES[4:])]
    scorer = CiderD(references)
    images = [2, 0, 0, 1, 2, 0]
    captions = words(*SENTENCES)
    assert scorer.scores(images, captions) == pytest.approx(slow_cider(references, images, captions), abs=1e-12)


def test_fast_enough_for_training(many):
    """Tens of thousands of captions a second; the best of some tries, machines are busy."""
    references, captions = many
    scorer, images = CiderD(references), list(range(800)) * 10
    times = []
    for _ in range(5):
        start = time.perf_counter()
        scorer.scores(images, captions * 10)
        times.append(time.perf_counter() - start)
    print(f'{8000 / min(times):,.0f} captions per second')
    assert 8000 / min(times) > 10_000


def test_impossible_references():
    with pytest.raises(ValueError, match='at least one reference caption for each image'):
        CiderD([words('a'), []])
    with pytest.raises(ValueError, match='all empty'):
        CiderD([[[]], [[], []]])
    with pytest.raises(ValueError, match='65,535 different words; these references have 70,000'):
        CiderD([[[f'w{i}' for i in range(70_000)]]])
