"""The scores of validation by their names in the history, one of which the setting ``monitor`` names."""

import re
from statistics import fmean

from lab.decode import metrics


def in_history(name):
    """A score's name in histories and in the setting ``monitor``: 'BLEU-4' is bleu4, 'CIDEr-D' is cider."""
    return re.sub('-d$|[^a-z0-9]', '', name.lower())


def greedy_scores(of_languages):
    """Scores of greedy captions by their names in the history.

    :param of_languages: dict language -> ``metrics.scores_of`` its captions
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
    :return: a function of ``metrics.METRICS``; None for the loss and for what is teacher-forced
    :raises ValueError: validation gives no score of this name, or two scores have one name in the history
    """
    found = dict.fromkeys(['loss', 'cross_entropy', 'top5', 'bleu4'])
    names = {}
    for metric in metrics.METRICS:  # on nine pictures, each with one of its references as the caption
        scores = {language: metric(those[:9], [captions[0] for captions in those[:9]])
                  for language, those in references.items()}
        for name in next(iter(scores.values())):
            other = names.setdefault(in_history(name), name)
            if other != name:
                raise ValueError(f'the scores {other} and {name} have one name in the history: rename one of them')
        found |= dict.fromkeys(greedy_scores(scores), metric)
    if monitor not in found:
        raise ValueError(f"setting 'monitor' is {monitor!r}; it must be one of {', '.join(found)}")
    return found[monitor]
