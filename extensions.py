"""Decoders beyond the lab's two, each after its paper: ideas for your own improvement, and to compare with.

The notebooks train any of them, by ``decoder`` in the settings:

==============================================  =====================================================================
'extensions.DecoderWithAdaptiveAttention'       a visual sentinel: when to look, and where (Lu et al. 2017)
'extensions.DecoderWithSpatialAttention'        the same without the sentinel
'extensions.DecoderWithBahdanauAttention'       gated additive attention with ELU, scheduled sampling
'extensions.CaptionNet'                         scaled dot-product attention, one head or more, deep output
'extensions.DecoderWithCell'                    the plain decoder with an RNN, GRU or LSTM cell
==============================================  =====================================================================

Options of a class go into ``decoder_options``, such as ``dict(heads=2)``. Sizes in the shapes below are called as in
``models.py``; ``steps`` is the number of words to predict in the longest caption of the batch.

Each class has what beam search and training ask for: ``start``, ``step`` and ``forward`` as in ``models.py``, and
``one_step``, which is the paper's equations.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lean import packed_lstm
from models import Encoder, flatten_pixels, init_word_layers


def longest_first(encoder_out, encoded_captions, caption_lengths):
    """Sort a batch as packed sequences want it.

    :return: encoder_out and captions in that order, decode lengths (list), sort indices
    """
    lengths, sort_ind = caption_lengths.flatten().sort(descending=True, stable=True)
    sort_ind = sort_ind.to(encoder_out.device)
    return encoder_out[sort_ind], encoded_captions[sort_ind], (lengths - 1).tolist(), sort_ind


def running(decode_lengths, device):
    """:return: (batch_size, steps) bool: whether a caption still has a word to predict at a step"""
    lengths = torch.tensor(decode_lengths, device=device)
    return torch.arange(max(decode_lengths), device=device) < lengths.unsqueeze(1)


# --- Adaptive attention: when to look ---


class DecoderWithSpatialAttention(nn.Module):
    """The spatial attention model of *Knowing When to Look* (Lu et al. 2017, arXiv 1612.01887), sec. 2.2.

    The *new* hidden state looks (in *Show, Attend and Tell* the old one does), and what it sees goes into the word's
    score, not into the LSTM:

        v_i = ReLU(W_a a_i),  v_g = ReLU(W_b mean(a)),  x_t = [w_t; v_g]          (eqs. 14 to 16)
        h_t, m_t = LSTM(x_t, h_{t-1}, m_{t-1})                                    (eq. 4)
        z_t = w_h^T tanh(W_v V + W_g h_t),  alpha_t = softmax(z_t)                (eqs. 6, 7)
        c_t = sum over i of alpha_ti v_ti                                         (eq. 8)
        p = softmax(W_p (c_t + h_t))                                              (eq. 3; as eq. 13)

    Since c_t does not come back into the LSTM, ``forward`` runs the LSTM over all words in one call, and attention over
    all steps at once. The attention's width is ``attention_dim``; the paper has the number of cells there (W_v and W_g
    are k x d), which ties it to the grid: with 49 cells, 49 numbers to compare h and v_i by.

    :param attention_dim: length of the vectors that are compared
    :param embed_dim: length of a word vector
    :param decoder_dim: length of h, m, v_i and of the sentinel
    :param vocab_size: number of words
    :param encoder_dim: channels of the encoder's grid
    :param dropout: probability of dropping an entry of c_t + h_t
    """

    def __init__(self, attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim=2048, dropout=0.5):
        super().__init__()
        self.vocab_size = vocab_size
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
        :param h, h_before, tanh_m: (batch_size, ..., decoder_dim) new and old hidden state, tanh of the new cell state;
            in between a dimension of steps, or none
        :param x: (batch_size, ..., 2 embed_dim) the LSTM's input
        :return: c_t (batch_size, ..., decoder_dim), alpha (batch_size, ..., num_pixels)
        """
        # TODO 6: DecoderWithSpatialAttention.attend
        #   1. alpha = softmax of self.score(keys, h) over the pixels: the last dimension, one of steps may come before
        #   2. c = weighted_sum(alpha, V)
        ### BEGIN SOLUTION
        z = self.score(keys, h)
        alpha = z.softmax(dim=-1)
        return weighted_sum(alpha, V), alpha
        ### END SOLUTION

    def score(self, keys, h):
        """z_t = w_h^T tanh(W_v V + W_g h_t), eq. 6: (batch_size, ..., num_pixels)"""
        keys = keys.view(len(keys), *[1] * (h.dim() - 2), *keys.shape[1:])  # the same at each step
        return self.w_h(torch.tanh(keys + self.W_g(h).unsqueeze(-2))).squeeze(-1)

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

    def forward(self, encoder_out, encoded_captions, caption_lengths):
        """Teacher forcing, all steps at once; parameters as of ``models.DecoderWithAttention.forward``.

        :return: predictions, a ``PackedSequence`` of (words, vocab_size); sorted captions; decode lengths;
            alphas (batch_size, steps, num_pixels), zero past a caption's end; sort indices
        """
        encoder_out, captions, decode_lengths, sort_ind = longest_first(encoder_out, encoded_captions, caption_lengths)
        steps = max(decode_lengths)
        V, keys, v_g = self.look(flatten_pixels(encoder_out))
        words = self.embedding(captions[:, :steps])
        x = torch.cat([words, v_g.unsqueeze(1).expand(-1, steps, -1)], dim=2)
        h, tanh_m = self.all_states(x, decode_lengths)
        h_before = F.pad(h, (0, 0, 1, 0))[:, :-1]  # h_0 = 0
        c, alphas = self.attend(V, keys, h, x, h_before, tanh_m)
        seen = pack_padded_sequence(c + h, decode_lengths, batch_first=True)
        predictions = seen._replace(data=self.fc(self.dropout(seen.data)))
        alphas = alphas * running(decode_lengths, h.device).unsqueeze(2)
        return predictions, captions, decode_lengths, alphas, sort_ind

    def all_states(self, x, decode_lengths):
        """One LSTM call over all words, from zero states: h and tanh(m) (batch_size, steps, decoder_dim)."""
        packed = pack_padded_sequence(x, decode_lengths, batch_first=True)
        zero = self.decode_step.weight_hh.new_zeros(len(x), self.decode_step.hidden_size)
        states = packed_lstm(self.decode_step, packed.data, zero, zero, packed.batch_sizes)
        return (pad_packed_sequence(packed._replace(data=data), batch_first=True)[0] for data in states)

    def start(self, encoder_out):
        """
        :param encoder_out: (batch_size, h, w, encoder_dim) or (batch_size, num_pixels, encoder_dim)
        :return: first state, h and m of zeros (batch_size, decoder_dim); memory: V, keys and v_g as of ``look``
        """
        V, keys, v_g = self.look(flatten_pixels(encoder_out))
        zero = V.new_zeros(len(V), self.decode_step.hidden_size)
        return (zero, zero), (V, keys, v_g)

    def step(self, words, state, memory):
        """
        :param words: (batch_size,); ``state``, ``memory``: as ``start`` returns them
        :return: scores of the next word (batch_size, vocab_size), new state, alpha (batch_size, num_pixels)
        """
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
        #   self.W_x  nn.Linear  2 embed_dim -> decoder_dim;  self.W_h  decoder_dim -> decoder_dim, without bias
        #   self.W_s  nn.Linear  decoder_dim -> attention_dim, without bias
        ### BEGIN SOLUTION
        self.W_x = nn.Linear(2 * embed_dim, decoder_dim)
        self.W_h = nn.Linear(decoder_dim, decoder_dim, bias=False)
        self.W_s = nn.Linear(decoder_dim, attention_dim, bias=False)
        ### END SOLUTION

    def sentinel(self, x, h_before, tanh_m):
        """s_t, eqs. 9 and 10: (batch_size, ..., decoder_dim)"""
        # TODO 7: DecoderWithAdaptiveAttention.sentinel
        #   g = sigmoid(W_x x + W_h h_{t-1});  s = g * tanh_m, which is tanh(m_t) of the new cell state already
        ### BEGIN SOLUTION
        g = torch.sigmoid(self.W_x(x) + self.W_h(h_before))
        return g * tanh_m
        ### END SOLUTION

    def attend(self, V, keys, h, x, h_before, tanh_m):
        """As in the class above, but c^_t, and alpha^_t without its last entry."""
        # TODO 7: DecoderWithAdaptiveAttention.attend
        #   1. s = self.sentinel(...);  its score: w_h tanh(W_s s + W_g h)         (batch_size, ..., 1)
        #   2. softmax over all scores together: first those of the pixels (self.score), last the sentinel's, along the
        #      last dimension                                        (batch_size, ..., num_pixels + 1)
        #   3. beta = the last entry, [..., -1:] to keep the dimension;  c^ = beta s + weighted_sum(the others, V)
        #   4. return c^, the others
        ### BEGIN SOLUTION
        s = self.sentinel(x, h_before, tanh_m)
        z_s = self.w_h(torch.tanh(self.W_s(s) + self.W_g(h)))
        alpha = torch.cat([self.score(keys, h), z_s], dim=-1).softmax(dim=-1)
        alpha, beta = alpha[..., :-1], alpha[..., -1:]
        return beta * s + weighted_sum(alpha, V), alpha
        ### END SOLUTION


def weighted_sum(alpha, V):
    """sum over i of alpha_i v_i

    :param alpha: (batch_size, num_pixels), or (batch_size, steps, num_pixels); ``V``: (batch_size, num_pixels, d)
    :return: (batch_size, d), or (batch_size, steps, d)
    """
    if alpha.dim() == 2:
        return torch.bmm(alpha.unsqueeze(1), V).squeeze(1)
    return torch.bmm(alpha, V)


# --- Decoders that go word by word ---


class WordByWord(nn.Module):
    """``step`` and ``forward`` for decoders in which each word's context depends on the word before.

    A decoder has ``start``, and

    - ``read(words, state, memory) -> output, state, alpha``: all of a step but the vocabulary layer. ``words`` are
      (n,), each tensor of state and memory has n rows, ``output`` is (n, ...), ``alpha`` (n, num_pixels) or None;
    - ``word_scores(output) -> (n, vocab_size)``: this layer, which ``forward`` runs once for all words.

    **Scheduled sampling** (Bengio et al. 2015, arXiv 1506.03099): in training each word that is fed is the true one
    with probability ``teacher_forcing``, else one drawn from the decoder's own scores; 1.0 is plain teacher forcing.
    """

    teacher_forcing = 1.0

    def step(self, words, state, memory):
        """
        :param words: (batch_size,); ``state``, ``memory``: as ``start`` returns them
        :return: scores of the next word (batch_size, vocab_size), new state, alpha (batch_size, num_pixels), or None
            without attention
        """
        output, state, alpha = self.read(words, state, memory)
        return self.word_scores(output), state, alpha

    def forward(self, encoder_out, encoded_captions, caption_lengths):
        """Teacher forcing, or scheduled sampling; parameters as of ``models.DecoderWithAttention.forward``.

        :return: predictions, a ``PackedSequence`` of (words, vocab_size); sorted captions; decode lengths;
            with attention: alphas (batch_size, steps, num_pixels), zero past a caption's end; sort indices
        """
        encoder_out, captions, decode_lengths, sort_ind = longest_first(encoder_out, encoded_captions, caption_lengths)
        state, memory = self.start(encoder_out)
        words, outputs, alphas = captions[:, 0], [], []
        sizes = [sum(length > t for length in decode_lengths) for t in range(max(decode_lengths))]
        for t, n in enumerate(sizes):  # of captions sorted by length, the first n are still running
            state, memory = (tuple(value[:n] for value in values) for values in (state, memory))
            output, state, alpha = self.read(words[:n], state, memory)
            outputs.append(output)
            alphas.append(alpha)
            words = captions[:, t + 1]
            if self.training and self.teacher_forcing < 1:
                with torch.no_grad():
                    words = true_or_own(words[:n], self.word_scores(output), self.teacher_forcing)
        predictions = nn.utils.rnn.PackedSequence(self.word_scores(torch.cat(outputs)), torch.tensor(sizes))
        if alphas[0] is None:
            return predictions, captions, decode_lengths, sort_ind
        alphas = torch.stack([F.pad(alpha, (0, 0, 0, sizes[0] - len(alpha))) for alpha in alphas], dim=1)
        return predictions, captions, decode_lengths, alphas, sort_ind


class DecoderWithCell(WordByWord):
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
    :raises ValueError: another cell; and in training a batch of one caption, for which batch norm has no variance
    """

    def __init__(self, embed_dim, decoder_dim, vocab_size, encoder_dim=2048, dropout=0.5, cell='GRU'):
        super().__init__()
        cells = dict(RNN=nn.RNNCell, GRU=nn.GRUCell, LSTM=nn.LSTMCell)
        if not isinstance(cell, str) or cell not in cells:
            raise ValueError(f"cell is {cell!r}; it must be one of {', '.join(map(repr, cells))}")
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.init = nn.Linear(encoder_dim, embed_dim)
        self.bn = nn.BatchNorm1d(embed_dim)
        self.decode_step = cells[cell](embed_dim, decoder_dim)
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
        #   self.decode_step takes embeddings and state: an LSTM cell (h, c) and gives (h, c), the others h alone.
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

    def read(self, words, state, memory):
        """See :class:`WordByWord`."""
        state = self.one_step(self.embedding(words), *state)
        return state[0], state, None

    def word_scores(self, h):
        """(n, decoder_dim) to (n, vocab_size)"""
        return self.fc(self.dropout(h))


class ResNetEncoder(Encoder):
    """ResNet-50 without its pooling and its last layer (He et al. 2016, arXiv 1512.03385).

    ``forward`` takes (batch_size, 3, 256, 256) uint8 pictures and returns (batch_size, 8, 8, 2048).

    :param weights: as in ``models.Encoder``
    """

    def __init__(self, weights='DEFAULT'):
        super().__init__('resnet50', encoded_image_size=None, weights=weights)


class BahdanauAttention(nn.Module):
    """Additive attention (Bahdanau et al. 2015, arXiv 1409.0473, eqs. 5, 6 and A.1.2), with ELU in place of tanh.

        e_i = v^T ELU(W h + U a_i),  alpha = softmax(e),  context = sum over i of alpha_i a_i

    :param encoder_dim, decoder_dim: length of an a_i, and of h
    :param attention_dim: length of the vectors that are added
    """

    def __init__(self, encoder_dim, decoder_dim, attention_dim):
        super().__init__()
        self.W = nn.Linear(decoder_dim, attention_dim)
        self.U = nn.Linear(encoder_dim, attention_dim)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, encoder_out, h, keys=None):
        """
        :param encoder_out: (batch_size, num_pixels, encoder_dim); ``h``: (batch_size, decoder_dim)
        :param keys: U a_i (batch_size, num_pixels, attention_dim), if the caller has them
        :return: context (batch_size, encoder_dim), alpha (batch_size, num_pixels)
        """
        # TODO 9: BahdanauAttention.forward
        #   1. keys = U(encoder_out), if there are none            (batch_size, num_pixels, attention_dim)
        #   2. e = v(ELU(W(h) + keys)), the last dimension dropped  (batch_size, num_pixels)
        #   3. alpha = softmax over the pixels; context = weighted_sum(alpha, encoder_out)
        ### BEGIN SOLUTION
        keys = self.U(encoder_out) if keys is None else keys
        e = self.v(F.elu(self.W(h).unsqueeze(1) + keys)).squeeze(2)
        alpha = e.softmax(dim=1)
        return weighted_sum(alpha, encoder_out), alpha
        ### END SOLUTION


class DecoderWithBahdanauAttention(WordByWord):
    """LSTM decoder with gated additive attention; made for :class:`ResNetEncoder`, but takes any grid.

    First state and gate are those of *Show, Attend and Tell* (Xu et al. 2015, arXiv 1502.03044), sec. 3.1.2 and 4.2.1
    (a gate per channel; in the paper one number for all of the context):

        h_0 = tanh(W_h0 mean(a)),  c_0 = tanh(W_c0 mean(a))
        context = sigmoid(f_beta(h_{t-1})) * BahdanauAttention(a, h_{t-1})
        h_t, c_t = LSTM([w_t; context], h_{t-1}, c_{t-1}),  p = softmax(fc(h_t))

    :param attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim: as in :class:`DecoderWithSpatialAttention`
    :param dropout: probability of dropping an entry of h before the vocabulary layer
    """

    def __init__(self, attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim=2048, dropout=0.5):
        super().__init__()
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.init_h = nn.Linear(encoder_dim, decoder_dim)
        self.init_c = nn.Linear(encoder_dim, decoder_dim)
        self.attention = BahdanauAttention(encoder_dim, decoder_dim, attention_dim)
        self.f_beta = nn.Linear(decoder_dim, encoder_dim)
        self.decode_step = nn.LSTMCell(embed_dim + encoder_dim, decoder_dim)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(decoder_dim, vocab_size)
        init_word_layers(self)

    def one_step(self, embeddings, encoder_out, keys, h, c):
        """Look, and read one word.

        :param embeddings: (batch_size, embed_dim); ``encoder_out``: (batch_size, num_pixels, encoder_dim)
        :param keys: U a_i (batch_size, num_pixels, attention_dim); ``h``, ``c``: (batch_size, decoder_dim)
        :return: alpha (batch_size, num_pixels), new h, new c (batch_size, decoder_dim)
        """
        # TODO 9: DecoderWithBahdanauAttention.one_step
        #   1. context, alpha from the attention of the old h, which is handed the keys
        #   2. the gate sigmoid(f_beta(h)) scales the context
        #   3. the LSTM on [embedding; gated context]
        ### BEGIN SOLUTION
        context, alpha = self.attention(encoder_out, h, keys)
        gate = torch.sigmoid(self.f_beta(h))
        h, c = self.decode_step(torch.cat([embeddings, gate * context], dim=1), (h, c))
        return alpha, h, c
        ### END SOLUTION

    def start(self, encoder_out):
        """
        :param encoder_out: (batch_size, h, w, encoder_dim) or (batch_size, num_pixels, encoder_dim)
        :return: first state (h, c), each (batch_size, decoder_dim); memory: pixels (batch_size, num_pixels,
            encoder_dim) and keys U a_i (batch_size, num_pixels, attention_dim)
        """
        # TODO 9: DecoderWithBahdanauAttention.start
        #   1. the pixels in one row, by flatten_pixels, and their mean
        #   2. h and c: each the tanh of its own Linear layer on the mean
        #   3. return (h, c), (pixels, keys); the keys are the attention's U of the pixels
        ### BEGIN SOLUTION
        encoder_out = flatten_pixels(encoder_out)
        mean = encoder_out.mean(dim=1)
        state = torch.tanh(self.init_h(mean)), torch.tanh(self.init_c(mean))
        return state, (encoder_out, self.attention.U(encoder_out))
        ### END SOLUTION

    def read(self, words, state, memory):
        """See :class:`WordByWord`."""
        alpha, h, c = self.one_step(self.embedding(words), *memory, *state)
        return h, (h, c), alpha

    def word_scores(self, h):
        """(n, decoder_dim) to (n, vocab_size)"""
        return self.fc(self.dropout(h))


class EncoderDecoder(nn.Module):
    """An encoder and a decoder with attention as one module, from pixels to scores: p(w_t | picture, w_1 ... w_{t-1}).

    :param encoder: such as :class:`ResNetEncoder`
    :param decoder: one with attention of this file, such as :class:`DecoderWithBahdanauAttention`
    """

    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, images, encoded_captions, caption_lengths):
        """
        :param images: (batch_size, 3, H, W)
        :return: logits (batch_size, steps, vocab_size) and alphas (batch_size, steps, num_pixels), both zero past a
            caption's end; sorted targets (batch_size, steps), <pad> = 0 past the end; decode lengths; sort indices
        """
        predictions, captions, decode_lengths, alphas, sort_ind = self.decoder(
            self.encoder(images), encoded_captions, caption_lengths)
        logits, _ = pad_packed_sequence(predictions, batch_first=True)
        targets = captions[:, 1:max(decode_lengths) + 1] * running(decode_lengths, captions.device)
        return logits, alphas, targets, decode_lengths, sort_ind


class ScaledDotProductAttention(nn.Module):
    """softmax(q k^T / sqrt(d)) v   (Vaswani et al. 2017, arXiv 1706.03762, eq. 1)

    The query comes from the hidden state, the keys from the cells, and the values are the cells themselves. Softmax is
    over the keys: over the queries (there is only one) every weight would be 1, wherever the decoder looks.

    :param encoder_dim, decoder_dim: channels of a cell, and length of h
    :param attention_dim: length of query and keys, of all heads together
    :param heads: with several, each compares its own part of query and keys, and sums up its own part of the channels
        (without the paper's projections W^V and W^O)
    :raises ValueError: sizes that the heads cannot share
    """

    def __init__(self, encoder_dim, decoder_dim, attention_dim, heads=1):
        super().__init__()
        if type(heads) is not int or heads < 1 or attention_dim % heads or encoder_dim % heads:
            raise ValueError(f'heads is {heads!r}; it must be a whole number that divides attention_dim '
                             f'({attention_dim}) and the channels of the grid ({encoder_dim})')
        self.heads = heads
        self.query = nn.Linear(decoder_dim, attention_dim)
        self.key = nn.Linear(encoder_dim, attention_dim)

    def forward(self, cells, h, keys=None):
        """
        :param cells: (batch_size, num_pixels, encoder_dim); ``h``: (batch_size, decoder_dim)
        :param keys: key(cells) (batch_size, num_pixels, attention_dim), if the caller has them
        :return: context (batch_size, encoder_dim); alpha (batch_size, num_pixels), the mean over the heads
        """
        # TODO 10: ScaledDotProductAttention.forward
        #   1. keys = key(cells), if there are none;  q from h, k the keys, v the cells, each split among the heads: the
        #      first head has the first channels        (batch_size, heads, 1 or num_pixels, its part of the channels:
        #      attention_dim / heads in q and k, encoder_dim / heads in v)
        #   2. context = F.scaled_dot_product_attention(q, k, v), the heads side by side again:
        #                                                      (batch_size, encoder_dim)
        #   3. alpha = softmax of q k^T / sqrt(attention_dim / heads) over the keys, the mean over the heads
        ### BEGIN SOLUTION
        keys = self.key(cells) if keys is None else keys
        q, k, v = (values.unflatten(2, (self.heads, -1)).transpose(1, 2)  # (batch_size, heads, ..., channels of a head)
                   for values in (self.query(h).unsqueeze(1), keys, cells))
        context = F.scaled_dot_product_attention(q, k, v).flatten(1)
        alpha = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).softmax(dim=-1)  # which that does not return
        return context, alpha.mean(dim=1).squeeze(1)
        ### END SOLUTION


class CaptionNet(WordByWord):
    """LSTM decoder with scaled dot-product attention and deep output. Its parts are from papers, the whole from none.

        h_0 = tanh(W_h0 mean(cells)),  c_0 = tanh(W_c0 mean(cells))       (*Show, Attend and Tell*, sec. 3.1.2)
        context = attention(cells, h_{t-1})                   (Vaswani et al. 2017, arXiv 1706.03762, eq. 1)
        h_t, c_t = LSTM([w_t; context], h_{t-1}, c_{t-1})     (Xu et al. 2015, arXiv 1502.03044, eqs. 1 to 3)
        p = softmax(MLP([h_t; context; w_t]))                 (deep output, its eq. 7, with a tanh)

    The grid is (batch_size, h, w, channels) or (batch_size, cells, channels) as everywhere in this lab, or
    (batch_size, channels, cells), as VGG features often come; where there are as many cells as channels, the
    channels are taken to come last.

    :param attention_dim, embed_dim, decoder_dim, vocab_size: as in :class:`DecoderWithSpatialAttention`
    :param encoder_dim: channels
    :param dropout: probability of dropping an entry of the MLP's hidden layer
    :param heads: of the attention
    :raises ValueError: heads that :class:`ScaledDotProductAttention` refuses
    """

    def __init__(self, attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim=512, dropout=0.5, heads=1):
        super().__init__()
        self.vocab_size, self.encoder_dim = vocab_size, encoder_dim
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.init_h = nn.Linear(encoder_dim, decoder_dim)
        self.init_c = nn.Linear(encoder_dim, decoder_dim)
        self.attention = ScaledDotProductAttention(encoder_dim, decoder_dim, attention_dim, heads)
        self.decode_step = nn.LSTMCell(embed_dim + encoder_dim, decoder_dim)
        self.deep = nn.Linear(decoder_dim + encoder_dim + embed_dim, decoder_dim)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(decoder_dim, vocab_size)
        init_word_layers(self)

    def cells(self, features):
        """:return: (batch_size, cells, channels)

        :raises ValueError: features with another number of channels
        """
        if features.shape[-1] == self.encoder_dim:
            return flatten_pixels(features)
        if features.dim() == 3 and features.shape[1] == self.encoder_dim:
            return features.transpose(1, 2)
        raise ValueError(f'the features are {tuple(features.shape)}, and neither the last nor, of three, the second '
                         f'number is encoder_dim, {self.encoder_dim}')

    def one_step(self, embeddings, cells, keys, h, c):
        """Look, and read one word.

        :param embeddings: (batch_size, embed_dim); ``cells``: (batch_size, num_cells, encoder_dim)
        :param keys: of the cells (batch_size, num_cells, attention_dim); ``h``, ``c``: (batch_size, decoder_dim)
        :return: [h; context; embedding] (batch_size, decoder_dim + encoder_dim + embed_dim), alpha (batch_size,
            num_cells), new h and c (batch_size, decoder_dim)
        """
        # TODO 10: CaptionNet.one_step
        #   1. context, alpha from the attention of the old h, which is handed the keys
        #   2. the LSTM on [embedding; context]
        #   3. return [new h; context; embedding], alpha, new h, new c
        ### BEGIN SOLUTION
        context, alpha = self.attention(cells, h, keys)
        h, c = self.decode_step(torch.cat([embeddings, context], dim=1), (h, c))
        return torch.cat([h, context, embeddings], dim=1), alpha, h, c
        ### END SOLUTION

    def start(self, encoder_out):
        """
        :param encoder_out: as above
        :return: first state (h, c), each (batch_size, decoder_dim); memory: cells (batch_size, num_cells, encoder_dim)
            and keys (batch_size, num_cells, attention_dim)
        """
        # TODO 10: CaptionNet.start
        #   1. self.cells of the grid, and their mean
        #   2. h and c: each the tanh of its own Linear layer on the mean
        #   3. return (h, c), (cells, the attention's keys of the cells)
        ### BEGIN SOLUTION
        cells = self.cells(encoder_out)
        mean = cells.mean(dim=1)
        return (torch.tanh(self.init_h(mean)), torch.tanh(self.init_c(mean))), (cells, self.attention.key(cells))
        ### END SOLUTION

    def read(self, words, state, memory):
        """See :class:`WordByWord`."""
        output, alpha, h, c = self.one_step(self.embedding(words), *memory, *state)
        return output, (h, c), alpha

    def word_scores(self, output):
        """Deep output.

        :param output: [h; context; embedding] (n, decoder_dim + encoder_dim + embed_dim)
        :return: (n, vocab_size)
        """
        # TODO 10: CaptionNet.word_scores
        #   the MLP: deep, tanh, dropout, fc
        ### BEGIN SOLUTION
        return self.fc(self.dropout(torch.tanh(self.deep(output))))
        ### END SOLUTION


# --- Scheduled sampling ---


def true_or_own(true_words, scores, teacher_forcing):
    """The words that a decoder is fed in training (Bengio et al. 2015, arXiv 1506.03099, sec. 2.4).

    :param true_words: (n,) what people said
    :param scores: (n, vocab_size) the decoder's own, before softmax
    :param teacher_forcing: probability of the true word
    :return: (n,) each the true word with this probability, else one drawn from softmax(scores)
    """
    # TODO 11: true_or_own
    #   1. own: a word for each row, drawn from the softmax of its scores (torch.multinomial gives (n, 1))
    #   2. a random number between 0 and 1 for each row, on the device of the scores: below teacher_forcing it is the
    #      true word (torch.where)
    ### BEGIN SOLUTION
    own = torch.multinomial(scores.float().softmax(dim=1), 1).squeeze(1)
    take_true = torch.rand(len(own), device=own.device) < teacher_forcing
    return torch.where(take_true, true_words, own)
    ### END SOLUTION
