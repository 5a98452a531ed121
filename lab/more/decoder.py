"""The base class for a decoder of your own: you write ``start`` and ``step``, and have ``forward`` from here.

    class MyDecoder(Decoder):                       # in my_decoder.py, beside models.py
        def __init__(self, embed_dim, decoder_dim, vocab_size, encoder_dim=2048, dropout=0.5): ...
        def start(self, encoder_out): ...           # the picture -> first state, memory
        def step(self, words, state, memory): ...   # the word before -> scores of the next word, new state, alpha

Its ``__init__`` gets those sizes that it names (``attention_dim``, ``embed_dim``, ``decoder_dim``, ``vocab_size``,
``encoder_dim``, ``dropout``), and what the setting ``decoder_options`` holds. ``models.flatten_pixels`` makes a list of
pixels of the grid. Train it with ``decoder='my_decoder.MyDecoder'`` in the settings. ``caption.ipynb`` shows how far a
gate is open at each word if its layer has the same name as in ``models.py``.
"""

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence


class Decoder(nn.Module):
    """``forward`` for a decoder that has ``start`` and ``step``: teacher forcing, word by word.

    - ``start(encoder_out)``: the grid (batch_size, h, w, encoder_dim) -> first state, and memory, which is the same for
      every word; each a tuple of tensors (batch_size, ...): ``(h,)`` if it is only one
    - ``step(words, state, memory)``: the word before (batch_size,) -> scores of the next word (batch_size, vocab_size),
      before softmax; new state; alpha (batch_size, num_pixels), or None without attention

    **Scheduled sampling** (Bengio et al. 2015, arXiv 1506.03099): each word that is fed is the true one with
    probability ``teacher_forcing``, else one drawn from the decoder's own scores; 1.0 is plain teacher forcing.
    """

    def forward(self, encoder_out, encoded_captions, caption_lengths, teacher_forcing=1.0):
        """Teacher forcing, or scheduled sampling; parameters as of ``models.DecoderWithAttention.forward``.

        :param teacher_forcing: probability of the true word
        :return: predictions, a ``PackedSequence`` of (words, vocab_size); sorted captions; decode lengths;
            with attention: alphas (batch_size, steps, num_pixels), zero past a caption's end; sort indices
        """
        lengths, sort_ind = caption_lengths.flatten().sort(descending=True, stable=True)
        sort_ind = sort_ind.to(encoder_out.device)
        decode_lengths = (lengths - 1).tolist()
        captions = encoded_captions[sort_ind]
        state, memory = self.start(encoder_out[sort_ind])
        words, predictions, alphas = captions[:, 0], [], []
        sizes = [sum(length > t for length in decode_lengths) for t in range(max(decode_lengths))]
        for t, n in enumerate(sizes):  # of captions sorted by length, the first n are still running
            state, memory = (tuple(value[:n] for value in values) for values in (state, memory))
            scores, state, alpha = self.step(words[:n], state, memory)
            predictions.append(scores)
            alphas.append(alpha)
            words = captions[:, t + 1]
            if teacher_forcing < 1:
                words = true_or_own(words[:n], scores.detach(), teacher_forcing)
        predictions = PackedSequence(torch.cat(predictions), torch.tensor(sizes))
        if alphas[0] is None:
            return predictions, captions, decode_lengths, sort_ind
        alphas, _ = pad_packed_sequence(PackedSequence(torch.cat(alphas), torch.tensor(sizes)), batch_first=True)
        return predictions, captions, decode_lengths, alphas, sort_ind


def weighted_sum(alpha, V):
    """sum over i of alpha_i v_i

    :param alpha: (batch_size, num_pixels); ``V``: (batch_size, num_pixels, d)
    :return: (batch_size, d)
    """
    return torch.einsum('bp,bpd->bd', alpha, V)


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
