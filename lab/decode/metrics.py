"""The list of all scores of captions against people's own words, and which captions to show."""

from collections import Counter
from statistics import median

from lab.decode.bleu import bleu
from lab.decode.cider import cider_d
from utils import sentence

# Each takes references (per image a list of captions, each a list of words) and captions (one per image), and returns
# a dict name -> score, larger is better. Training, tests, tables and figures go over this list.
METRICS = [bleu, cider_d]


def scores_of(references, captions):
    """All scores of ``METRICS``: dict name -> score."""
    return {name: score for metric in METRICS for name, score in metric(references, captions).items()}


def score_names(rows):
    """Names of the scores that all of these rows of ``evaluate.evaluate`` have, in their order."""
    return [name for name in rows[0] if name not in ('beam_size', 'seconds', 'words') and all(name in r for r in rows)]


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
