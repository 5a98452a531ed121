"""TODO 7: adaptive attention with a sentinel (Lu et al. 2017, sec. 2.3); uses TODO 6."""

import test_todo6
from bonus_checks import after, check_layers, check_method, check_whole
from checking import Lab

DECODER = 'DecoderWithAdaptiveAttention'


def after_todo_6(lab):
    spatial = Lab(6, lab.subject)
    after(spatial, test_todo6.test_layers, test_todo6.test_look, test_todo6.test_one_step, test_todo6.test_dropout)


def test_layers(lab):
    after(Lab(6, lab.subject), test_todo6.test_layers)
    check_layers(lab, 'adaptive')


def test_sentinel(lab):
    after(lab, test_layers)
    check_method(lab, 'adaptive_sentinel', f'{DECODER}.sentinel',
                 s='s = g * tanh_m, with g = sigmoid(W_x x + W_h h_before)')


def test_attend(lab):
    after(lab, test_sentinel)
    check_method(lab, 'adaptive_attend', f'{DECODER}.attend',
                 alpha="the pixels' part of the softmax over their scores and, last, the sentinel's",
                 c='beta s + weighted_sum(the others, V)')


def test_forward_and_beam_search(lab):
    after_todo_6(lab)
    after(lab, test_attend)
    check_whole(lab, 'adaptive', 'whole', 'training')
