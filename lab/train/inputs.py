"""What a model reads: pictures, or the features of its frozen encoder; in half precision where that is wanted."""

import os

import torch
from torch import nn

from datasets import CaptionDataset
from lab.train.features import encode_splits, hold


def encode(model, images):
    """A batch of uint8 images, or of native grids from ``features.encode_images``, to the decoder's input.

    :return: (batch_size, h, w, encoder_dim) float; in training, some channels of each are 0 (``feature_dropout``)
    """
    images = images.to(model.settings['device'], non_blocking=True)
    features = model.encoder(images) if images.dtype == torch.uint8 else model.encoder.resize(images.float())
    share = model.settings['feature_dropout']
    if share and model.encoder.training:
        # neighbouring cells see nearly the same, so a channel goes from all of them (Tompson et al. 2015, 1411.4280)
        features = nn.functional.dropout2d(features.permute(0, 3, 1, 2), share).permute(0, 2, 3, 1)
    return features


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


def caption_datasets(model, splits, data_folder=None, data_name=None, in_memory=False):
    """The ``CaptionDataset`` of each split, with the encoder's features in place of images if it is frozen.

    :param in_memory: keep these features in memory, if they fit
    :raises ValueError: a split without pictures
    """
    cfg = model.settings
    names = data_folder or cfg['data_folder'], data_name or cfg['data_name']
    datasets = [some_captions(*names, split) for split in splits]
    if not cfg['cache_features'] or cfg['fine_tune_encoder']:
        return datasets
    wanted = [(split, mirror) for split in splits
              for mirror in ([False, True] if cfg['flip'] and split == 'TRAIN' else [False])]
    paths = dict(zip(wanted, encode_splits(model.encoder, *names, wanted, cfg['device']), strict=True))
    for dataset in datasets:
        dataset.use_features(paths[dataset.split, False], paths.get((dataset.split, True)))
        if in_memory:
            hold(dataset, model.encoder, cfg['device'])
    return datasets


def some_captions(data_folder, data_name, split):
    """:return: ``CaptionDataset`` of a split;  :raises ValueError: it has no pictures"""
    dataset = CaptionDataset(data_folder, data_name, split)
    if not len(dataset):
        raise ValueError(f'{dataset.images_path} has no pictures: give some of them the split '
                         f"'{dataset.split.lower()}' in the JSON file, and run create_input_files again")
    return dataset


def caption_dataset(model, split, data_folder=None, data_name=None):
    """:func:`caption_datasets` of one split."""
    dataset, = caption_datasets(model, [split], data_folder, data_name)
    return dataset
