"""What a model reads: pictures, or the features of its frozen encoder."""

from datasets import CaptionDataset
from lab.train.features import encode_splits, read_into_memory


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
    paths = encode_splits(model.encoder, *names, wanted, cfg['device'], cfg['output_folder'])
    paths = dict(zip(wanted, paths, strict=True))
    for dataset in datasets:
        files = [paths[key] for key in wanted if key[0] == dataset.split]
        dataset.use_features(*files, in_memory=read_into_memory(files, model.encoder, cfg['device'])
                             if in_memory else None)
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
