"""BLEU (Papineni et al. 2002), of a whole set of captions, with the numbers of COCO's own program, pycocoevalcap."""

import math
from collections import Counter

from lab.decode.cider import ORDERS, ngrams

TINY, SMALL = 1e-15, 1e-9  # added above and below, as in pycocoevalcap: a score without a right n-gram is nearly 0


def count_matches(references, caption):
    """What BLEU counts in a caption (Papineni et al. 2002, sec. 2).

    :param references: list of reference captions, each a list of words
    :param caption: list of words
    :return: per order 1 to 4 the n-grams that are right, each at most as often as in one reference; per order all of
        them; the caption's length; the length of the reference that comes closest, the shorter one of two
    """
    right, total = [], []
    for n in ORDERS:
        most = Counter()
        for reference in references:
            most |= ngrams(reference, n)
        found = ngrams(caption, n)
        right.append((found & most).total())
        total.append(found.total())
    closest = min(map(len, references), key=lambda length: (abs(length - len(caption)), length))
    return right, total, len(caption), closest


def brevity_penalty(length, closest):
    """exp(1 - r / c), or 1 where the captions are longer than their references (Papineni et al. 2002, sec. 2.3)."""
    return math.exp(min(0, 1 - (closest + SMALL) / (length + TINY)))


def bleu(references, captions):
    """Corpus BLEU-1 to 4: brevity penalty, no smoothing, each image once. Counts are summed over all images first.

    :param references: per image a list of reference captions, each a list of words as people wrote them
        (never ``<unk>``: a rare word that a caption misses must count as missed)
    :param captions: per image one caption, a list of words without special tokens
    :return: {'BLEU-1': ..., 'BLEU-2': ..., 'BLEU-3': ..., 'BLEU-4': ...}, each 0 to 1
    :raises ValueError: not one caption per image, or no images
    """
    counts = [count_matches(*pair) for pair in zip(references, captions, strict=True)]
    rights, totals, lengths, closest = zip(*counts, strict=True)
    penalty = brevity_penalty(sum(lengths), sum(closest))
    product = 1
    scores = {}
    for n, right, total in zip(ORDERS, zip(*rights, strict=True), zip(*totals, strict=True), strict=True):
        product *= (sum(right) + TINY) / (sum(total) + SMALL)
        scores[f'BLEU-{n}'] = penalty * product ** (1 / n)
    return scores
