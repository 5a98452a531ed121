"""Batches for training and validation: captions in some order, each picture of a batch once."""

from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from datasets import speaks_of_a_side
from lab.train import distributed

# Pictures that lie together in their file and are read together, and pictures among which captions are shuffled. With
# ResNet-101's features these are 17 MB and 1.6 GB; Flickr8k's 6,000 are shuffled as one
BLOCK, WINDOW = 64, 6144


class Batch(NamedTuple):
    """Captions and their pictures, as the loop of ``solver.py`` takes them.

    :ivar images: (m, 3, 256, 256) uint8, or (m, h, w, encoder_dim) features: each picture of the batch once
    :ivar are_features: whether they are the latter
    :ivar image_of: (n,) long; caption i is of ``images[image_of[i]]``
    :ivar captions: (n, longest) long, cut after the longest caption of the batch
    :ivar caplens: (n,) long, <start> and <end> counted
    :ivar numbers: (n,) long, of the captions in the data set
    :ivar of_captions, of_words: captions and words of the whole step that this batch is a part of
    :ivar ends_step: whether it is the step's last part
    """

    images: torch.Tensor
    are_features: bool
    image_of: torch.Tensor
    captions: torch.Tensor
    caplens: torch.Tensor
    numbers: torch.Tensor
    of_captions: int
    of_words: int
    ends_step: bool


class Batches(Dataset):
    """A ``CaptionDataset`` batch by batch; item b is a :class:`Batch`.

    :param dataset: ``datasets.CaptionDataset``
    :param order: list of (n,) long tensors, the captions of each batch
    :param flip: (len(dataset),) bool, which captions see their picture mirrored; None: none of them
    :param rank, processes: share each of these batches with other processes: this is process ``rank`` of so many
    :param accumulate: take this process's share in so many parts, if there are captions enough
    :param by_picture: share out and part whole pictures, if there are enough: all captions of one follow one another
    """

    def __init__(self, dataset, order, flip=None, rank=0, processes=1, accumulate=1, by_picture=False):
        self.dataset, self.flip, self.expected = dataset, flip, set()
        self.steps = len(order)
        self.parts = []  # (captions, those of the whole step, whether it ends there)
        for whole in order:
            together = dataset.cpi if by_picture and len(whole) >= dataset.cpi * processes else 1
            units = whole.view(-1, together)
            # as many parts in every process, and two captions at least in each, which batch norm needs
            count = max(min(accumulate, len(units) // (processes * (1 if together > 1 else 2))), 1)
            parts = [part.flatten() for part in units.tensor_split(processes)[rank].tensor_split(count)]
            self.parts += [(part, whole, part is parts[-1]) for part in parts]

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, b):
        numbers, whole, ends_step = self.parts[b]
        pictures = numbers // self.dataset.cpi
        if self.flip is not None:  # a picture and its mirror image are two
            pictures = pictures + len(self.dataset.names) * self.flip[numbers]
        pictures, image_of = pictures.unique(return_inverse=True)
        self.expect(pictures)
        caplens = self.dataset.caplens[numbers].flatten()
        return Batch(self.dataset.images(pictures), self.dataset.has_features, image_of,
                     self.dataset.captions[numbers, :int(caplens.max())], caplens, numbers, len(whole),
                     int((self.dataset.caplens[whole] - 1).sum()), ends_step)

    def expect(self, pictures):
        """Announce the blocks of the file that these are in, each once."""
        if self.dataset.in_memory is not None:
            return
        mirror, number = pictures // len(self.dataset.names), pictures % len(self.dataset.names)
        for block in zip((mirror > 0).tolist(), (number // BLOCK).tolist(), strict=True):
            if block not in self.expected:
                self.expected.add(block)
                self.dataset.expect(block[0], block[1] * BLOCK, (block[1] + 1) * BLOCK)


def in_order(dataset, batch_size, captions=None):
    """Batches of all captions as they stand, or of some; the captions of a picture stay together if they fit.

    :param captions: (n,) long; None takes all
    :return: list of (n,) long tensors
    """
    if captions is None:
        captions = torch.arange(len(dataset))
        batch_size = max(batch_size // dataset.cpi, 1) * dataset.cpi
    return list(captions.split(batch_size))


def of_epoch(model, dataset, epoch):
    """The batches of an epoch. Their order depends on seed and epoch alone, so a resumed training sees the same.

    :param model: ``checkpoints.CaptionModel``, for its settings
    :param epoch: from 1 on
    :return: :class:`Batches` of this process
    """
    cfg = model.settings
    generator = torch.Generator().manual_seed(cfg['seed'] * 100_003 + epoch)
    by_picture = cfg['by_picture']
    if by_picture is None:
        by_picture = not dataset.has_features or bool(cfg['self_critical'])
    order = shuffled(dataset, cfg['batch_size'], generator, by_picture, distributed.count())
    flip = mirrored(dataset, model.word_map, generator, bool(cfg['self_critical'])) if cfg['flip'] else None
    return Batches(dataset, order, flip, distributed.rank(), distributed.count(), cfg['accumulate'], by_picture)


def shuffled(dataset, batch_size, generator, by_picture=False, processes=1):
    """Batches of all captions in a random order.

    Of many pictures, ``WINDOW`` at a time, drawn in blocks that lie together in their file: what does not fit into
    memory is then read from the disk once an epoch and in long pieces, not for each caption.

    :param by_picture: all captions of a picture are in one batch, ``batch_size`` rounded to whole pictures
    :param processes: that share each batch
    :return: list of (n,) long tensors; a single caption that is left over is left out: batch norm could not take it;
        so are fewer than there are processes
    """
    size = max(round(batch_size / dataset.cpi), 1) if by_picture else batch_size
    order = [pictures if by_picture else captions_of(pictures, dataset)
             for pictures in windows(len(dataset.names), generator)]
    order = [window[torch.randperm(len(window), generator=generator)] for window in order]
    batches = torch.cat(order).split(size)
    if by_picture:
        batches = [captions_of(pictures, dataset) for pictures in batches]
    least = max(processes, 1 if len(dataset) == 1 or batch_size == 1 else 2)
    return [batch for batch in batches if len(batch) >= least]


def windows(count, generator):
    """All pictures, in parts among whose captions may be shuffled: ``WINDOW`` of them, blocks from all over the file.

    :return: list of long tensors; one, ascending, if there are no more
    """
    pictures = torch.arange(count)
    if count <= WINDOW:
        return [pictures]
    blocks = pictures.split(BLOCK)
    return torch.cat([blocks[b] for b in torch.randperm(len(blocks), generator=generator)]).split(WINDOW)


def captions_of(pictures, dataset):
    """All captions of these pictures, those of a picture together: (n,) long."""
    return (pictures.unsqueeze(1) * dataset.cpi + torch.arange(dataset.cpi)).flatten()


def mirrored(dataset, word_map, generator, of_pictures=False):
    """Which captions see their picture mirrored: those of half the pictures, but none that speaks of left or right.

    :param of_pictures: all captions of a picture or none, since what is said of it will be compared with all of its
        ``references``
    :return: (len(dataset),) bool
    """
    sided, unknown = (torch.tensor(indices, dtype=torch.long) for indices in (
        [index for word, index in word_map.items() if speaks_of_a_side(word)], [word_map['<unk>']]))
    coin = torch.rand(len(dataset.names), generator=generator) < 0.5
    of_picture = dataset.sided.repeat_interleave(dataset.cpi)
    # a word that is not in the vocabulary may be the one that the picture's captions have
    speaks = of_picture if of_pictures else torch.isin(dataset.captions, sided).any(dim=1) | (
        torch.isin(dataset.captions, unknown).any(dim=1) & of_picture)
    return coin.repeat_interleave(dataset.cpi) & ~speaks


def loader(batches, cfg):
    """Load batches one after another, in this process: they are copied from files that the system keeps in memory."""
    in_memory = batches.dataset.in_memory
    pin = cfg['device'].startswith('cuda') and (in_memory is None or not in_memory.is_cuda)
    # a loader takes a seed for workers, which it does not have, from torch's generator: from one of its own
    return DataLoader(batches, batch_size=None, pin_memory=pin, generator=torch.Generator())
