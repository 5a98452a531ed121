"""Checkpoints: everything to go on training or to caption a picture, in one file that runs no code.

A checkpoint is a dict of tensors, numbers, strings, lists and dicts: state dicts, settings, vocabulary,
history, optimizers and random states. It holds no pickled modules and is read with ``weights_only=True``.
"""

import hashlib
import importlib
import inspect
import pickle
import random
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lab.train import distributed
from lab.train.features import encoder_digest
from lab.train.source import ROOT, edited, source_of
from models import DecoderWithAttention, DecoderWithRNN, Encoder
from utils import atomic_path

FORMAT = 4  # raise when checkpoints change: those of another format are refused


@dataclass
class CaptionModel:
    """An encoder, a decoder and their vocabulary, ready to caption.

    :ivar word_map: word -> index
    :ivar settings: the ``cfg`` of its training
    :ivar history: per epoch a dict of losses and scores
    :ivar fingerprints: of what its training depends on, see ``resume.fingerprints``
    :ivar tuned: the encoder's weights come from a checkpoint, of a training that fine-tuned it
    :ivar fast: ``fast.fast_forward`` takes the place of the decoder's ``forward``
    """

    encoder: nn.Module
    decoder: nn.Module
    word_map: dict
    settings: dict
    history: list = field(default_factory=list)
    fingerprints: dict = field(default_factory=dict)
    tuned: bool = False
    fast: bool = False

    @property
    def name(self):
        """'Attention', 'NoAttention', or the class of a decoder of your own."""
        return decoder_name(self.settings)

    @cached_property
    def _words(self):
        return {index: word for word, index in self.word_map.items()}

    def words(self, indices):
        """Word indices to words."""
        return [self._words[index] for index in indices]


def file_digest(path):
    """Fingerprint of a file, 16 hexadecimal digits."""
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()[:16]


def decoder_name(cfg):
    """'Attention', 'NoAttention', or the class of a decoder of your own, as the checkpoint files are called."""
    if cfg.get('decoder'):
        return cfg['decoder'].rpartition('.')[2]
    return 'Attention' if cfg['attention'] else 'NoAttention'


def find_decoder(cfg):
    """The decoder's class: one of models.py, or the one that ``cfg['decoder']`` names ('my_decoder.MyDecoder').

    :raises ValueError: no such file beside models.py, no such class in it, or one that lacks a method
    """
    if not cfg.get('decoder'):
        return DecoderWithAttention if cfg['attention'] else DecoderWithRNN
    module, _, name = cfg['decoder'].rpartition('.')
    wrong = f"setting 'decoder' is {cfg['decoder']!r}; it must be like 'my_decoder.MyDecoder'"
    # only a file of this lab, since a checkpoint may come from anyone
    file = f"{module.replace('.', '/')}.py"
    if not (all(map(str.isidentifier, module.split('.'))) and (ROOT / file).exists()):
        missing = f'and there is no file {file} beside models.py' if module else "the file's name before a dot"
        raise ValueError(f'{wrong}, {missing}')
    decoder = getattr(importlib.import_module(module), name, None)
    source_of(module)
    if not inspect.isclass(decoder):
        raise ValueError(f'{wrong}, and {file} has no class {name}')
    missing = [method for method in ('forward', 'start', 'step')
               if getattr(decoder, method, None) is getattr(nn.Module, method, None)]
    if not issubclass(decoder, nn.Module) or missing:
        raise ValueError(f'{module}.{name} must be an nn.Module with forward, start and step, as the decoders in '
                         f'models.py are' + f'; it has no {" and no ".join(missing)}' * bool(missing))
    return decoder


def build_model(cfg, word_map, encoder=None):
    """Encoder and decoder for the settings, on ``cfg['device']``.

    :param cfg: checked settings of ``solver.check_settings``
    :param word_map: word -> index
    :param encoder: a module of your own in place of ``cfg['encoder']``
    :raises ValueError: ``cfg['decoder']`` cannot be found
    """
    encoder = build_encoder(cfg, encoder)
    decoder = build_decoder(cfg, len(word_map), encoder.encoder_dim)
    if files := edited(cfg.get('decoder')):
        distributed.log(f"{' and '.join(files)} changed after being read: what runs is the code from before. Restart "
                        "(a notebook's kernel) to run what is there now.")
    return CaptionModel(encoder.to(cfg['device']), decoder.to(cfg['device']), word_map, cfg)


def build_encoder(cfg, encoder=None):
    """
    :param encoder: a module of your own in place of ``cfg['encoder']``
    :return: ``models.Encoder``, (n, 3, H, W) pixels to (n, h, w, encoder_dim)
    :raises ValueError: as of ``models.Encoder``
    """
    return Encoder(cfg['encoder'] if encoder is None else encoder, cfg['encoded_image_size'], cfg['encoder_weights'],
                   cfg['encoder_stride'])


def build_decoder(cfg, vocab_size, encoder_dim):
    """A decoder gets those sizes that its ``__init__`` names (all of them if it has ``**kwargs``) and its options.

    :param encoder_dim: channels of the encoder's grid
    :return: a decoder of the class that the settings name, with scores (..., vocab_size)
    :raises ValueError: the class cannot be found
    """
    sizes = dict(attention_dim=cfg['attention_dim'], embed_dim=cfg['embed_dim'], decoder_dim=cfg['decoder_dim'],
                 vocab_size=vocab_size, encoder_dim=encoder_dim, dropout=cfg['dropout'])
    kind = find_decoder(cfg)
    taken = inspect.signature(kind.__init__).parameters
    if all(parameter.kind != parameter.VAR_KEYWORD for parameter in taken.values()):
        sizes = {name: size for name, size in sizes.items() if name in taken}
    return kind(**{**sizes, **cfg['decoder_options']})


def save_checkpoint(paths, model, optimizers, schedulers):
    """Write a checkpoint to each of the paths, atomically; a path keeps its older one if the disk is full.

    A frozen encoder is kept by name and digest only; one that is or was fine-tuned with its weights.

    :param optimizers: dict name -> optimizer
    :param schedulers: dict name -> scheduler
    :raises OSError: the disk is full
    """
    keep_encoder = model.settings['fine_tune_encoder'] or model.tuned
    state = dict(
        format=FORMAT, settings=model.settings, word_map=model.word_map, history=model.history,
        fingerprints=model.fingerprints, decoder=model.decoder.state_dict(),
        encoder=model.encoder.stages.state_dict() if keep_encoder else None,
        encoder_digest=encoder_digest(model.encoder),
        optimizers={name: optimizer.state_dict() for name, optimizer in optimizers.items()},
        schedulers={name: scheduler.state_dict() for name, scheduler in schedulers.items()},
        random_states=random_states())
    for path in paths:
        with atomic_path(path) as temporary, open(temporary, 'wb') as file:  # given a path, torch hides a full disk
            torch.save(state, file)


def read_checkpoint(path, device='cpu'):
    """:raises ValueError: no such file, a damaged one, or not a checkpoint of this lab"""
    path = Path(path).expanduser()
    try:
        with warnings.catch_warnings(action='ignore'):  # about pickles that it is about to refuse
            state = torch.load(path, map_location=device, weights_only=True)
        if isinstance(state, dict) and state['format'] == FORMAT:
            return state
        reason = 'it has another format'
    except FileNotFoundError:
        raise ValueError(f'there is no checkpoint {path}: train first, or correct the path') from None
    except pickle.UnpicklingError:  # torch's own words recommend to load it all the same
        reason = 'it holds something else than tensors and plain values'
    except Exception as error:  # torch reports a damaged or foreign file in many ways
        reason = f'{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ""}'
    raise ValueError(f'{path} is not a checkpoint of this lab ({reason}); train again or take another file')


def load_model(path, device=None, encoder=None):
    """The model of a checkpoint, in ``eval()``.

    :param path: a checkpoint file
    :param device: where to put it; None takes the GPU if there is one
    :param encoder: the module that was passed to training, if one was
    :return: :class:`CaptionModel`
    :raises ValueError: a file that is no checkpoint or does not fit this code
    """
    device = device or ('cuda' if torch.cuda.is_available() else 'cpu')
    state = read_checkpoint(path, device)
    cfg = {**state['settings'], 'device': str(device)}
    if encoder is None and cfg['encoder'] is None:
        raise ValueError(f'{path} was trained with an encoder of your own: pass it as encoder=...')
    if state['encoder'] is not None:
        cfg['encoder_weights'] = None  # they come from the checkpoint
    try:
        model = build_model(cfg, state['word_map'], encoder)
    except ValueError as error:  # it speaks of a setting, which is the checkpoint's
        raise ValueError(f'{path} does not fit this code: {error}') from error
    restore_model(model, state, path)
    model.settings['encoder_weights'] = state['settings']['encoder_weights']
    model.history = state['history']
    model.encoder.eval()
    model.decoder.eval()
    return model


def load_models(folder, names, device=None):
    """The best model of each decoder in a run folder.

    :param names: 'NoAttention', 'Attention' or the class of a decoder of your own; or a list of them
    :param device: as for :func:`load_model`
    :return: dict name -> :class:`CaptionModel`
    :raises ValueError: a decoder without a checkpoint; the message says which
    """
    models = {}
    for name in [names] if isinstance(names, str) else names:
        path = Path(folder).expanduser() / f'BEST_checkpoint_{name}.pth.tar'
        if not path.exists():
            raise ValueError(f'there is no checkpoint {path}: train this decoder first, correct run_folder, or take '
                             f'{name!r} out of decoders')
        models[name] = load_model(path, device)
    return models


def restore_model(model, state, path):
    """Load the weights of a read checkpoint.

    :raises ValueError: another decoder, other layers, or another encoder than the checkpoint was trained with
    """
    was = decoder_name(state['settings'])
    if was != model.name:
        raise ValueError(f'{path} holds the decoder {was}, and the settings say {model.name}: change attention or '
                         'decoder, or take another checkpoint')
    try:
        model.decoder.load_state_dict(state['decoder'])
        if state['encoder'] is not None:
            model.encoder.stages.load_state_dict(state['encoder'])
            model.tuned = True
    except RuntimeError as error:
        raise ValueError(f'{path} does not fit the decoder or encoder of the settings: '
                         f'{str(error).splitlines()[-1].strip()}') from error
    if encoder_digest(model.encoder) != state['encoder_digest']:
        raise ValueError(f'{path} was trained with other encoder weights than those loaded now: set encoder, '
                         'encoder_weights and encoder_stride as they were')


def random_states():
    """All random generators' states, as plain values and tensors."""
    return dict(python=list(random.getstate()), numpy=_plain(np.random.get_state()),
                torch=torch.get_rng_state(), cuda=torch.cuda.get_rng_state_all())


def restore_random_states(states):
    """Set all random generators to the states of :func:`random_states`."""
    version, inner, gauss = states['python']
    random.setstate((version, tuple(inner), gauss))
    kind, keys, *rest = states['numpy']
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states['torch'].cpu())
    if len(states['cuda']) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states['cuda']])
    elif torch.cuda.is_available():
        warnings.warn('the checkpoint comes from a machine with other GPUs: dropout will differ', stacklevel=2)


def _plain(numpy_state):
    kind, keys, position, has_gauss, gauss = numpy_state
    return [kind, keys.tolist(), int(position), int(has_gauss), float(gauss)]


def checkpoint_paths(cfg):
    """:return: (latest, best) checkpoint files of a training"""
    folder, name = Path(cfg['output_folder']), decoder_name(cfg)
    return folder / f"checkpoint_{cfg['data_name']}_{name}.pth.tar", folder / f'BEST_checkpoint_{name}.pth.tar'
