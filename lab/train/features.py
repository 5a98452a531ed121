"""Features once: a frozen encoder sees each image a single time, not once per caption and epoch."""

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import torch
from accelerate import PartialState

from datasets import CaptionDataset
from lab.train.devices import log, progress_bar
from lab.train.source import class_source
from models import Encoder
from utils import atomic_path, evaluating

LIBRARIES = 'torch', 'torchvision', 'efficientnet_lite_pytorch'  # their layers do what their names say


def encoder_digest(encoder):
    """Fingerprint of the layers, weights, input size and normalisation of a ``models.Encoder``."""
    digest = hashlib.sha256(repr(encoder.stages).encode())
    for path, module in encoder.stages.named_modules():  # of a library's modules, what repr says is enough
        if type(module).__module__.partition('.')[0] not in LIBRARIES:
            plain = {name: value for name, value in vars(module).items() if not name.startswith('_')
                     and name != 'training' and isinstance(value, bool | int | float | str | tuple)}
            for name, value in sorted(plain.items()):
                digest.update(f'{path}.{name}={value!r}'.encode())
    for tensor in (*encoder.stages.state_dict().values(), encoder.mean, encoder.std):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    digest.update(repr(encoder.input_size).encode())
    return digest.hexdigest()[:16]


def code_of_encoder(encoder):
    """The code: the same layers and weights can be put together in other ways."""
    kinds = {kind for module in encoder.stages.modules() for kind in type(module).__mro__
             if kind is not object and kind.__module__.partition('.')[0] not in LIBRARIES}
    return ''.join(sorted(map(class_source, {Encoder, *kinds})))


def file_of(encoder, dataset, grid, mirrored=False):
    """Path of a features file. Its name has one fingerprint: of the pictures, and of the encoder's weights and code.

    :param grid: (h, w, encoder_dim) of the features
    """
    parts = dataset.pictures_digest, encoder_digest(encoder), grid, code_of_encoder(encoder)
    digest = hashlib.sha256(' '.join(map(str, parts)).encode())
    if mirrored:
        digest.update(dataset.sided.numpy().tobytes())
    return dataset.images_path.with_name(
        f"{dataset.split}_{'MIRRORED_' * mirrored}FEATURES_{digest.hexdigest()[:16]}.npy")


def caption_dataset(model, split):
    """The ``CaptionDataset`` of a model's settings, with features in place of images if its encoder is frozen."""
    cfg = model.settings
    dataset = CaptionDataset(cfg['data_folder'], cfg['data_name'], split)
    if cfg['cache_features'] and not cfg['fine_tune_encoder']:
        dataset.features = [encode_images(model.encoder, dataset, cfg['device'], mirrored, cfg['output_folder'])
                            for mirrored in ([False, True] if cfg['flip'] and split == 'TRAIN' else [False])]
    return dataset.in_language(model.language)


def encode_images(encoder, dataset, device='cpu', mirrored=False, output_folder=None, batch_size=32):
    """Write what the encoder makes of each image into a file, half precision; a file that is there is left as it is.

    Of the backbone's own grid and the pooled one it holds the smaller. One process writes, others wait for it.

    :param encoder: ``models.Encoder``, frozen; it is run in ``eval()``
    :param dataset: ``CaptionDataset`` of images
    :param mirrored: encode the mirror images, see ``CaptionDataset.images``
    :param output_folder: takes the file where the folder of the images cannot be written
    :return: path of the file, (images, h, w, encoder_dim) float16, as ``numpy.load`` reads it
    :raises OSError: too little disk space, or a folder that cannot be written
    :raises ValueError: features beyond what half precision can hold, as random weights may give
    """
    with evaluating(encoder), torch.inference_mode(), PartialState().main_process_first():
        def grids_of(numbers, mirrored=False):
            native = encoder.native_grid(dataset.images(numbers, mirrored).to(device))
            return min(native, encoder.resize(native), key=torch.Tensor.numel)

        grid = tuple(grids_of(torch.tensor([0])).shape[1:])
        path = file_of(encoder, dataset, grid, mirrored)
        if not path.exists() and output_folder and not os.access(path.parent, os.W_OK):
            path = Path(output_folder) / path.name
        if path.exists():
            return path
        with atomic_path(path) as temporary:
            needed = 2 * len(dataset.names) * int(np.prod(grid))
            if needed > (free := shutil.disk_usage(path.parent).free):
                raise OSError(f'{path.parent}: too little disk space, {needed / 1e9:.2f} GB are needed and '
                              f'{free / 1e9:.2f} GB are free: make room, or set cache_features=False')
            for old in path.parent.glob(f'{dataset.split}_*FEATURES_*.hdf5'):
                log(f'{old} ({old.stat().st_size / 1e6:.0f} MB) was written by an older version of this lab: you may '
                    'delete it.')
            features = np.lib.format.open_memmap(temporary, 'w+', np.float16, (len(dataset.names), *grid))
            for numbers in progress_bar(torch.arange(len(features)).split(batch_size), unit='batch',
                                        desc=f'encode {dataset.split.lower()} images'):
                grids = grids_of(numbers, mirrored).half()
                if not grids.isfinite().all():
                    raise ValueError(f'the encoder gives numbers for {dataset.split.lower()} images {numbers[0]} to '
                                     f'{numbers[-1]} that half precision cannot hold: take trained encoder_weights, or '
                                     'set cache_features=False')
                features[numbers.numpy()] = grids.cpu().numpy()
            del features  # it is closed then: Windows renames no open file
    return path
