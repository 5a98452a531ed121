"""TODO 1: the layers of ``DecoderWithRNN``, reading the picture, one step."""

from checking import same
from checks import check_dropout, check_gradients, check_layers, check_not_seeded, if_usual

START, STEP = 'DecoderWithRNN.init_hidden_state', 'DecoderWithRNN.one_step'


def test_layers(lab):
    check_layers(lab, 'plain')


def test_first_state_reads_the_picture(lab):
    """x_{-1} = bn(init(mean pixel)); one LSTM step on it from zero states."""
    answer = lab('plain_start', START)
    answer.same('h', shape='batch_size, decoder_dim',
                rule='the mean over the pixels (dim 1) goes through init, then bn; the LSTM reads it once, from zeros')
    answer.same('c', shape='batch_size, decoder_dim',
                rule='c is what the same call of the LSTM returns beside h, which is right')
    answer.same('h of one picture', 'c of one picture', rule='the other pictures make no difference')
    answer.same('h with more cells', 'c with more cells', **if_usual(
        answer, ['h', 'c'], 'a number of cells is limited, or cells of zeros are left out'))
    answer.same('h once more', 'c once more', cause='a call leaves something behind for the next one')
    answer.same('h in training', 'c in training', shape='batch_size, decoder_dim', cause=(
        'in training self.bn takes its running mean and variance, as in eval()'
        if same(answer['h in training'], answer['h after training']) else ''),
        rule='in training self.bn takes mean and variance of the batch; dropout comes later, before fc')
    lab('plain_rate', START).same('h of a large picture', 'c of a large picture', cause='it works for small sizes only')


def test_batch_norm_learns_its_statistics(lab):
    """In training each call moves the running statistics a little, which eval() then takes."""
    answer = lab('plain_start', START)
    answer.same('h after training', 'c after training', 'h in training once more',
                **if_usual(answer, ['h in training']),
                rule='self.bn sees init(mean pixel), once per call, and has the default momentum')


def test_one_step(lab):
    """h, c = LSTM(word, (h, c)); scores = fc(h)."""
    answer = lab('plain_step', STEP)
    answer.same('h', shape='batch_size, decoder_dim',
                cause='c is right, so something changes h after decode_step' * answer.is_right('c'),
                rule='h and c are what self.decode_step(embeddings, (h, c)) returns, from the h and c that come in')
    answer.same('c', shape='batch_size, decoder_dim',
                rule='c comes from the same call of the LSTM as h, which is right, and nothing follows')
    answer.same('predictions', shape='batch_size, vocab_size',
                rule='fc reads the new h, and nothing comes after fc: the loss has the softmax')
    check_not_seeded(answer)
    for call in (' once more', ' of one caption', ' in training', ' of large numbers'):
        answer.same(f'predictions{call}', f'h{call}', f'c{call}', rule=(
            'with dropout=0 training makes no difference: nn.Dropout gets the parameter dropout'
            if call == ' in training' else
            'earlier calls, other captions and large numbers make no difference'))
    lab('plain_rate', STEP).same(*(f'{name} of large sizes' for name in ('predictions', 'h', 'c')),
                                 cause='it works for small sizes only')


def test_dropout(lab):
    check_dropout(lab, 'plain')


def test_gradients(lab):
    check_gradients(lab('plain_step', STEP))
    check_gradients(lab('plain_start', START))
