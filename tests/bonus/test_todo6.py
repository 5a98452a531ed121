"""TODO 6: spatial attention (Lu et al. 2017, sec. 2.2)."""

from bonus_checks import after, check_dropout, check_layers, check_method, check_whole

DECODER = 'DecoderWithSpatialAttention'


def test_layers(lab):
    check_layers(lab, 'spatial')


def test_look(lab):
    after(lab, test_layers)
    check_method(lab, 'spatial_look', f'{DECODER}.look', V='V = ReLU(W_a a_i)', keys='W_v of V',
                 v_g='v_g = ReLU(W_b mean(a))')


def test_attend(lab):
    after(lab, test_layers)
    check_method(lab, 'spatial_attend', f'{DECODER}.attend', alpha='softmax of self.score over the pixels',
                 c='weighted_sum(alpha, V)')


def test_one_step(lab):
    """With a stub in the place of ``attend``."""
    after(lab, test_layers)
    check_method(lab, 'spatial_step', f'{DECODER}.one_step', h='the LSTM on [w_t; v_g] from (h, m)',
                 m='the LSTM on [w_t; v_g] from (h, m)',
                 alpha='attend gets V, keys, the new h, x, the old h and tanh of the new m',
                 predictions='fc(dropout(c + h)), without softmax')


def test_dropout(lab):
    after(lab, test_one_step)
    check_dropout(lab, 'spatial', f'{DECODER}.one_step')


def test_forward_and_beam_search(lab):
    after(lab, test_look, test_attend, test_one_step, test_dropout)
    check_whole(lab, 'spatial', 'whole', 'training')
