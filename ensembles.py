"""Several trained decoders that choose each word together."""

import torch
from torch import nn

from checkpoints import CaptionModel, load_model
from features import encoder_digest


class Ensemble(nn.Module):
    """Decoders of one vocabulary; the probability of a word is the mean of theirs, and so are the alphas.

    It has the interface of ``beam_search.py``, so greedy, beam and sampled captions come as from a single decoder.

    :param decoders: list of decoders with ``start`` and ``step``
    """

    def __init__(self, decoders):
        super().__init__()
        self.decoders = nn.ModuleList(decoders)

    def start(self, encoder_out):
        """:return: the states of all in one tuple, and their memories; how many each has is in ``self.sizes``"""
        starts = [decoder.start(encoder_out) for decoder in self.decoders]
        self.sizes = [[len(part) for part in start] for start in starts]
        return sum((tuple(state) for state, _ in starts), ()), sum((tuple(memory) for _, memory in starts), ())

    def step(self, words, state, memory):
        """
        :param words: (batch_size,) the word before
        :param state, memory: tuples of tensors (batch_size, ...), as ``start`` returns them
        :return: log of the mean probability (batch_size, vocab_size); new states of all in one tuple; mean alpha
            (batch_size, num_pixels), or None if one of the decoders has no attention
        """
        # TODO 13: Ensemble.step
        #   1. each decoder's own step on the words: of state and memory it takes the next self.sizes of them, in order
        #   2. the mean of the decoders' probabilities (softmax of their scores), and its log
        #      (log_softmax, logsumexp and log_softmax again do it without numbers too small to hold)
        #   3. the new states one after the other in a tuple; mean_alpha of the alphas
        ### BEGIN SOLUTION
        scores, states, alphas = [], (), []
        for decoder, (of_state, of_memory) in zip(self.decoders, self.sizes, strict=True):
            own, new, alpha = decoder.step(words, state[:of_state], memory[:of_memory])
            state, memory = state[of_state:], memory[of_memory:]
            scores.append(own.float().log_softmax(dim=1))
            states += tuple(new)
            alphas.append(alpha)
        scores = torch.stack(scores).logsumexp(dim=0).log_softmax(dim=1)  # the sum, and divided by their number
        return scores, states, mean_alpha(alphas)
        ### END SOLUTION


def mean_alpha(alphas):
    """:return: the mean of several (batch_size, num_pixels), or None if one of them is None"""
    return None if any(alpha is None for alpha in alphas) else torch.stack(alphas).mean(dim=0)


def load_ensemble(paths, device=None):
    """An ensemble of checkpoints, to caption and evaluate with as with a single model.

    :param paths: checkpoint files of decoders with one vocabulary and one encoder
    :return: :class:`checkpoints.CaptionModel`, called 'Ensemble'
    :raises ValueError: none at all, or others' vocabulary, encoder or grid
    """
    if not paths:
        raise ValueError('an ensemble needs at least one checkpoint')
    models = [load_model(path, device) for path in paths]
    first = models[0]
    for path, model in zip(paths, models, strict=True):
        for what, one, other in (
                ('vocabulary', model.word_map, first.word_map),
                ('encoder', encoder_digest(model.encoder), encoder_digest(first.encoder)),
                ('encoded_image_size', model.encoder.encoded_image_size, first.encoder.encoded_image_size)):
            if one != other:
                raise ValueError(f'{path} has another {what} than {paths[0]}: they cannot caption together')
    decoder = Ensemble([model.decoder for model in models]).eval()
    return CaptionModel(first.encoder, decoder, first.word_map, {**first.settings, 'decoder': 'ensembles.Ensemble'})
