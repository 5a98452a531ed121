"""Checkpoints: everything to go on training or to caption a picture, in one file that runs no code.

A checkpoint is a dict of tensors, numbers, strings, lists and dicts: state dicts, settings, vocabulary,
history, optimizers and random states. It holds no pickled modules and is read with ``weights_only=True``.
"""

import random
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from features import encoder_digest
from models import DecoderWithAttention, DecoderWithRNN, Encoder
from utils import atomic_path


@dataclass
class CaptionModel:
    """An encoder, a decoder and their vocabulary, ready to caption.

    :ivar word_map: word -> index
    :ivar settings: the ``cfg`` of its training
    :ivar history: per epoch a dict of losses and scores
    :ivar tuned: the encoder's weights come from a checkpoint, of a training that fine-tuned it
    """

    encoder: nn.Module
    decoder: nn.Module
    word_map: dict
    settings: dict
    history: list = field(default_factory=list)
    tuned: bool = False

    @property
    def name(self):
        """'Attention' or 'NoAttention'."""
        return decoder_name(self.settings)

    def words(self, indices):
        """Word indices to words."""
        words = {index: word for word, index in self.word_map.items()}
        return [words[index] for index in indices]


def decoder_name(cfg):
    """'Attention' or 'NoAttention', as the checkpoint files are called."""
    return 'Attention' if cfg['attention'] else 'NoAttention'


def build_model(cfg, word_map, encoder=None):
    """Encoder and decoder for the settings, on ``cfg['device']``.

    :param cfg: checked settings of ``solver.check_settings``
    :param word_map: word -> index
    :param encoder: a module of your own in place of ``cfg['encoder']``
    """
    encoder = Encoder(cfg['encoder'] if encoder is None else encoder, cfg['encoded_image_size'],
                      cfg['encoder_weights'], cfg['encoder_stride'])
    sizes = dict(embed_dim=cfg['embed_dim'], decoder_dim=cfg['decoder_dim'], vocab_size=len(word_map),
                 encoder_dim=encoder.encoder_dim, dropout=cfg['dropout'])
    if cfg['attention']:
        decoder = DecoderWithAttention(attention_dim=cfg['attention_dim'], **sizes)
    else:
        decoder = DecoderWithRNN(**sizes)
    return CaptionModel(encoder.to(cfg['device']), decoder.to(cfg['device']), word_map, cfg)


def save_checkpoint(paths, model, optimizers, progress):
    """Write a checkpoint to each of the paths, atomically.

    A frozen encoder is kept by name and digest only; one that is or was fine-tuned with its weights.

    :param optimizers: dict name -> optimizer
    :param progress: dict of plain values: epoch, best score, ...
    """
    keep_encoder = model.settings['fine_tune_encoder'] or model.tuned
    state = dict(
        format=1, settings=model.settings, word_map=model.word_map, history=model.history, progress=progress,
        decoder=model.decoder.state_dict(),
        encoder=model.encoder.stages.state_dict() if keep_encoder else None,
        encoder_digest=encoder_digest(model.encoder),
        optimizers={name: optimizer.state_dict() for name, optimizer in optimizers.items()},
        random_states=random_states())
    for path in paths:
        with atomic_path(path) as temporary:
            torch.save(state, temporary)


def read_checkpoint(path, device='cpu'):
    """:raises ValueError: no such file, or not a checkpoint of this lab"""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        if isinstance(state, dict) and state['format'] == 1:
            return state
        reason = 'it has another format'
    except FileNotFoundError:
        raise ValueError(f'there is no checkpoint {path}: train first, or correct the path') from None
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
    model = build_model(cfg, state['word_map'], encoder)
    restore_model(model, state, path)
    model.settings['encoder_weights'] = state['settings']['encoder_weights']
    model.history = state['history']
    model.encoder.eval()
    model.decoder.eval()
    return model


def restore_model(model, state, path):
    """Load the weights of a read checkpoint.

    :raises ValueError: other layers, or another encoder than the checkpoint was trained with
    """
    try:
        model.decoder.load_state_dict(state['decoder'])
        if state['encoder'] is not None:
            model.encoder.stages.load_state_dict(state['encoder'])
            model.tuned = True
    except RuntimeError as error:
        raise ValueError(f'{path} does not fit the decoder or encoder in models.py and its settings: '
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
