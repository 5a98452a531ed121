"""Features once: a frozen encoder sees each image a single time, not once per caption and epoch."""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import h5py
import psutil
import torch
from torch.utils.data import DataLoader, Subset
from tqdm import tqdm

import row_file
from datasets import CaptionDataset
from utils import atomic_path, evaluating

SAFE_EVERY = 500  # images; a kill costs at most so many
MEMORY_SHARE = 0.5  # of what is free may be taken by features


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


def encode_images(encoder, data_folder, data_name, split, device='cpu', batch_size=32, workers=0, mirror=False):
    """Write the encoder's native grid of each image of a split into an HDF5 file, half precision.

    The file's name and attributes carry the digests of encoder and images, so that a file made by other
    weights or from other images is never used. A file that fits is left as it is; a run that was stopped or killed
    goes on where it was.

    :param encoder: ``models.Encoder``, frozen; it is run in ``eval()``
    :param split: 'TRAIN', 'VAL' or 'TEST'
    :param mirror: encode the mirror images, into a file of their own
    :return: path of the file; dataset ``features`` (images, h, w, encoder_dim) float16
    :raises OSError: too little disk space
    """
    dataset = CaptionDataset(data_folder, data_name, split)
    with h5py.File(dataset.images_path) as file:
        stamp = {'images': str(file.attrs['fingerprint']), 'encoder': encoder_digest(encoder)}
    path = Path(data_folder) / f"{split}_{'MIRRORED_' * mirror}FEATURES_{data_name}_{stamp['encoder']}.hdf5"
    n = len(dataset.names)
    if _stamp(path) == (stamp, n):
        return path

    with torch.inference_mode(), evaluating(encoder):
        grid = encoder.native_grid(dataset.image(0).unsqueeze(0).to(device)).shape[1:]
        part, progress = (path.with_name(path.name + ending) for ending in ('.part', '.progress'))
        done = _rows_done(part, progress) if _stamp(part) == (stamp, n) else 0
        needed, free = (n - done) * grid.numel() * 2, shutil.disk_usage(data_folder).free
        if needed > free:
            raise OSError(f'the features of {n} images need {needed / 1e9:.1f} GB, but {data_folder} has '
                          f'{free / 1e9:.1f} GB free: make room, or set cache_features=False')
        if needed > 1e9:
            print(f'{path.name} needs {needed / 1e9:.1f} GB of disk space; {free / 1e9:.1f} GB are free.')
        if not done:
            row_file.create(part, 'features', (n, *grid), 'float16', stamp)
        try:
            _encode(encoder, dataset, device, batch_size, workers, mirror, part, progress, done, grid)
        except OSError:  # the disk is full after all, or has gone
            part.unlink(missing_ok=True)
            raise
        finally:
            if not part.exists():
                progress.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # another training may have made the same file meanwhile
            os.replace(part, path)
        progress.unlink(missing_ok=True)
    return path


def _encode(encoder, dataset, device, batch_size, workers, mirror, part, progress, done, grid):
    n = len(dataset.names)
    loader = DataLoader(Subset(dataset, dataset.first_captions[done:]), batch_size, num_workers=workers,
                        # it takes a seed for its workers from torch's generator: from one of its own, so that a
                        # training goes the same way whether or not the features were there already
                        generator=torch.Generator())

    def note(count):
        row_file.sync(rows)
        with atomic_path(progress) as temporary:
            temporary.write_text(json.dumps(count))

    with row_file.open_rows(part, 'features') as rows, \
            tqdm(total=n, initial=done, unit='image', desc=f'encode {dataset.split.lower()} images') as bar:
        rows.seek(done * grid.numel() * 2, os.SEEK_CUR)
        noted = done
        try:
            for images, *_ in loader:
                images = images.to(device, non_blocking=True)
                grids = encoder.native_grid(images.flip(3) if mirror else images)
                rows.write(grids.half().cpu().contiguous().numpy().tobytes())
                done += len(images)
                bar.update(len(images))
                if done - noted >= SAFE_EVERY:
                    note(noted := done)
        except KeyboardInterrupt:
            note(done)
            raise
        row_file.sync(rows)


def _stamp(path):
    """:return: (attributes of a features file, number of its rows), or None"""
    try:
        with h5py.File(path) as file:
            return {name: str(value) for name, value in file.attrs.items()}, len(file['features'])
    except (OSError, KeyError):
        return None


def _rows_done(part, progress):
    try:
        return int(json.loads(progress.read_text()))
    except (OSError, ValueError):
        return 0


def hold(dataset, encoder, device='cpu'):
    """Read a data set's features into memory, pooled to the size that the decoder gets, if they fit.

    They may take half of what is free on the device, else half of what is free in the host's memory; where there is not
    enough, they stay in their file.

    :param dataset: ``datasets.CaptionDataset`` with features
    :param encoder: ``models.Encoder`` whose features they are
    :return: whether they fitted
    """
    n, sources = len(dataset.names), [source for source in dataset.sources if source]
    with h5py.File(sources[0]) as file:
        native = file['features'].shape[1:]
        pooled = encoder.resize(torch.zeros(1, *native)).shape[1:]
        pool = pooled.numel() < torch.Size(native).numel()  # pooled up, they would only take more room
        shape = (len(sources) * n, *(pooled if pool else native))
    needed = 2 * torch.Size(shape).numel()
    device = torch.device(device)
    if device.type == 'cuda' and needed > MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]:
        device = torch.device('cpu')
    if device.type != 'cuda' and needed > MEMORY_SHARE * psutil.virtual_memory().available:
        return False
    held = torch.empty(shape, dtype=torch.float16, device=device)
    with tqdm(total=len(held), desc=f'read {dataset.split.lower()} features', unit='image', delay=2) as bar:
        for source in sources:
            with h5py.File(source) as file:
                for start in range(0, n, 256):  # large reads, in the order of the file
                    grids = torch.from_numpy(file['features'][start:start + 256]).to(device)
                    if pool:
                        grids = encoder.resize(grids.float())
                    held[bar.n:bar.n + len(grids)] = grids
                    bar.update(len(grids))
    dataset.held = held
    return True
