"""Checkpoints: everything to go on training or to caption a picture, in one file that runs no code.

A checkpoint is a dict of tensors, numbers, strings, lists and dicts: state dicts, settings, vocabulary,
history, optimizers and random states. It holds no pickled modules and is read with ``weights_only=True``.
"""

import hashlib
import warnings
from contextlib import suppress
from pathlib import Path

import torch

from lab.data.box import PHOTOS, unpack
from lab.train.features import encoder_digest
from lab.train.model import build_model, decoder_name
from lab.train.settings import DEFAULTS
from utils import atomic_path

FORMAT = 5
READABLE = (4, FORMAT)  # 4: with an optimizer for each of encoder and decoder


def file_digest(path):
    """Fingerprint of a file, 16 hexadecimal digits."""
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()[:16]


def save_checkpoint(paths, model, optimizer, scheduler):
    """Write a checkpoint to each of the paths, atomically; a path keeps its older one if the disk is full.

    A frozen encoder is kept by name and digest only; one that is or was fine-tuned with its weights.

    :raises OSError: the disk is full
    """
    keep_encoder = model.settings['fine_tune_encoder'] or model.tuned
    state = dict(
        format=FORMAT, settings=model.settings, word_map=model.word_map, history=model.history,
        fingerprints=model.fingerprints, decoder=model.decoder.state_dict(),
        encoder=model.encoder.stages.state_dict() if keep_encoder else None,
        encoder_digest=encoder_digest(model.encoder), optimizer=optimizer.state_dict(),
        scheduler=scheduler.state_dict(),
        random_states=dict(torch=torch.get_rng_state(), cuda=torch.cuda.get_rng_state_all()))
    for path in paths:
        with atomic_path(path) as temporary, open(temporary, 'wb') as file:  # given a path, torch hides a full disk
            torch.save(state, file)


def read_checkpoint(path, device='cpu'):
    """:raises ValueError: no such file, a damaged one, or not a checkpoint of this lab"""
    path = Path(path).expanduser()
    if not path.exists():
        raise ValueError(f'there is no checkpoint {path}: train this decoder first, or correct the path (in a '
                         'notebook run_folder and decoders)')
    if path.suffix == PHOTOS.suffix:
        return unpack(path, device)
    # torch reports a damaged or foreign file in many ways, and recommends to load it all the same
    with warnings.catch_warnings(action='ignore'), suppress(Exception):
        state = torch.load(path, map_location=device, weights_only=True)
        if state['format'] in READABLE:
            return state
    raise ValueError(f'{path} is damaged, or not a checkpoint of this lab: train again or take another file')


def load_model(path, device=None, encoder=None):
    """The ``model.CaptionModel`` of a checkpoint, in ``eval()``.

    :param device: where to put it; None takes the GPU if there is one
    :param encoder: the module that was passed to training, if one was
    :raises ValueError: a file that is no checkpoint or does not fit this code
    """
    device = device or ('cuda' if torch.cuda.is_available() else 'cpu')
    state = read_checkpoint(path, device)
    cfg = {**DEFAULTS, **state['settings'], 'device': str(device)}  # an older one lacks some settings
    if encoder is None and cfg['encoder'] is None:
        raise ValueError(f'{path} was trained with an encoder of your own: pass it as encoder=...')
    of_checkpoint = {} if state['encoder'] is None else {'encoder_weights': None}  # they come from there
    try:
        model = build_model(cfg | of_checkpoint, state['word_map'], encoder)
    except ValueError as error:  # it speaks of a setting, which is the checkpoint's
        raise ValueError(f'{path} does not fit this code: {error}') from error
    restore_model(model, state, path)
    model.settings, model.history = cfg, state['history']
    return model.eval()


def load_models(folder, names, device=None):
    """The best model of each decoder in a run folder.

    :param names: 'NoAttention', 'Attention' or the class of a decoder of your own, or 'photos', the lab's model of
        photos, which is in no run folder; or a list of them. 'Attention_zh' and 'photos_zh' are in one language
    :return: dict name -> :class:`model.CaptionModel`; one for each language of a decoder that has several
    :raises ValueError: a decoder without a checkpoint; the message says which
    """
    def path_of(decoder):
        return PHOTOS if decoder == PHOTOS.stem else Path(folder) / f'BEST_checkpoint_{decoder}.pth.tar'

    models = {}
    for name in [names] if isinstance(names, str) else names:
        of_all_languages = name.rpartition('_')[0]
        decoder = of_all_languages if not path_of(name).exists() and path_of(of_all_languages).exists() else name
        found = {f'{decoder}_{model.language}' if model.language else decoder: model
                 for model in load_model(path_of(decoder), device).by_language()}
        models |= found if name == decoder else {name: found[name]}
    return models


def restore_model(model, state, path):
    """Load the weights of a read checkpoint.

    :raises ValueError: a checkpoint of another decoder, vocabulary or encoder, or of other layers
    """
    if (was := decoder_name(state['settings'])) != model.name:
        raise ValueError(f'{path} holds the decoder {was}, and the settings say {model.name}: change attention or '
                         'decoder, or take another checkpoint')
    if state['word_map'] != model.word_map:
        raise ValueError(f"{path} was trained with another vocabulary than {model.settings['data_name']} has")
    try:
        model.decoder.load_state_dict(state['decoder'])
        if state['encoder'] is not None:
            model.encoder.stages.load_state_dict(state['encoder'])
            model.tuned = True
    except RuntimeError as error:
        raise ValueError(f'{path} does not fit the decoder or encoder of the settings: '
                         f'{str(error).splitlines()[-1].strip()}') from error
    if state['encoder'] is None and encoder_digest(model.encoder) != state['encoder_digest']:
        raise ValueError(f'{path} was trained with other encoder weights than those loaded now: set encoder '
                         'and encoder_weights as they were')


def checkpoint_paths(cfg):
    """:return: (latest, best) checkpoint files of a training"""
    folder, name = Path(cfg['output_folder']), decoder_name(cfg)
    return folder / f"checkpoint_{cfg['data_name']}_{name}.pth.tar", folder / f'BEST_checkpoint_{name}.pth.tar'
