"""TODO 11: scheduled sampling (Bengio et al. 2015)."""

import numpy as np
from bonus_checks import after
from bonus_requests import SHARES, WORDS_FED

TRUE = np.eye(5)[[3, 4]]


def shares_of(lab, teacher_forcing):
    """How often each word is fed, in rows of either kind: (2, 5)."""
    answer = lab('own_words', 'true_or_own')
    words = answer[f'words, teacher_forcing={teacher_forcing}']
    answer.require(words.shape == WORDS_FED.shape, f'a word for each row, of shape {WORDS_FED.shape}',
                   f'its shape is {words.shape}', 'torch.multinomial gives (n, 1)')
    answer.require(words.dtype == np.int64 and ((words >= 0) & (words < 5)).all(), 'words, torch.int64',
                   'they are something else', rule='they are indices, as true_words')
    return answer, np.stack([np.bincount(words[row::2], minlength=5) for row in (0, 1)]) / (len(words) / 2)


def like(shares, others):
    return np.abs(shares - others).max() < 0.05


def test_own_words_are_drawn_from_the_scores_of_their_row(lab):
    answer, shares = shares_of(lab, 0.0)
    cause = ''
    for wrong, own in (
            ('all words are drawn alike, whatever their scores', np.full((2, 5), 0.2)),
            ('the best word is taken in place of one that is drawn', np.eye(5)[[0, 2]]),
            ('all words are drawn from the scores of the first row', SHARES[[0, 0]]),
            ('a row gets the word of another row: draw one for each, and keep them in order', SHARES[::-1]),
            ('a row gets the word of any row: draw one for each, and keep them in order', SHARES.mean(axis=0)),
            ('teacher_forcing is taken for the probability of the own word', TRUE)):
        cause = wrong if like(shares, own) else cause
    answer.require(like(shares, SHARES), f'words drawn {SHARES.tolist()} times in rows of two kinds, teacher_forcing=0',
                   f'they are {shares.round(2).tolist()}', cause, "drawn from the softmax of the row's scores")


def test_nothing_is_changed_in_place(lab):
    """The last call, with nothing but true words, shows what the others left of them."""
    after(lab, test_own_words_are_drawn_from_the_scores_of_their_row)
    answer, shares = shares_of(lab, 1.0)
    answer.require(like(shares, TRUE), 'true_words as they were, for the next call',
                   'they have been changed',
                   'true_words[...] = changes the caller\'s tensor: torch.where makes a new one')


def test_true_words_are_taken_as_often_as_said(lab):
    after(lab, test_own_words_are_drawn_from_the_scores_of_their_row, test_nothing_is_changed_in_place)
    answer, shares = shares_of(lab, 0.25)
    taken = (shares * TRUE).sum(axis=1)
    cause = ''
    if like(taken, 0.75):
        cause = 'teacher_forcing is taken for the probability of the own word'
    elif set(taken) <= {0.0, 1.0}:
        cause = 'all rows are treated alike: each needs a random number of its own'
    answer.require(like(taken, 0.25), 'the true word in 25% of all rows', f'it is in {taken.mean():.0%}', cause,
                   'a random number for each row; where it is below teacher_forcing, the true word')
