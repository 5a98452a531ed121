"""Scaled dot-product attention (Vaswani et al. 2017, arXiv 1706.03762), one head or more, and deep output."""

import torch
from torch import nn
from torch.nn import functional as F

from lab.more.decoder import Decoder
from models import flatten_pixels, init_word_layers


class ScaledDotProductAttention(nn.Module):
    """softmax(q k^T / sqrt(d)) v   (Vaswani et al. 2017, arXiv 1706.03762, eq. 1)

    The query comes from the hidden state, the keys from the cells, and the values are the cells themselves. Softmax is
    over the keys: over the queries (there is only one) every weight would be 1, wherever the decoder looks.

    :param encoder_dim, decoder_dim: channels of a cell, and length of h
    :param attention_dim: length of query and keys, of all heads together
    :param heads: with several, each compares its own part of query and keys, and sums up its own part of the channels
        (without the paper's projections W^V and W^O); their number divides attention_dim and encoder_dim
    """

    def __init__(self, encoder_dim, decoder_dim, attention_dim, heads=1):
        super().__init__()
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


class CaptionNet(Decoder):
    """LSTM decoder with scaled dot-product attention and deep output. Its parts are from papers, the whole from none.

        h_0 = tanh(W_h0 mean(cells)),  c_0 = tanh(W_c0 mean(cells))       (*Show, Attend and Tell*, sec. 3.1.2)
        context = attention(cells, h_{t-1})                   (Vaswani et al. 2017, arXiv 1706.03762, eq. 1)
        h_t, c_t = LSTM([w_t; context], h_{t-1}, c_{t-1})     (Xu et al. 2015, arXiv 1502.03044, eqs. 1 to 3)
        p = softmax(MLP([h_t; context; w_t]))                 (deep output, Xu et al. eq. 7, with a tanh)

    :param attention_dim, embed_dim, decoder_dim, vocab_size: as in :class:`DecoderWithSpatialAttention`
    :param encoder_dim: channels
    :param dropout: probability of dropping an entry of the MLP's hidden layer
    :param heads: of the attention
    """

    def __init__(self, attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim=512, dropout=0.5, heads=1):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.init_h = nn.Linear(encoder_dim, decoder_dim)
        self.init_c = nn.Linear(encoder_dim, decoder_dim)
        self.attention = ScaledDotProductAttention(encoder_dim, decoder_dim, attention_dim, heads)
        self.decode_step = nn.LSTMCell(embed_dim + encoder_dim, decoder_dim)
        self.deep = nn.Linear(decoder_dim + encoder_dim + embed_dim, decoder_dim)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(decoder_dim, vocab_size)
        init_word_layers(self)

    def one_step(self, embeddings, cells, keys, h, c):
        """Look, and read one word.

        :param embeddings: (batch_size, embed_dim); ``cells``: (batch_size, num_pixels, encoder_dim)
        :param keys: of the cells (batch_size, num_pixels, attention_dim); ``h``, ``c``: (batch_size, decoder_dim)
        :return: [h; context; embedding] (batch_size, decoder_dim + encoder_dim + embed_dim), alpha (batch_size,
            num_pixels), new h and c (batch_size, decoder_dim)
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
        :param encoder_out: (batch_size, h, w, encoder_dim) or (batch_size, num_pixels, encoder_dim)
        :return: first state (h, c), each (batch_size, decoder_dim); memory: cells (batch_size, num_pixels, encoder_dim)
            and keys (batch_size, num_pixels, attention_dim)
        """
        # TODO 10: CaptionNet.start
        #   1. the cells: flatten_pixels of the grid; and their mean
        #   2. h and c: each the tanh of its own Linear layer on the mean
        #   3. return (h, c), (cells, the attention's keys of the cells)
        ### BEGIN SOLUTION
        cells = flatten_pixels(encoder_out)
        mean = cells.mean(dim=1)
        return (torch.tanh(self.init_h(mean)), torch.tanh(self.init_c(mean))), (cells, self.attention.key(cells))
        ### END SOLUTION

    def step(self, words, state, memory):
        """See :class:`lab.more.decoder.Decoder`."""
        output, alpha, h, c = self.one_step(self.embedding(words), *memory, *state)
        return self.word_scores(output), (h, c), alpha

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
