"""A batch through encoder and decoder, in half precision where that is wanted."""

import inspect
import os
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from lab.train import batches, distributed, fast
from utils import packed


class Decoded(NamedTuple):
    """The scores of a batch, without padding. Words are ordered as in a ``PackedSequence``: all first words, ...

    :ivar scores: (words, vocab_size) float, before softmax
    :ivar targets: (words,) long
    :ivar alphas: (batch_size, steps, num_pixels), or None without attention
    :ivar sizes: (steps,) long, how many captions are still running
    :ivar sort_ind: (batch_size,) long, the place in the batch of each caption, longest first
    """

    scores: torch.Tensor
    targets: torch.Tensor
    alphas: torch.Tensor | None
    sizes: torch.Tensor
    sort_ind: torch.Tensor


def encode(model, images, are_features=False):
    """A batch of pictures to the decoder's input.

    :param images: (n, 3, 256, 256) uint8, or native grids of ``features.encode_images``
    :param are_features: whether they are these grids
    :return: (n, h, w, encoder_dim) float; in training, some channels of each are 0 (``feature_dropout``)
    """
    images = images.to(model.settings['device'], non_blocking=True)
    features = model.encoder.resize(images.float()) if are_features else model.encoder(images)
    share = model.settings['feature_dropout']
    if share and model.encoder.training:
        # neighbouring cells see nearly the same, so a channel goes from all of them (Tompson et al. 2015, 1411.4280)
        features = nn.functional.dropout2d(features.permute(0, 3, 1, 2), share).permute(0, 2, 3, 1)
    return features


def decode(model, batch, teacher_forcing=1.0):
    """The decoder's ``forward`` on a batch; each picture goes through the encoder once.

    :param batch: ``batches.Batch``
    :param teacher_forcing: below 1 for scheduled sampling, which a ``lab.more.decoder.Decoder`` has
    :return: :class:`Decoded`
    :raises ValueError: the decoder returns too few or too many things
    """
    with half_precision(model.settings):
        encoder_out = encode(model, batch.images, batch.are_features)
        return forward(model, encoder_out, batch.captions, batch.caplens, batch.image_of, teacher_forcing)


def forward(model, encoder_out, captions, caplens, image_of, teacher_forcing=1.0):
    """``model.decoder.forward``, or ``fast.fast_forward`` in its place.

    :param encoder_out: (pictures, h, w, encoder_dim)
    :param captions: (n, longest) long; ``caplens``: (n,) long; ``image_of``: (n,) long, the picture of each
    :return, raises: as of :func:`decode`
    """
    device, caplens = encoder_out.device, caplens.unsqueeze(1)
    captions = captions.to(device, non_blocking=True)
    if model.fast:
        decoded = fast.fast_forward(model.decoder, encoder_out, captions, caplens, image_of)
    else:
        sampling = {} if teacher_forcing == 1 else dict(teacher_forcing=teacher_forcing)
        decoded = model.decoder(encoder_out[image_of.to(device, non_blocking=True)], captions,
                                caplens.to(device, non_blocking=True), **sampling)
    expected = {'Attention': (5,), 'NoAttention': (4,)}.get(model.name, (4, 5))
    if not isinstance(decoded, (tuple, list)) or len(decoded) not in expected:
        came = f'{len(decoded)} things' if isinstance(decoded, (tuple, list)) else f'a {type(decoded).__name__}'
        raise ValueError(f'forward of {type(model.decoder).__name__} returns {came}; it must return predictions, '
                         f'sorted captions, decode lengths, {"alphas, " if 5 in expected else ""}sort indices')
    return true_words(decoded)


def true_words(decoded):
    """What a decoder's ``forward`` or ``fast.fast_forward`` returns, without the padding: :class:`Decoded`."""
    scores, captions, decode_lengths, *alphas, sort_ind = decoded
    # the words to predict start after <start>; packing leaves out everything past a caption's end
    targets, sizes, *_ = pack_padded_sequence(captions[:, 1:], decode_lengths, batch_first=True)
    scores = packed(scores, decode_lengths).data
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))  # the loss is not in half precision
    return Decoded(scores, targets, alphas[0] if alphas else None, sizes, sort_ind)


def half_precision(cfg):
    """In this block matrix products are in half precision, if they are to be."""
    return torch.autocast(torch.device(cfg['device']).type, torch.bfloat16, enabled=use_bf16(cfg))


def use_bf16(cfg):
    """Whether matrix products are in half precision: as set, as ``accelerate launch`` was told, or where the device is
    a GPU that is made for it.

    :raises ValueError: ``accelerate launch`` was told another precision
    """
    if cfg['bf16'] is not None:
        return cfg['bf16']
    told = os.environ.get('ACCELERATE_MIXED_PRECISION', 'no')
    if told not in ('no', 'bf16'):
        raise ValueError(f"accelerate launch was told --mixed_precision {told}; it must be 'no' or 'bf16' here")
    if told == 'bf16':
        return True
    return cfg['device'].startswith('cuda') and torch.cuda.is_bf16_supported(including_emulation=False)


def check_decoder(decoder, cfg):
    """:raises ValueError: scheduled sampling is set, and this decoder does not have it"""
    if cfg['teacher_forcing'] != 1 and 'teacher_forcing' not in inspect.signature(decoder.forward).parameters:
        raise ValueError(f"setting 'teacher_forcing' is {cfg['teacher_forcing']!r}, but {type(decoder).__name__} is "
                         'always fed the true words: leave it at 1.0, or take a decoder made from '
                         'lab.more.decoder.Decoder')


def use_fast_forward(model, dataset):
    """Train by ``fast.fast_forward`` if the decoder's own ``forward`` gives the same on a few captions.

    Decoders of other files are trained as they are.
    """
    if model.settings['decoder']:
        return
    few = batches.Batches(dataset, [few_captions(dataset)])[0]
    with torch.no_grad():
        encoder_out = encode(model, few.images, few.are_features)
    device = encoder_out.device
    why = fast.difference(model.decoder, encoder_out[few.image_of.to(device)], few.captions.to(device),
                          few.caplens.unsqueeze(1).to(device))
    model.fast = all(distributed.gather([why is None]))
    if model.fast:
        distributed.log("Your forward agrees with the formulas: training runs the lab's faster form "
                        '(lab/train/fast.py). fast=False runs yours.')
    else:
        distributed.log(f'Training runs your forward of {type(model.decoder).__name__} as it is written: {why}.')


def few_captions(dataset):
    """Captions of eight pictures, from the shortest to the longest that there are, but neither in this order nor in its
    reverse: a decoder has to sort them, and to take the right picture with each.

    :return: (8,) long, their numbers in the data set; fewer where there are fewer pictures
    """
    lengths = dataset.caplens.view(-1, dataset.cpi)
    pictures = lengths[:, 0].argsort(stable=True)
    pictures = pictures[torch.linspace(0, len(pictures) - 1, min(8, len(pictures))).round().long()]
    numbers = pictures * dataset.cpi
    numbers[-1] = dataset.caplens.flatten().argmax()
    mixed = [place for place in (3, 0, 6, 1, 7, 4, 2, 5) if place < len(numbers)]
    return numbers[mixed].unique_consecutive()
