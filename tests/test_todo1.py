"""TODO 1: the layers of ``DecoderWithRNN``, reading the picture, one step."""

from layer_checks import check_dropout, check_gradients, check_layers


def test_layers(lab):
    check_layers(lab('plain_layers', 'DecoderWithRNN.__init__'), 'plain')


def test_first_state_reads_the_picture(lab):
    """x_{-1} = bn(init(mean pixel)); one LSTM step on it from zero states."""
    found = lab('plain_start', 'DecoderWithRNN.init_hidden_state')
    found.same('h', 'c', shape='batch_size, decoder_dim',
               cause='mean over the pixels (dim 1), then init, then bn, then decode_step without states')
    found.same('h in training', 'c in training', shape='batch_size, decoder_dim',
               cause='self.bn comes after self.init and normalises over the batch; dropout comes later, before fc')


def test_batch_norm_learns_its_statistics(lab):
    found = lab('plain_start', 'DecoderWithRNN.init_hidden_state')
    found.same('running mean of bn after it', shape='embed_dim',
               cause='self.bn must see init(mean pixel), once per call')


def test_one_step(lab):
    """h, c = LSTM(word, (h, c)); scores = fc(h)."""
    found = lab('plain_step', 'DecoderWithRNN.one_step')
    found.same('h', 'c', shape='batch_size, decoder_dim', cause='decode_step(embeddings, (h, c)) returns h, c')
    found.same('predictions', shape='batch_size, vocab_size', cause='fc reads the new h; no softmax, the loss has it')


def test_dropout(lab):
    check_dropout(lab('plain_dropout', 'DecoderWithRNN.one_step'))


def test_gradients(lab):
    check_gradients(lab('plain_step_gradient', 'DecoderWithRNN.one_step'))
    check_gradients(lab('plain_start_gradient', 'DecoderWithRNN.init_hidden_state'))
