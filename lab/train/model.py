"""Encoder, decoder and vocabulary as one module: a batch of pictures and captions goes in, scores come out."""

import copy
import importlib
import inspect
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lab.data.vocabulary import in_language, languages_of
from lab.train import fast
from lab.train.devices import log
from lab.train.source import ROOT, edited
from models import DecoderWithAttention, DecoderWithRNN, Encoder


class Decoded(NamedTuple):
    """The scores of a batch, without padding. Words are ordered as in a ``PackedSequence``: all first words, ..."""
    scores: torch.Tensor         # (words, vocab_size) float, before softmax
    targets: torch.Tensor        # (words,) long
    alphas: torch.Tensor | None  # (batch_size, steps, num_pixels), or None without attention
    sizes: torch.Tensor          # (steps,) long, how many captions are still running
    sort_ind: torch.Tensor       # (batch_size,) long, the place in the batch of each caption, longest first

    def positions(self):
        """(words, 2) long: the caption of each row of ``scores``, by its place in the batch, and its step from 0 on."""
        captions = torch.cat([self.sort_ind[:size] for size in self.sizes.tolist()]).cpu()
        return torch.stack([captions, torch.arange(len(self.sizes)).repeat_interleave(self.sizes)], dim=1)

    def guesses(self):
        """For each caption, in the order of the batch, a list of the most probable word at each step."""
        rows, lengths = pad_packed_sequence(PackedSequence(self.scores.argmax(dim=1), self.sizes), batch_first=True)
        rows = [row[:length] for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)]
        return [rows[i] for i in self.sort_ind.argsort().tolist()]


class CaptionModel(nn.Module):
    """An encoder, a decoder, their vocabulary (word -> index) and the settings of their training."""

    def __init__(self, encoder, decoder, word_map, settings):
        super().__init__()
        self.encoder, self.decoder, self.word_map, self.settings = encoder, decoder, word_map, settings
        self._words = {index: word for word, index in word_map.items()}
        self.language = None    # in which it captions; None in training, and of a model that has only one
        self.history = []       # per epoch a dict of losses and scores
        self.fingerprints = {}  # of what its training depends on, see resume.fingerprints
        self.tuned = False      # the encoder's weights come from a checkpoint, of a training that fine-tuned it
        self.fast = False       # fast.fast_forward takes the place of the decoder's forward

    @property
    def name(self):
        """'Attention', 'NoAttention', or the class of a decoder of your own; of several languages 'Attention_zh'."""
        return decoder_name(self.settings) + (f'_{self.language}' if self.language else '')

    @property
    def vocabulary(self):
        """``word_map`` as a search takes it: its ``<start>`` begins a caption in ``language``."""
        return in_language(self.word_map, self.language)

    def by_language(self):
        """This model once for each of its languages, with the same weights."""
        models = []
        for language in languages_of(self.word_map):
            models.append(copy.copy(self))
            models[-1].language = language
        return models

    def words(self, indices):
        """Word indices to words."""
        return [self._words[index] for index in indices]

    def encode(self, images):
        """A batch of pictures to the decoder's input.

        :param images: (n, 3, 256, 256) uint8, or features of ``features.encode_images``, half precision
        :return: (n, h, w, encoder_dim) float; in training, some channels of each are 0 (``feature_dropout``)
        """
        images = images.to(self.settings['device'], non_blocking=True)
        are_features = images.dtype == torch.float16
        features = self.encoder.resize(images.float()) if are_features else self.encoder(images)
        p = self.settings['feature_dropout']
        if p and self.encoder.training:
            # neighbouring cells see nearly the same: a channel goes from all of them (Tompson et al. 2015, 1411.4280)
            features = nn.functional.dropout2d(features.permute(0, 3, 1, 2), p).permute(0, 2, 3, 1)
        return features

    def forward(self, batch, teacher_forcing=1.0, encoder_out=None):
        """Teacher forcing on a batch; each picture goes through the encoder once.

        :param batch: ``batches.Batch``
        :param teacher_forcing: below 1 for scheduled sampling, which a ``lab.more.decoder.Decoder`` has
        :param encoder_out: (pictures, h, w, encoder_dim), if they are encoded already
        :return: :class:`Decoded`
        """
        encoder_out = self.encode(batch.images) if encoder_out is None else encoder_out
        device = encoder_out.device
        caplens = batch.caplens.unsqueeze(1)
        captions = batch.captions.to(device, non_blocking=True)
        if self.fast:
            return true_words(fast.fast_forward(self.decoder, encoder_out, captions, caplens, batch.image_of))
        sampling = {} if teacher_forcing == 1 else dict(teacher_forcing=teacher_forcing)
        return true_words(self.decoder(encoder_out[batch.image_of.to(device, non_blocking=True)], captions,
                                       caplens.to(device, non_blocking=True), **sampling))

    def use_fast_forward(self, batch):
        """Train by ``fast.fast_forward`` if the decoder's own ``forward`` gives the same on these captions.

        :return: a sentence that says which of them runs
        """
        image_of, captions, caplens, _ = (tensor.to(self.settings['device']) for tensor in batch[1:])
        with torch.no_grad():
            encoder_out = self.encode(batch.images)[image_of]
        why = fast.difference(self.decoder, encoder_out, captions, caplens.unsqueeze(1))
        self.fast = why is None
        if self.fast:
            return ("Your forward agrees with the formulas: training runs the lab's faster form (lab/train/fast.py). "
                    'fast=False runs yours.')
        return f'Training runs your forward of {type(self.decoder).__name__} as it is written: {why}.'


def true_words(decoded):
    """What a decoder's ``forward`` or ``fast.fast_forward`` returns, without the padding: :class:`Decoded`."""
    scores, captions, decode_lengths, *alphas, sort_ind = decoded
    # the words to predict start after <start>; packing leaves out everything past a caption's end
    targets, sizes, *_ = pack_padded_sequence(captions[:, 1:], decode_lengths, batch_first=True)
    if not isinstance(scores, PackedSequence):
        scores = pack_padded_sequence(scores, decode_lengths, batch_first=True)
    return Decoded(scores.data, targets, alphas[0] if alphas else None, sizes, sort_ind)


def decoder_name(cfg):
    """'Attention', 'NoAttention', or the class of a decoder of your own, as the checkpoint files are called."""
    if cfg.get('decoder'):
        return cfg['decoder'].rpartition('.')[2]
    return 'Attention' if cfg['attention'] else 'NoAttention'


def find_decoder(cfg):
    """The decoder's class: one of models.py, or the one that ``cfg['decoder']`` names ('my_decoder.MyDecoder').

    :raises ValueError: no such file beside models.py
    """
    if not cfg.get('decoder'):
        return DecoderWithAttention if cfg['attention'] else DecoderWithRNN
    module, _, name = cfg['decoder'].rpartition('.')
    # only a file of this lab, since a checkpoint may come from anyone
    file = f"{module.replace('.', '/')}.py"
    if not (all(map(str.isidentifier, module.split('.'))) and (ROOT / file).exists()):
        raise ValueError(f"setting 'decoder' is {cfg['decoder']!r}; it must be like 'my_decoder.MyDecoder', and there "
                         f'is no file {file} beside models.py')
    return getattr(importlib.import_module(module), name)


def build_model(cfg, word_map, encoder=None):
    """The :class:`CaptionModel` of checked settings, on ``cfg['device']``; ``encoder`` is a module of your own.

    :raises ValueError: ``cfg['decoder']`` cannot be found, or as of ``models.Encoder``
    """
    encoder = Encoder(cfg['encoder'] if encoder is None else encoder, cfg['encoded_image_size'],
                      cfg['encoder_weights'])
    decoder = build_decoder(cfg, len(word_map), encoder.encoder_dim)
    if files := edited(cfg):
        log(f"{' and '.join(files)} changed after being read: what runs is the code from before. Restart (a "
              "notebook's kernel) to run what is there now.")
    return CaptionModel(encoder, decoder, word_map, cfg).to(cfg['device'])


def build_decoder(cfg, vocab_size, encoder_dim):
    """A decoder gets those sizes that its ``__init__`` names (all of them if it has ``**kwargs``) and its options.

    :param encoder_dim: channels of the encoder's grid
    :return: a decoder of the class that the settings name, with scores (..., vocab_size)
    :raises ValueError: the class cannot be found, or it lacks the scheduled sampling that the settings ask for
    """
    sizes = dict(attention_dim=cfg['attention_dim'], embed_dim=cfg['embed_dim'], decoder_dim=cfg['decoder_dim'],
                 vocab_size=vocab_size, encoder_dim=encoder_dim, dropout=cfg['dropout'])
    kind = find_decoder(cfg)
    if cfg.get('teacher_forcing', 1) != 1 and 'teacher_forcing' not in inspect.signature(kind.forward).parameters:
        raise ValueError(f"setting 'teacher_forcing' is {cfg['teacher_forcing']!r}, but {kind.__name__} is always fed "
                         'the true words: leave it at 1.0, or take a decoder made from lab.more.decoder.Decoder')
    taken = inspect.signature(kind.__init__).parameters
    if all(parameter.kind != parameter.VAR_KEYWORD for parameter in taken.values()):
        sizes = {name: size for name, size in sizes.items() if name in taken}
    return kind(**{**sizes, **cfg['decoder_options']})
