"""TODO 9: gated Bahdanau attention with ELU (Bahdanau et al. 2015)."""

from bonus_checks import after, check_method, check_whole

DECODER = 'DecoderWithBahdanauAttention'


def test_attention(lab):
    check_method(lab, 'additive_attention', 'BahdanauAttention.forward',
                 alpha='softmax over the pixels of v(ELU(W(h) + U(a_i)))',
                 context='the sum over the pixels of alpha_i a_i')


def test_start(lab):
    check_method(lab, 'bahdanau_start', f'{DECODER}.start', h='tanh(init_h(mean of the pixels))',
                 c='tanh(init_c(mean of the pixels))', pixels='the pixels in one row, as they are',
                 keys="the attention's U of the pixels")


def test_one_step(lab):
    """With a stub in the place of the attention."""
    check_method(lab, 'bahdanau_step', f'{DECODER}.one_step',
                 alpha='the attention of the old h, which is handed the keys',
                 h='the LSTM reads [embedding; gated context], from the old (h, c)',
                 c='the LSTM reads [embedding; gated context], from the old (h, c)')


def test_forward_and_beam_search(lab):
    after(lab, test_attention, test_start, test_one_step)
    check_whole(lab, 'bahdanau', 'whole', 'training')
