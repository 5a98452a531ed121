"""Several trained decoders that choose each word together."""

import itertools

import torch
from torch import nn

from lab.train.checkpoints import load_model
from lab.train.features import encoder_digest
from lab.train.model import CaptionModel


class Ensemble(nn.Module):
    """Decoders of one vocabulary: the probability of a word is the mean over the decoders, and so is each alpha.

    It has the interface of ``beam_search.py``, so greedy, beam and sampled captions come as from a single decoder.

    :param decoders: list of decoders with ``start`` and ``step``
    :param channels: for each decoder a slice, which channels of the grid are for it; None: all for everyone
    """

    def __init__(self, decoders, channels=None):
        super().__init__()
        self.decoders = nn.ModuleList(decoders)
        self.channels = channels or [slice(None)] * len(decoders)

    def start(self, encoder_out):
        """
        :param encoder_out: (batch_size, h, w, channels)
        :return: the states of all in one tuple, and their memories; ``self.sizes[i]``: how many states and memories
            decoder i has
        """
        starts = [decoder.start(encoder_out[..., own])
                  for decoder, own in zip(self.decoders, self.channels, strict=True)]
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


class JointEncoder(nn.Module):
    """Several encoders as one: it concatenates their grids along the channels.

    :param encoders: several ``models.Encoder`` whose grids have the same size
    """

    def __init__(self, encoders):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, images):
        """(batch_size, 3, H, W) uint8 pixels to (batch_size, h, w, encoder_dim)"""
        return torch.cat([encoder(images) for encoder in self.encoders], dim=-1)


def load_ensemble(paths, device=None):
    """An ensemble of checkpoints, to caption and evaluate with like a single model.

    Decoders with the same encoder weights share one encoder. Of several encoders no features are cached.

    :param paths: checkpoint files of decoders with one vocabulary, on grids of one size
    :return: ``model.CaptionModel``, called 'Ensemble'
    :raises ValueError: the checkpoints have different vocabularies
    """
    return ensemble_of(paths, [load_model(path, device) for path in paths])


def ensemble_of(names, models):
    """The same of several ``model.CaptionModel``; ``names`` are for the message."""
    first = models[0]
    for name, model in zip(names, models, strict=True):
        if model.word_map != first.word_map:
            raise ValueError(f'{name} has another vocabulary than {names[0]}: they cannot caption together')
    keys = [(encoder_digest(model.encoder), model.encoder.encoded_image_size) for model in models]
    encoders = dict(zip(keys, (model.encoder for model in models), strict=True))  # equal ones once
    encoder = JointEncoder(encoders.values()).eval() if len(encoders) > 1 else first.encoder
    ends = dict(zip(encoders, itertools.accumulate(each.encoder_dim for each in encoders.values()), strict=True))
    channels = [slice(ends[key] - encoders[key].encoder_dim, ends[key]) for key in keys]
    decoder = Ensemble([model.decoder for model in models], channels).eval()
    settings = {**first.settings, 'decoder': 'lab.more.ensembles.Ensemble',
                'cache_features': first.settings['cache_features'] and len(encoders) == 1}
    return CaptionModel(encoder, decoder, first.word_map, settings)
