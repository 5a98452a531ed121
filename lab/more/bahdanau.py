"""Gated additive attention with ELU (after Bahdanau et al. 2015, arXiv 1409.0473)."""

import torch
from torch import nn
from torch.nn import functional as F

from lab.more.decoder import Decoder, weighted_sum
from models import flatten_pixels, init_word_layers


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


class DecoderWithBahdanauAttention(Decoder):
    """LSTM decoder with gated additive attention; made for ResNet-50's own grid of 8 x 8, but takes any.

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

    def step(self, words, state, memory):
        """See :class:`lab.more.decoder.Decoder`."""
        alpha, h, c = self.one_step(self.embedding(words), *memory, *state)
        return self.fc(self.dropout(h)), (h, c), alpha
