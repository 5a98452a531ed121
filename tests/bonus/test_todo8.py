"""TODO 8: RNN, GRU and LSTM cells (Elman 1990; Cho et al. 2014)."""

from bonus_checks import after, check_method, check_whole

RULE = {'rnn': 'self.decode_step on embeddings and h', 'gru': 'self.decode_step on embeddings and h',
        'lstm': 'the cell takes and gives (h, c)'}


def check_one_step(lab, kind):
    outputs = 'hc' if kind == 'lstm' else 'h'
    check_method(lab, f'{kind}_step', 'DecoderWithCell.one_step', **dict.fromkeys(outputs, RULE[kind]))


def test_rnn(lab):
    check_one_step(lab, 'rnn')


def test_gru(lab):
    check_one_step(lab, 'gru')


def test_lstm(lab):
    check_one_step(lab, 'lstm')


def test_forward_and_beam_search(lab):
    after(lab, test_rnn, test_gru, test_lstm)
    for kind in RULE:
        check_whole(lab, kind, 'whole')
