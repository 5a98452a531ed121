"""Features once: a frozen encoder sees each image a single time, not once per caption and epoch."""

import hashlib
import inspect
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import torch

from datasets import CaptionDataset
from lab.data import row_file
from lab.train import distributed
from lab.train.source import class_source
from models import Encoder
from utils import evaluating

MEMORY_SHARE = 0.5  # of what is free may be taken by features
CGROUP = Path('/sys/fs/cgroup')  # as a container sees its own
LIBRARIES = 'torch', 'torchvision', 'efficientnet_lite_pytorch'  # their layers do what their names say


def encoder_digest(encoder):
    """Fingerprint of what the encoder computes: its layers, weights, input size and normalisation.

    :param encoder: ``models.Encoder``
    :return: 16 hexadecimal digits
    """
    digest = hashlib.sha256(repr(encoder.stages).encode())
    for path, module in encoder.stages.named_modules():  # of a library's modules, what repr says is enough
        if type(module).__module__.partition('.')[0] not in LIBRARIES:
            for name, value in sorted(vars(module).items()):
                if not name.startswith('_') and name != 'training' and (plain := _plain(value)) is not None:
                    digest.update(f'{path}.{name}={plain}'.encode())
    for tensor in (*encoder.stages.state_dict().values(), encoder.mean, encoder.std):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    digest.update(repr(encoder.input_size).encode())
    return digest.hexdigest()[:16]


def _plain(value):
    """A plain value, tensor or array, or a container of such ones, as text; None if it is something else."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return repr(value.tolist())
    if isinstance(value, (list, tuple, set, dict)):
        parts = [_plain(part) for part in (value.items() if isinstance(value, dict) else value)]
        return None if None in parts else repr(sorted(parts) if isinstance(value, set) else parts)
    return None


def code_of_encoder(encoder):
    """Fingerprint of the code: the same layers and weights can be put together in other ways.

    Of a module of your own it does not see what that calls outside of its class.

    :return: 16 hexadecimal digits
    """
    kinds = {base for module in encoder.stages.modules() for base in type(module).__mro__
             if base is not object and base.__module__.partition('.')[0] not in LIBRARIES}
    code = [class_source(Encoder)]
    for kind in sorted(kinds, key=lambda kind: (kind.__qualname__, kind.__module__)):
        for name, function in sorted(vars(kind).items()):
            function = getattr(function, '__func__', None) or getattr(function, 'fget', None) or function
            if inspect.isfunction(function):
                try:
                    code.append(inspect.getsource(function))
                except OSError:  # typed into a console
                    code.append(f'{name} {function.__code__.co_code} {function.__code__.co_names}')
    return hashlib.sha256('\n'.join(code).encode()).hexdigest()[:16]


def encode_splits(encoder, data_folder, data_name, wanted, device='cpu', output_folder=None):
    """:func:`encode_images` of several splits; first it checks that all of them fit on the disk, and says their size.

    :param wanted: list of (split, mirror)
    :param output_folder: as for :func:`encode_images`
    :return: list of paths
    :raises OSError, ValueError: as :func:`encode_images`
    """
    if distributed.rank() == 0:
        needed, grid, folder = 0, None, None
        for split, mirror in wanted:
            path, stamp, n = file_of(encoder, data_folder, data_name, split, mirror, output_folder)
            if _stamp(path) != (stamp, n):
                if grid is None:
                    grid = _grid(encoder, CaptionDataset.path_of_images(data_folder, data_name, split), device)
                needed, folder = needed + n * grid.numel() * 2, path.parent
        if needed:
            if folder != Path(data_folder).expanduser():
                print(f"{data_folder} cannot be written: the encoder's features go to {folder}.")
            folder.mkdir(parents=True, exist_ok=True)
            free = _free_space(folder, needed)
            print(f"The encoder's features need {_size(needed)} of disk space; {_size(free)} are free.")
    return [encode_images(encoder, data_folder, data_name, split, device, mirror=mirror, output_folder=output_folder)
            for split, mirror in wanted]


def encode_images(encoder, data_folder, data_name, split, device='cpu', batch_size=32, mirror=False,
                  output_folder=None):
    """Write the encoder's native grid of each image of a split into an HDF5 file, half precision.

    The file's name and attributes carry the digests of encoder and images, so that a file made by other
    weights or from other images is never used. A file that fits is left as it is. Where there are several processes,
    each encodes its share of the images, into the same file.

    :param encoder: ``models.Encoder``, frozen; it is run in ``eval()``
    :param split: 'TRAIN', 'VAL' or 'TEST'
    :param mirror: encode the mirror images, into a file of their own
    :param output_folder: takes the file where ``data_folder`` cannot be written; None: an error then
    :return: path of the file; dataset ``features`` (images, h, w, encoder_dim) float16
    :raises OSError: too little disk space, or a folder that cannot be written, or that not all processes see
    :raises ValueError: features beyond what half precision can hold, as random weights may give
    """
    path, stamp, n = file_of(encoder, data_folder, data_name, split, mirror, output_folder)
    if all(distributed.gather([_stamp(path) == (stamp, n)])):
        return path
    dataset = CaptionDataset(data_folder, data_name, split)
    # one temporary file of all processes
    part = path.with_name(f'.{path.name}.{distributed.gather([os.getpid()])[0]}.part')
    try:
        with torch.inference_mode(), evaluating(encoder):
            grid = _grid(encoder, dataset.images_path, device)
            if distributed.rank() == 0:
                _free_space(path.parent, n * grid.numel() * 2)
                row_file.create(part, 'features', (n, *grid), 'float16', stamp)
            distributed.wait_for_all()
            rows = torch.arange(n).tensor_split(distributed.count())[distributed.rank()]
            _encode(encoder, dataset, device, batch_size, mirror, part, rows, grid)
        distributed.wait_for_all()
        if distributed.rank() == 0:
            os.replace(part, path)
        distributed.wait_for_all()
    except OSError as error:
        raise OSError(f'{path} cannot be written ({error.strerror or error}): make room, copy the data set to a folder '
                      'of your own, or set cache_features=False') from error
    finally:
        if distributed.rank() == 0:
            with suppress(OSError):
                part.unlink()
    if _stamp(path) != (stamp, n):
        raise OSError(f'{path} was made by another process, but is not here: it must be in a folder that all machines '
                      'share')
    return path


def file_of(encoder, data_folder, data_name, split, mirror=False, output_folder=None):
    """
    :param output_folder: as for :func:`encode_images`
    :return: path of a features file, the attributes that it must have, and its number of rows
    """
    images_path = CaptionDataset.path_of_images(data_folder, data_name, split)
    with row_file.open_hdf5(images_path) as file:
        # of the pictures alone: features are the same for every vocabulary and number of captions
        images, n = str(file.attrs['pictures']), len(file['names'])
    stamp = {'images': images, 'encoder': encoder_digest(encoder), 'code': code_of_encoder(encoder)}
    name = re.sub(r'_\d+_cap_per_img_\d+_min_word_freq$', '', data_name)
    path = images_path.with_name(f"{split}_{'MIRRORED_' * mirror}FEATURES_{name}_{stamp['encoder']}.hdf5")
    if output_folder and _stamp(path) != (stamp, n) and not os.access(path.parent, os.W_OK):
        path = Path(output_folder) / path.name
    return path, stamp, n


def _grid(encoder, images_path, device):
    """:return: (h, w, encoder_dim) of an image's features"""
    with torch.inference_mode(), evaluating(encoder):
        image = torch.from_numpy(row_file.Rows(images_path, 'images')[:1].copy())
        return encoder.native_grid(image.to(device)).shape[1:]


def _size(count):
    return f'{count / 1e9:.3g} GB' if count >= 1e9 else f'{count / 1e6:.3g} MB'


def _free_space(folder, needed):
    """:raises OSError: there is less"""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(f"the encoder's features need {_size(needed)}, but {folder} has {_size(free)} free: make room, "
                      'or set cache_features=False')
    return free


def _encode(encoder, dataset, device, batch_size, mirror, part, rows, grid):
    """Encode the images ``rows``, which follow one another, into their places in the file."""
    if not len(rows):  # more processes than images
        return
    what = f'{dataset.split.lower()} images'
    with row_file.open_rows(part, 'features') as file, \
            distributed.progress_bar(total=len(dataset.names), unit='image', desc=f'encode {what}') as bar:
        file.seek(int(rows[0]) * grid.numel() * 2, os.SEEK_CUR)
        for numbers in rows.split(batch_size):
            images = dataset.images(numbers).to(device)
            grids = encoder.native_grid(images.flip(3) if mirror else images).half()
            if not grids.isfinite().all():
                raise ValueError(f'the encoder gives numbers for {what} {numbers[0]} to {numbers[-1]} that half '
                                 'precision cannot hold: take trained encoder_weights, or set cache_features=False')
            file.write(grids.cpu().contiguous().numpy().tobytes())
            bar.update(len(images) * distributed.count())  # the others are about as fast
        file.flush()
        os.fsync(file.fileno())  # it gets its name when all of it is on the disk


def _stamp(path):
    """:return: (attributes of a features file, number of its rows), or None"""
    try:
        with row_file.open_hdf5(path) as file:
            return {name: str(value) for name, value in file.attrs.items()}, len(file['features'])
    except (OSError, ValueError, KeyError):
        return None


def _free_memory():
    """Bytes that the host has free, or fewer if this process lives in a container with a limit (Linux, cgroup v2)."""
    free = psutil.virtual_memory().available
    with suppress(OSError, ValueError, KeyError):  # no cgroups, or 'max': no limit
        limit = int((CGROUP / 'memory.max').read_text())
        used = dict(line.split() for line in (CGROUP / 'memory.stat').read_text().splitlines())
        # pages of files that were read count as used, but are given back
        taken = int((CGROUP / 'memory.current').read_text()) - int(used['inactive_file']) - int(used['active_file'])
        free = min(free, limit - taken)
    return free


def read_into_memory(files, encoder, device='cpu'):
    """Read features into memory, pooled to the size that the decoder gets, if they fit.

    They may take half of what is free on the device, else half of what is free in the host's memory (divided by the
    processes there); where there is not enough, they stay in their file.

    :param files: of :func:`encode_images`: those of the images and, perhaps, of the mirrored ones
    :param encoder: ``models.Encoder`` whose features they are
    :return: (images, h, w, encoder_dim) float16, file after file; None: they do not fit
    """
    with row_file.open_hdf5(files[0]) as file:
        n, *native = file['features'].shape
        pooled = encoder.resize(torch.zeros(1, *native)).shape[1:]
        pool = pooled.numel() < torch.Size(native).numel()  # pooled up, they would only take more room
        shape = (len(files) * n, *(pooled if pool else native))
    needed = 2 * torch.Size(shape).numel()
    device = torch.device(device)
    if device.type == 'cuda' and needed > MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]:
        device = torch.device('cpu')
    free = _free_memory() / distributed.on_this_machine()
    if device.type != 'cuda' and needed > MEMORY_SHARE * free:
        return None
    features = torch.empty(shape, dtype=torch.float16, device=device)
    with distributed.progress_bar(total=len(features), desc='read features', unit='image',
                                  delay=2) as bar:
        for i, path in enumerate(files):
            with row_file.open_hdf5(path) as file:
                for start in range(0, n, 256):  # large reads, in the order of the file
                    grids = torch.from_numpy(file['features'][start:start + 256]).to(device)
                    if pool:
                        grids = encoder.resize(grids.float())
                    features[i * n + start:i * n + start + len(grids)] = grids
                    bar.update(len(grids))
    return features
