"""All settings, with their types and defaults, and one check of them with a sentence on what is wrong."""

import difflib
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

Number = float | int
PerEpoch = Number | tuple  # one number, or two between which it changes linearly from the first to the last epoch


@dataclass
class Settings:
    """All settings of a training, with their defaults; those of the improvements come last."""
    # data
    data_folder: str = 'data/shapes'    # folder with the files of create_input_files
    data_name: str = 'shapes_5_cap_per_img_5_min_word_freq'  # base name of these files
    # model
    attention: bool = True              # DecoderWithAttention, or DecoderWithRNN
    encoder: str | None = 'resnet101'   # backbone, see lab/data/encoders.py
    encoder_weights: str | None = 'DEFAULT'  # trained weights, None for random ones, or a file
    encoded_image_size: int | None = 14  # pool the grid to 14 x 14; None keeps the native one
    embed_dim: int = 512                # length of a word vector
    attention_dim: int = 512            # length of the vectors that attention compares
    decoder_dim: int = 512              # length of the LSTM's hidden state
    dropout: Number = 0.5               # on the hidden state, before fc
    # training
    device: str | None = None           # 'cuda', 'cpu', ...; None takes a CUDA GPU if there is one
    epochs: int = 120                   # at most
    batch_size: int = 32                # captions
    encoder_lr: Number = 1e-4           # learning rates of the optimizer (Adam)
    decoder_lr: Number = 4e-4
    cosine: bool = False                # let the rates fall to 0 over the epochs along a cosine (Loshchilov 2017)
    grad_clip: Number | None = 5.0      # each gradient entry is clipped to +- this
    alpha_c: PerEpoch = 1.0             # weight of the doubly stochastic penalty; (1.0, 0.0) falls over the epochs
    fine_tune_encoder: bool = False     # train the encoder's blocks 2 to 4 as well
    cache_features: bool = True         # a frozen encoder sees each picture once; False: in every batch
    fast: bool = True                   # the same formulas with fewer operations, where your forward agrees
    monitor: str | None = None          # the score that decides; None: greedy_bleu4, self-critical: greedy_cider
    seed: int = 0
    # files and output
    output_folder: str = 'runs'         # checkpoints and history go here
    checkpoint: str | None = None       # checkpoint of a training to go on with
    start_from: str | None = None       # checkpoint whose weights a second training starts from
    # improvements, see "Improve" in ASSIGNMENT.md; in a clone of the repository docs/extensions.md
    decoder: str | None = None          # class of your own in place of those in models.py: 'my_decoder.MyDecoder'
    decoder_options: dict = field(default_factory=dict)  # what its __init__ takes besides the sizes: dict(heads=4)
    embed_dropout: Number = 0.0         # on the word vectors, in training
    feature_dropout: Number = 0.0       # on whole channels of a picture's features, in training
    word_vectors: str | None = None     # text file of GloVe, word2vec or fastText, embed_dim numbers a word
    label_smoothing: Number = 0.0       # probability that a target spreads over all words (Szegedy et al. 2016)
    teacher_forcing: PerEpoch = 1.0     # probability of feeding the true word; (1.0, 0.7) falls over the epochs
    flip: bool = False                  # mirror pictures in every other epoch, unless a caption says left or right
    accumulate: int = 1                 # compute a step's gradient in so many parts, if memory is short
    self_critical: str | None = None    # second phase on CIDEr-D, with the baseline 'greedy' or 'mean'


DEFAULTS = asdict(Settings())


def check_settings(cfg):
    """Fill in the defaults and refuse what cannot be.

    :return: complete dict with ``device`` and ``monitor`` decided; paths are strings
    :raises ValueError: an unknown setting, or a value of another type; the message names it
    """
    for name in cfg:
        if name not in DEFAULTS:
            nearest = difflib.get_close_matches(str(name), DEFAULTS, n=1, cutoff=0.7)
            hint = f'did you mean {nearest[0]!r}?' if nearest else f'known are {", ".join(DEFAULTS)}'
            raise ValueError(f'unknown setting {name!r}; {hint}')
    cfg = plain({**DEFAULTS, **cfg})
    for name, wanted in Settings.__annotations__.items():
        if not isinstance(cfg[name], wanted) or isinstance(cfg[name], bool) != (wanted is bool):
            raise ValueError(f'setting {name!r} is {cfg[name]!r}; it must be {getattr(wanted, "__name__", wanted)}')
        least = 1 if wanted in (int, int | None) and name != 'seed' else 0
        if isinstance(cfg[name], Number) and cfg[name] < least:
            raise ValueError(f'setting {name!r} is {cfg[name]!r}; it must be at least {least}')
        if isinstance(cfg[name], tuple) and [isinstance(number, Number) for number in cfg[name]] != [True, True]:
            raise ValueError(f'setting {name!r} is {cfg[name]!r}; it must be one number, or two')
    if cfg['self_critical'] not in (None, 'greedy', 'mean'):
        raise ValueError(f"setting 'self_critical' is {cfg['self_critical']!r}; it must be 'greedy' or 'mean', or None")
    if cfg['self_critical'] and not (cfg['start_from'] or cfg['checkpoint']):
        raise ValueError(f"setting 'self_critical' is {cfg['self_critical']!r}, which goes on from a trained decoder: "
                         'give its best checkpoint as start_from')
    cfg['device'] = cfg['device'] or ('cuda' if torch.cuda.is_available() else 'cpu')
    cfg['monitor'] = cfg['monitor'] or ('greedy_cider' if cfg['self_critical'] else 'greedy_bleu4')
    return cfg


def plain(value):
    """Numbers and arrays of numpy as Python's own, lists as tuples, paths as strings and without ``~``: a checkpoint
    holds no others."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if hasattr(value, 'tolist'):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    return os.path.expanduser(value) if isinstance(value, (str, Path)) else value


def in_epoch(setting, epoch, epochs):
    """The value of a ``PerEpoch`` setting in an epoch (from 1 on)."""
    first, last = setting if isinstance(setting, tuple) else (setting, setting)
    return first + (last - first) * (epoch - 1) / max(epochs - 1, 1)
