"""What a model reads: pictures, or the features of its frozen encoder."""

from datasets import CaptionDataset
from lab.train.features import encode_images


def caption_dataset(model, split, data_folder=None, data_name=None):
    """The ``CaptionDataset`` of a split, with the encoder's features in place of images if it is frozen.

    :param model: ``model.CaptionModel``
    :param data_folder, data_name: another data set than that of the training
    :raises ValueError: a split without pictures
    """
    cfg = model.settings
    dataset = some_captions(data_folder or cfg['data_folder'], data_name or cfg['data_name'], split)
    if cfg['cache_features'] and not cfg['fine_tune_encoder']:
        dataset.features = [encode_images(model.encoder, dataset, cfg['device'], mirrored, cfg['output_folder'])
                            for mirrored in ([False, True] if cfg['flip'] and split == 'TRAIN' else [False])]
    return dataset


def some_captions(data_folder, data_name, split):
    """:return: ``CaptionDataset`` of a split;  :raises ValueError: it has no pictures"""
    dataset = CaptionDataset(data_folder, data_name, split)
    if not len(dataset):
        raise ValueError(f'{dataset.images_path} has no pictures: give some of them the split '
                         f"'{dataset.split.lower()}' in the JSON file, and run create_input_files again")
    return dataset
