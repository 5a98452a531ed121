"""Batches for training and validation: some captions, and each picture of theirs once."""

from typing import NamedTuple

import torch
from accelerate import PartialState
from torch.utils.data import DataLoader


class Batch(NamedTuple):
    """Captions and their pictures, as ``model.CaptionModel`` takes them."""
    images: torch.Tensor    # (m, 3, 256, 256) uint8, or (m, h, w, encoder_dim) features in half precision
    image_of: torch.Tensor  # (n,) long; caption i is of images[image_of[i]]
    captions: torch.Tensor  # (n, longest) long, cut after the longest caption of the batch
    caplens: torch.Tensor   # (n,) long, <start> and <end> counted
    numbers: torch.Tensor   # (n,) long, of the captions in the data set


def collate(dataset, numbers, mirrored=False):
    """The :class:`Batch` of the captions ``numbers`` (n,); ``mirrored`` as of ``CaptionDataset.images``."""
    pictures, image_of = (numbers // dataset.cpi).unique(return_inverse=True)
    caplens = dataset.caplens[numbers].flatten()
    captions = dataset.captions[numbers, :int(caplens.max())]
    return Batch(dataset.images(pictures, mirrored), image_of, captions, caplens, numbers)


def loader(dataset, numbers, batch_size, mirrored=False):
    """A ``DataLoader`` of :class:`Batch`, in this order.

    :param numbers: (units,) long, of captions; or (units, k): k captions that stay together
    :param batch_size: units in a batch, rounded down to a multiple of the number of processes, if there are several
    """
    processes = PartialState().num_processes
    batch_size = max(batch_size // processes, 1) * processes
    # a loader takes a seed for workers, which it does not have, from torch's generator: from one of its own
    return DataLoader(numbers, batch_size, generator=torch.Generator(), pin_memory=torch.cuda.is_available(),
                      collate_fn=lambda units: collate(dataset, torch.stack(units).flatten(), mirrored))


def training_loader(dataset, cfg, epoch):
    """The batches of an epoch. Their order depends on seed and epoch alone, so a resumed training sees the same.

    Where pictures go through the encoder, and in self-critical training, all captions of a picture are in one batch,
    ``batch_size`` rounded to whole pictures. With ``accumulate`` a batch is a part of a step. With ``flip`` every other
    epoch sees mirror images.
    """
    by_picture = not dataset.features or cfg['self_critical']
    numbers = torch.arange(len(dataset)).view(-1, dataset.cpi if by_picture else 1)
    generator = torch.Generator().manual_seed(cfg['seed'] * 100_003 + epoch)
    numbers = numbers[torch.randperm(len(numbers), generator=generator)]
    size = max(round(cfg['batch_size'] / numbers.shape[1] / cfg['accumulate']), 1)
    if len(numbers) % size == 1 < len(numbers) and not by_picture and size > 1:
        numbers = numbers[:-1]  # batch norm cannot take a single caption
    return loader(dataset, numbers, size, mirrored=cfg['flip'] and epoch % 2 == 0)


def weights_of(dataset, loader, cfg):
    """The weight of the loss of each batch of a :func:`training_loader`, by its number of words, or of pictures in
    self-critical training; 1 on average.

    A step is the mean of ``accumulate`` weighted losses.
    """
    parts = loader.dataset.split(loader.batch_size)
    accumulate = cfg['accumulate']
    sizes = [len(part) if cfg['self_critical'] else int((dataset.caplens[part.flatten()] - 1).sum()) for part in parts]
    steps = [sum(sizes[first:first + accumulate]) for first in range(0, len(sizes), accumulate)]
    return [size * accumulate / steps[number // accumulate] for number, size in enumerate(sizes)]
