"""TODO 4: the layers of ``DecoderWithAttention``, its first state, one gated step."""

from checks import check_dropout, check_gradients, check_layers, check_not_seeded, if_usual, takes_keys

START, STEP = 'DecoderWithAttention.init_hidden_state', 'DecoderWithAttention.one_step'


def test_layers(lab):
    check_layers(lab, 'attentive')


def test_first_state_comes_from_the_mean_pixel(lab):
    """h = init_h(mean pixel), c = init_c(mean pixel)."""
    answer = lab('attentive_start', START)
    answer.same('h', shape='batch_size, decoder_dim',
                rule='h = init_h(mean), the mean over the pixels, dim 1, and nothing after it')
    answer.same('c', shape='batch_size, decoder_dim', rule='c = init_c(mean), and nothing after it; h is right')
    answer.same('h with more cells', 'c with more cells', **if_usual(
        answer, ['h', 'c'], 'a number of cells is limited, or cells of zeros are left out'))
    for call in (' of one picture', ' once more', ' in training', ' in training once more', ' after training'):
        answer.same(f'h{call}', f'c{call}', shape='batch_size, decoder_dim',
                    rule='other pictures, training and earlier calls make no difference: dropout comes in one_step, '
                         'before fc')
    lab('attentive_rate', START).same('h of a large picture', 'c of a large picture',
                                      cause='it works for small sizes only')


def test_one_step(lab):
    """z, alpha = attention; h, c = LSTM([word; beta * z], (h, c)); scores = fc(h)."""
    answer = lab('attentive_step', STEP)
    answer.same('alpha', shape='batch_size, num_pixels',
                rule='alpha is what self.attention(encoder_out, h) returns, with the old h')
    answer.same('h', shape='batch_size, decoder_dim',
                cause='c is right, so something changes h after decode_step' * answer.is_right('c'),
                rule='decode_step reads [embeddings; beta * z] from the h and c that come in; z is that of the '
                     'attention, beta is the sigmoid of what its layer gives for that h')
    answer.same('c', shape='batch_size, decoder_dim',
                rule='c comes from the same call of the LSTM as h, which is right, and nothing follows')
    answer.same('predictions', shape='batch_size, vocab_size',
                rule='fc reads the new h, and nothing comes after fc: the loss has the softmax')
    check_not_seeded(answer)
    calls = [' once more', ' of one caption', ' in training', ' with more cells', ' of large numbers']
    if takes_keys(answer):
        calls += [' with keys', ' with keys once more']
    for call in calls:
        answer.same(*(f'{name}{call}' for name in ('predictions', 'alpha', 'h', 'c')),
                    rule='keys go on to self.attention; all else stays as it is' if 'keys' in call else
                    'with dropout=0 training makes no difference: nn.Dropout gets the parameter dropout'
                    if call == ' in training' else
                    'earlier calls, other captions, the grid and large numbers make no difference')
    lab('attentive_rate', STEP).same(*(f'{name} of large sizes' for name in ('predictions', 'alpha', 'h', 'c')),
                                     cause='it works for small sizes only')


def test_gate_scales_what_is_seen(lab):
    """The gate beta, the sigmoid of its layer, lies between 0 and 1 and multiplies z (sec. 4.2.1)."""
    answer = lab('attentive_step', STEP)
    for name in ('shut', 'half open', 'open'):
        answer.same(f'h, gate {name}', shape='batch_size, decoder_dim',
                    rule=f'when its layer gives {dict(shut=-1000, open=1000).get(name, 0)} the LSTM reads '
                         f'{dict(shut=0, open=1).get(name, 0.5)} * z: beta is the sigmoid of what the layer gives')
    answer.same('h', rule='beta is computed from the old h, entry by entry')


def test_dropout(lab):
    check_dropout(lab, 'attentive')


def test_gradients(lab):
    check_gradients(lab('attentive_step', STEP))
    check_gradients(lab('attentive_start', START))
