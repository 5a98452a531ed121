"""Features once: a frozen encoder sees each image a single time, not once per caption and epoch."""

import hashlib
import shutil
from pathlib import Path

import h5py
import torch
from torch.utils.data import DataLoader, Subset
from tqdm import tqdm

from datasets import CaptionDataset
from utils import atomic_path, evaluating


def encoder_digest(encoder):
    """Fingerprint of what the encoder computes: its layers, weights, input size and normalisation.

    :param encoder: ``models.Encoder``
    :return: 16 hexadecimal digits
    """
    digest = hashlib.sha256(repr(encoder.stages).encode())
    for tensor in (*encoder.stages.state_dict().values(), encoder.mean, encoder.std):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    digest.update(repr(encoder.input_size).encode())
    return digest.hexdigest()[:16]


def encode_images(encoder, data_folder, data_name, split, device='cpu', batch_size=32, workers=0):
    """Write the encoder's native grid of each image of a split into an HDF5 file, half precision.

    The file's name and attributes carry the digests of encoder and images, so that a file made by other
    weights or from other images is never used. A file that fits is left as it is.

    :param encoder: ``models.Encoder``, frozen; it is run in ``eval()``
    :param split: 'TRAIN', 'VAL' or 'TEST'
    :return: path of the file; dataset ``features`` (images, h, w, encoder_dim) float16
    :raises OSError: too little disk space
    """
    dataset = CaptionDataset(data_folder, data_name, split)
    with h5py.File(dataset.images_path) as file:
        images = str(file.attrs['fingerprint'])
    digest = encoder_digest(encoder)
    path = Path(data_folder) / f'{split}_FEATURES_{data_name}_{digest}.hdf5'
    n = len(dataset.names)
    if path.exists():
        with h5py.File(path) as file:
            if file.attrs['images'] == images and len(file['features']) == n:
                return path

    with torch.inference_mode(), evaluating(encoder):
        grid = encoder.native_grid(dataset.image(0).unsqueeze(0).to(device)).shape[1:]
        needed, free = n * grid.numel() * 2, shutil.disk_usage(data_folder).free
        if needed > free:
            raise OSError(f'the features of {n} images need {needed / 1e9:.1f} GB, but {data_folder} has '
                          f'{free / 1e9:.1f} GB free: make room, or set cache_features=False')
        # a loader takes a seed for its workers from torch's generator: from one of its own, so that a training
        # goes the same way whether or not the features were there already
        loader = DataLoader(Subset(dataset, dataset.first_captions), batch_size, num_workers=workers,
                            generator=torch.Generator())
        with atomic_path(path) as temporary, h5py.File(temporary, 'w') as file, \
                tqdm(total=n, unit='image', desc=f'encode {split.lower()} images') as bar:
            file.attrs['images'], file.attrs['encoder'] = images, digest
            features = file.create_dataset('features', (n, *grid), 'float16')
            for batch in loader:
                grids = encoder.native_grid(batch[0].to(device, non_blocking=True))
                features[bar.n:bar.n + len(grids)] = grids.cpu().numpy()
                bar.update(len(grids))
    return path
