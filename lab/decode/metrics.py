"""Scores of captions against people's own words: BLEU (Papineni et al. 2002), and the list of all of them."""

import math
import re
from collections import Counter
from statistics import fmean, median

from lab.decode.cider import ORDERS, cider_d, ngrams
from utils import sentence

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


# Each takes references (per image a list of captions, each a list of words) and captions (one per image), and returns
# a dict name -> score, larger is better. Training, tests, tables and figures go over this list.
METRICS = [bleu, cider_d]


def scores_of(references, captions):
    """All scores of ``METRICS``: dict name -> score."""
    return {name: score for metric in METRICS for name, score in metric(references, captions).items()}


def score_names(rows):
    """Names of the scores that all of these rows of ``evaluate.evaluate`` have, in their order."""
    return [name for name in rows[0] if name not in ('beam_size', 'seconds', 'words') and all(name in r for r in rows)]


def in_history(name):
    """A score's name in histories and in the setting ``monitor``: 'BLEU-4' is bleu4, 'CIDEr-D' is cider."""
    return re.sub('-d$|[^a-z0-9]', '', name.lower())


def greedy_scores(of_languages):
    """Scores of greedy captions by their names in the history.

    :param of_languages: dict language -> :func:`scores_of` its captions
    :return: dict name -> score: ``greedy_bleu4`` and so on; of several languages the mean, and each as
        ``greedy_bleu4_zh``
    """
    first, *others = of_languages.values()
    scores = {f'greedy_{in_history(name)}': fmean([first[name], *(own[name] for own in others)]) for name in first}
    if others:
        scores |= {f'greedy_{in_history(name)}_{language}': score
                   for language, own in of_languages.items() for name, score in own.items()}
    return scores


def metric_of(monitor, references):
    """The metric that gives a score of validation.

    :param monitor: the setting: the name of the score
    :param references: dict language -> per image a list of captions, each a list of words
    :return: a function of ``METRICS``; None for the loss and for what is teacher-forced
    :raises ValueError: validation gives no score of this name, or two scores have one name in the history
    """
    found = dict.fromkeys(['loss', 'cross_entropy', 'top5', 'bleu4'])
    names = {}
    for metric in METRICS:
        scores = {language: metric(those[:1], [those[0][0]]) for language, those in references.items()}
        for name in next(iter(scores.values())):
            other = names.setdefault(in_history(name), name)
            if other != name:
                raise ValueError(f'the scores {other} and {name} have one name in the history: rename one of them')
        found |= dict.fromkeys(greedy_scores(scores), metric)
    if monitor not in found:
        raise ValueError(f"setting 'monitor' is {monitor!r}; it must be one of {', '.join(found)}")
    return found[monitor]


def same_caption(captions):
    """A sentence if more than nine of ten pictures get the same caption, else None.

    :param captions: one per picture, a list of words
    """
    (common, count), = Counter(map(tuple, captions)).most_common(1)
    if count <= max(1, 0.9 * len(captions)):
        return None
    return (f'{count} of {len(captions)} pictures get the same caption, {sentence(common[:10])!r}. Usual causes: a '
            'learning rate too high or too low, features that are the same for all pictures, captions of other '
            'pictures, a decoder that does not read the picture.')


def caption_bleu(references, caption):
    """BLEU-4 of one caption by itself.

    It is smoothed (Chen and Cherry 2014, method 1), since a caption often shares no 4-gram with its references, and is
    over those orders that the caption has, so that a right one of three words has 1.

    :param references: list of reference captions, each a list of words
    :param caption: list of words
    :return: score, 0 to 1, and the reference that comes closest to the caption by that score
    """
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu  # here, as it takes seconds to load

    def score(those):
        return sentence_bleu(those, caption, smoothing_function=SmoothingFunction().method1, auto_reweigh=True)
    return score(references), max(references, key=lambda reference: score([reference]))


def choose_captions(scores, wrong=None, count=3):
    """The best, the typical and the worst captions of a split.

    :param scores: one per caption, such as its BLEU-4
    :param wrong: the numbers of the captions that are wrong, where the data set knows: the best are then true ones, and
        the worst are wrong ones, no true captions in an unusual wording. None: nobody knows
    :return: dict 'best', 'typical', 'worst' -> numbers of captions, no number twice; typical are those with a score
        near the median
    """
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    best = [i for i in order[::-1] if wrong is None or i not in wrong][:count]
    worst = [i for i in order if i not in best and (wrong is None or i in wrong)][:count]
    typical = sorted((i for i in order if i not in best + worst), key=lambda i: abs(scores[i] - median(scores)))
    return dict(best=best, typical=typical[:count], worst=worst)
