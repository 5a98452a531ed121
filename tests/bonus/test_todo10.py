"""TODO 10: scaled dot-product attention with heads, deep output (Vaswani et al. 2017)."""

from bonus_checks import after, check_dropout, check_method, check_whole

DECODER, ATTENTION = 'CaptionNet', 'ScaledDotProductAttention.forward'


def test_attention(lab):
    check_method(lab, 'scaled_attention', ATTENTION, alpha='softmax over the keys of q k^T / sqrt(its channels)',
                 context='the values are the cells themselves')


def test_two_heads(lab):
    after(lab, test_attention)
    check_method(lab, 'heads_attention', ATTENTION,
                 alpha='each head has its own part of q, k and v; alpha is the mean',
                 context='each head has its own part of q, k and v')


def test_start(lab):
    check_method(lab, 'captionnet_start', f'{DECODER}.start', h='tanh(init_h(mean of the cells))',
                 c='tanh(init_c(mean of the cells))', pixels='flatten_pixels of the grid',
                 keys="the attention's keys of the cells")


def test_one_step(lab):
    """With a stub in the place of the attention."""
    check_method(lab, 'captionnet_step', f'{DECODER}.one_step',
                 alpha='the attention of the old h, which is handed the keys',
                 h='the LSTM reads [embedding; context], from the old (h, c)',
                 c='the LSTM reads [embedding; context], from the old (h, c)', output='[new h; context; embedding]')


def test_word_scores(lab):
    check_method(lab, 'captionnet_scores', f'{DECODER}.word_scores', predictions='fc(dropout(tanh(deep(output))))')


def test_dropout(lab):
    after(lab, test_word_scores)
    check_dropout(lab, 'captionnet', f'{DECODER}.word_scores')


def test_forward_and_beam_search(lab):
    after(lab, test_two_heads, test_start, test_one_step, test_dropout)
    check_whole(lab, 'captionnet', 'whole', 'training')
    check_whole(lab, 'twoheads', 'whole')
