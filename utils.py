"""Small helpers shared by every step: atomic files, seeds, eval mode, running averages, top-k accuracy."""

import os
import random
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch


@contextmanager
def atomic_path(path):
    """Yield a temporary path beside ``path``; rename it over ``path`` when the block succeeds.

    A reader never sees a half-written file. If the block raises, the temporary file is removed
    and an older ``path`` stays as it was.

    :param path: the file to write; its folder is made if need be
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def seed_everything(seed):
    """Seed Python's, numpy's and torch's random generators (all devices)."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def evaluating(module):
    """Within the block ``module`` is in ``eval()``: dropout off, batch norm on its running statistics."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


class AverageMeter:
    """Keeps the latest value of a quantity and its running average, weighted by ``n``."""

    def __init__(self):
        self.val = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def topk_accuracy(scores, targets, k):
    """Percentage of targets among the ``k`` highest scores.

    :param scores: (n, vocab_size) float
    :param targets: (n,) long
    :param k: how many of the best scores count
    :return: percent, 0 to 100, a 0-dim tensor
    """
    best = scores.topk(min(k, scores.size(1)), dim=1).indices
    return (best == targets.unsqueeze(1)).any(dim=1).float().mean() * 100
