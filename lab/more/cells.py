"""The plain decoder with another cell: RNN (Elman 1990), GRU (Cho et al. 2014) or LSTM."""

from torch import nn

from lab.more.decoder import Decoder
from models import flatten_pixels, init_word_layers


class DecoderWithCell(Decoder):
    """The plain decoder of *Show and Tell*, with a simple RNN, a GRU or an LSTM.

    The picture is the first "word": x_{-1} = bn(init(mean of the pixels)), state_{-1} = cell(x_{-1}, 0).

    - RNN (Elman 1990, *Finding Structure in Time*):
          h_t = tanh(W x_t + U h_{t-1})
    - GRU (Cho et al. 2014, arXiv 1406.1078, eqs. 5 to 8):
          r, z = sigmoid(W x_t + U h_{t-1}),  n = tanh(W_n x_t + r * (U_n h_{t-1}))     (the paper: U_n (r * h_{t-1}))
          h_t = (1 - z) * n + z * h_{t-1}
    - LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000):
          i, f, o = sigmoid(W x_t + U h_{t-1}),  g = tanh(W_g x_t + U_g h_{t-1})
          c_t = f * c_{t-1} + i * g,  h_t = o * tanh(c_t)       (so it is ``models.DecoderWithRNN``, word by word)

    :param embed_dim, decoder_dim: length of a word vector, and of the state
    :param vocab_size, encoder_dim: number of words, and of channels of the encoder's grid
    :param dropout: probability of dropping an entry of h before the vocabulary layer
    :param cell: 'RNN', 'GRU' or 'LSTM'
    :raises ValueError: in training, a batch of one caption, for which batch norm has no variance
    """

    def __init__(self, embed_dim, decoder_dim, vocab_size, encoder_dim=2048, dropout=0.5, cell='GRU'):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.init = nn.Linear(encoder_dim, embed_dim)
        self.bn = nn.BatchNorm1d(embed_dim)
        self.decode_step = getattr(nn, f'{cell}Cell')(embed_dim, decoder_dim)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(decoder_dim, vocab_size)
        init_word_layers(self)

    def one_step(self, embeddings, *state):
        """
        :param embeddings: (batch_size, embed_dim)
        :param state: h, or h and c, each (batch_size, decoder_dim); nothing at first
        :return: new state: tuple (h,) or (h, c)
        """
        # TODO 8: DecoderWithCell.one_step
        #   self.decode_step takes embeddings and state. An LSTM cell takes the tuple (h, c) as its second argument and
        #   gives (h, c); the others take h and give h.
        #   Without a state call it with the embeddings alone: it starts from zeros. Return a tuple, (h,) or (h, c)
        ### BEGIN SOLUTION
        if isinstance(self.decode_step, nn.LSTMCell):
            return self.decode_step(embeddings, state or None)
        return (self.decode_step(embeddings, *state),)
        ### END SOLUTION

    def start(self, encoder_out):
        """
        :param encoder_out: (batch_size, h, w, encoder_dim) or (batch_size, num_pixels, encoder_dim)
        :return: state after the picture, (h,) or (h, c), each (batch_size, decoder_dim); no memory
        """
        picture = self.bn(self.init(flatten_pixels(encoder_out).mean(dim=1)))
        return self.one_step(picture), ()

    def step(self, words, state, memory):
        """See :class:`lab.more.decoder.Decoder`."""
        state = self.one_step(self.embedding(words), *state)
        return self.fc(self.dropout(state[0])), state, None
