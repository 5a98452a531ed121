"""BLEU of captions against the people's own words (Papineni et al. 2002)."""

import warnings
from statistics import median

from nltk.translate.bleu_score import SmoothingFunction, corpus_bleu, sentence_bleu

WEIGHTS = [tuple([1 / n] * n) for n in (1, 2, 3, 4)]
DUST = 1e-60  # nltk takes the smallest float in place of no right n-gram, which gives 1e-231 and the like


def bleu(references, hypotheses):
    """Corpus BLEU-1 to 4 by nltk: brevity penalty, no smoothing, each image once.

    :param references: per image a list of reference captions, each a list of tokens as people wrote them
        (never ``<unk>``: a rare word that a caption misses must count as missed)
    :param hypotheses: per image one caption, a list of tokens without special tokens
    :return: {'BLEU-1': ..., 'BLEU-2': ..., 'BLEU-3': ..., 'BLEU-4': ...}, each 0 to 1
    :raises ValueError: not one caption per image, or no images
    """
    if len(references) != len(hypotheses) or not hypotheses:
        raise ValueError(f'BLEU needs one caption per image: {len(hypotheses)} captions, '
                         f'{len(references)} images with references')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # nltk warns when no 4-gram is right, as after a first epoch
        scores = corpus_bleu(references, hypotheses, weights=WEIGHTS)
    return {f'BLEU-{n}': float(score) if score > DUST else 0.0 for n, score in enumerate(scores, 1)}


def caption_bleu(references, caption):
    """BLEU-4 of one caption by itself, smoothed, since a single caption often shares no 4-gram with its references.

    :param references: list of reference captions, each a list of tokens
    :param caption: list of tokens
    :return: score (0 to 1; add-epsilon smoothing, Chen and Cherry 2014, method 1), and the reference that comes
        closest to the caption by that score
    """
    def score(those):
        return sentence_bleu(those, caption or [''], smoothing_function=SmoothingFunction().method1)
    return float(score(references)), max(references, key=lambda reference: score([reference]))


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
