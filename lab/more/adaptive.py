"""Adaptive attention: when to look (*Knowing When to Look*, Lu et al. 2017, arXiv 1612.01887)."""

import torch
from torch import nn
from torch.nn import functional as F

from lab.more.decoder import Decoder, weighted_sum
from models import flatten_pixels, init_word_layers


class DecoderWithSpatialAttention(Decoder):
    """The spatial attention model of *Knowing When to Look* (Lu et al. 2017, arXiv 1612.01887), sec. 2.2.

    The *new* hidden state looks (in *Show, Attend and Tell* the old one does), and what it sees goes into the word's
    score, not into the LSTM:

        v_i = ReLU(W_a a_i),  v_g = ReLU(W_b mean(a)),  x_t = [w_t; v_g]          (eqs. 14 to 16)
        h_t, m_t = LSTM(x_t, h_{t-1}, m_{t-1})                                    (eq. 4)
        z_t = w_h^T tanh(W_v V + W_g h_t),  alpha_t = softmax(z_t)                (eqs. 6, 7)
        c_t = sum over i of alpha_ti v_ti                                         (eq. 8)
        p = softmax(W_p (c_t + h_t))                                              (eq. 3; as eq. 13)

    The attention's width is ``attention_dim``. The paper has the number of cells there (W_v and W_g are k x d), which
    ties it to the grid: with 49 cells, 49 numbers to compare h and v_i by.

    :param attention_dim: length of the vectors that are compared
    :param embed_dim: length of a word vector
    :param decoder_dim: length of h, m, v_i and of the sentinel
    :param vocab_size: number of words
    :param encoder_dim: channels of the encoder's grid
    :param dropout: probability of dropping an entry of c_t + h_t
    """

    def __init__(self, attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim=2048, dropout=0.5):
        super().__init__()
        # TODO 6: DecoderWithSpatialAttention.__init__
        #   Make the layers, under exactly these names:
        #   self.embedding    nn.Embedding  word index -> embed_dim
        #   self.W_a          nn.Linear     encoder_dim -> decoder_dim;  self.W_b  encoder_dim -> embed_dim
        #   self.decode_step  nn.LSTMCell   input 2 embed_dim, state decoder_dim
        #   self.W_v, W_g     nn.Linear     decoder_dim -> attention_dim, without bias
        #   self.w_h          nn.Linear     attention_dim -> 1, without bias
        #   self.dropout      nn.Dropout;   self.fc  nn.Linear  decoder_dim -> vocab_size
        ### BEGIN SOLUTION
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.W_a = nn.Linear(encoder_dim, decoder_dim)
        self.W_b = nn.Linear(encoder_dim, embed_dim)
        self.decode_step = nn.LSTMCell(2 * embed_dim, decoder_dim)
        self.W_v = nn.Linear(decoder_dim, attention_dim, bias=False)
        self.W_g = nn.Linear(decoder_dim, attention_dim, bias=False)
        self.w_h = nn.Linear(attention_dim, 1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(decoder_dim, vocab_size)
        ### END SOLUTION
        init_word_layers(self)

    def look(self, encoder_out):
        """The picture, as the decoder uses it at every word.

        :param encoder_out: (batch_size, num_pixels, encoder_dim)
        :return: V (batch_size, num_pixels, decoder_dim), W_v V (batch_size, num_pixels, attention_dim),
            v_g (batch_size, embed_dim)
        """
        # TODO 6: DecoderWithSpatialAttention.look
        #   1. V = ReLU(W_a a_i), all pixels at once
        #   2. v_g = ReLU(W_b of the mean over the pixels of encoder_out)
        #   3. return V, W_v of V, v_g
        ### BEGIN SOLUTION
        V = F.relu(self.W_a(encoder_out))
        v_g = F.relu(self.W_b(encoder_out.mean(dim=1)))
        return V, self.W_v(V), v_g
        ### END SOLUTION

    def attend(self, V, keys, h, x, h_before, tanh_m):
        """Look at the picture, with the new hidden state.

        :param V: (batch_size, num_pixels, decoder_dim); ``keys``: W_v V (batch_size, num_pixels, attention_dim)
        :param h, h_before, tanh_m: (batch_size, decoder_dim) new and old hidden state, tanh of the new cell state
        :param x: (batch_size, 2 embed_dim) the LSTM's input
        :return: c_t (batch_size, decoder_dim), alpha (batch_size, num_pixels)
        """
        # TODO 6: DecoderWithSpatialAttention.attend
        #   1. alpha = softmax of self.score(keys, h) over the pixels
        #   2. c = weighted_sum(alpha, V)
        ### BEGIN SOLUTION
        z = self.score(keys, h)
        alpha = z.softmax(dim=1)
        return weighted_sum(alpha, V), alpha
        ### END SOLUTION

    def score(self, keys, h):
        """z_t = w_h^T tanh(W_v V + W_g h_t), eq. 6: (batch_size, num_pixels)"""
        return self.w_h(torch.tanh(keys + self.W_g(h).unsqueeze(1))).squeeze(2)

    def one_step(self, embeddings, V, keys, v_g, h, m):
        """Read one word, look, score the next.

        :param embeddings: (batch_size, embed_dim)
        :param V, keys, v_g: as ``look`` returns them
        :param h, m: (batch_size, decoder_dim) the old state
        :return: predictions (batch_size, vocab_size), alpha (batch_size, num_pixels), new h and m (batch_size,
            decoder_dim)
        """
        # TODO 6: DecoderWithSpatialAttention.one_step
        #   1. x = [w_t; v_g]                                (batch_size, 2 embed_dim)
        #   2. the LSTM on x from (h, m); keep the old h, the sentinel of TODO 7 wants it
        #   3. c, alpha = self.attend(V, keys, new h, x, old h, tanh(new m))
        #   4. predictions = fc(dropout(c + new h))            (batch_size, vocab_size)
        ### BEGIN SOLUTION
        x = torch.cat([embeddings, v_g], dim=1)
        h_before = h
        h, m = self.decode_step(x, (h, m))
        c, alpha = self.attend(V, keys, h, x, h_before, torch.tanh(m))
        return self.fc(self.dropout(c + h)), alpha, h, m
        ### END SOLUTION

    def start(self, encoder_out):
        """
        :param encoder_out: (batch_size, h, w, encoder_dim) or (batch_size, num_pixels, encoder_dim)
        :return: first state, h and m of zeros (batch_size, decoder_dim); memory: V, keys and v_g as of ``look``
        """
        V, keys, v_g = self.look(flatten_pixels(encoder_out))
        zero = V.new_zeros(len(V), self.decode_step.hidden_size)
        return (zero, zero), (V, keys, v_g)

    def step(self, words, state, memory):
        """See :class:`lab.more.decoder.Decoder`."""
        predictions, alpha, h, m = self.one_step(self.embedding(words), *memory, *state)
        return predictions, (h, m), alpha


class DecoderWithAdaptiveAttention(DecoderWithSpatialAttention):
    """Adaptive attention: a visual sentinel lets the decoder not look (Lu et al. 2017, arXiv 1612.01887, sec. 2.3).

    All of :class:`DecoderWithSpatialAttention`, and

        g_t = sigmoid(W_x x_t + W_h h_{t-1}),  s_t = g_t * tanh(m_t)              (eqs. 9, 10; m_t: the new cell state)
        alpha^_t = softmax([z_t; w_h^T tanh(W_s s_t + W_g h_t)])                  (eq. 12)
        beta_t = the last entry of alpha^_t    (the paper prints alpha_t there, which has no such entry)
        c^_t = beta_t s_t + sum over i of alpha^_ti v_ti                          (eq. 11: alpha^ = (1 - beta) alpha)
        p = softmax(W_p (c^_t + h_t))                                             (eq. 13)

    The alphas that it returns are the pixels' part of alpha^_t: they sum to 1 - beta_t, "how much it looks".

    Parameters are those of :class:`DecoderWithSpatialAttention`; ``decoder_dim`` is the sentinel's length, too.

    On a small data set the sentinel may take everything before the decoder has learned to look: train a few epochs with
    the penalty of *Show, Attend and Tell* (``alpha_c=0.3``), then go on without it (``start_from``, ``alpha_c=0``).
    """

    def __init__(self, attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim=2048, dropout=0.5):
        super().__init__(attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim, dropout)
        # TODO 7: DecoderWithAdaptiveAttention.__init__
        #   self.W_x  nn.Linear  2 embed_dim -> decoder_dim
        #   self.W_h  nn.Linear  decoder_dim -> decoder_dim, without bias
        #   self.W_s  nn.Linear  decoder_dim -> attention_dim, without bias
        ### BEGIN SOLUTION
        self.W_x = nn.Linear(2 * embed_dim, decoder_dim)
        self.W_h = nn.Linear(decoder_dim, decoder_dim, bias=False)
        self.W_s = nn.Linear(decoder_dim, attention_dim, bias=False)
        ### END SOLUTION

    def sentinel(self, x, h_before, tanh_m):
        """s_t, eqs. 9 and 10: (batch_size, decoder_dim)"""
        # TODO 7: DecoderWithAdaptiveAttention.sentinel
        #   g = sigmoid(W_x x + W_h h_{t-1});  s = g * tanh_m, which is tanh(m_t) of the new cell state already
        ### BEGIN SOLUTION
        g = torch.sigmoid(self.W_x(x) + self.W_h(h_before))
        return g * tanh_m
        ### END SOLUTION

    def attend(self, V, keys, h, x, h_before, tanh_m):
        """As in the class above, but c^_t, and alpha^_t without its last entry."""
        # TODO 7: DecoderWithAdaptiveAttention.attend
        #   1. s = self.sentinel(...);  its score: w_h tanh(W_s s + W_g h)         (batch_size, 1)
        #   2. softmax over all scores together: first those of the pixels (self.score), last the sentinel's
        #                                                             (batch_size, num_pixels + 1)
        #   3. beta = the last entry, [:, -1:] to keep the dimension;  c^ = beta s + weighted_sum(the others, V)
        #   4. return c^, the others
        ### BEGIN SOLUTION
        s = self.sentinel(x, h_before, tanh_m)
        z_s = self.w_h(torch.tanh(self.W_s(s) + self.W_g(h)))
        alpha = torch.cat([self.score(keys, h), z_s], dim=1).softmax(dim=1)
        alpha, beta = alpha[:, :-1], alpha[:, -1:]
        return beta * s + weighted_sum(alpha, V), alpha
        ### END SOLUTION
