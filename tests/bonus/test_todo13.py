"""TODO 13: ensembles."""

from bonus_checks import after, check_method

SCORES = 'the log of the mean of the probabilities'
STATE = "the decoders' new states one after the other; each gets its own part of state and memory, self.sizes of them"


def check_step(lab, which):
    check_method(lab, f'{which}_ensemble', 'Ensemble.step', gradients=False, scores=SCORES,
                 **{f'new state {n}': STATE for n in range(4)},
                 **{'alpha': "mean_alpha of the decoders' alphas"} if which == 'alike' else {})


def test_two_with_attention(lab):
    check_step(lab, 'alike')


def test_one_without_attention(lab):
    after(lab, test_two_with_attention)
    check_step(lab, 'mixed')
    check_step(lab, 'reversed')
