"""TODO 12: self-critical training: baseline, advantage, loss (Rennie et al. 2017)."""

from bonus_checks import after


def check_loss(lab, of):
    answer = lab('surrogate_loss', 'surrogate_loss')
    name = f'gradient of log_p{of}'
    answer.require(answer[name].any(), 'a gradient of log_p', 'it is zero', 'log_p is detached')
    answer.same(name, rule='minus weight / samples times advantage, of each sample')
    answer.same(f'loss{of}', rule='the sum of advantage * log_p')
    answer.same(f'loss{of} once more', cause='a call changes what it is given in place')


def test_greedy_baseline(lab):
    check_loss(lab, '')


def test_mean_of_the_others_as_baseline(lab):
    after(lab, test_greedy_baseline)
    check_loss(lab, ', baseline of the others')
