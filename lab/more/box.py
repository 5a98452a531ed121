"""The model in the box: ``weights/photos.safetensors`` captions photos without data and without training.

Such a file holds a trained ``DecoderWithAttention`` with its vocabulary and settings, and its encoder if that was
fine-tuned. Matrices are int8 with a scale for each row, a quarter of the bytes of a checkpoint's. The weights run in
the ``DecoderWithAttention`` of ``models.py``.
"""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lab.train.checkpoints import read_checkpoint
from lab.train.model import build_model
from lab.train.settings import check_settings
from utils import atomic_path

PHOTOS = Path(__file__).parents[2] / 'weights' / 'photos.safetensors'
KEPT = ('attention', 'encoder', 'encoder_stride', 'encoded_image_size', 'embed_dim', 'attention_dim', 'decoder_dim')


def pack(checkpoint, path):
    """Write a trained model in a quarter of the bytes.

    :param checkpoint: path of a best checkpoint
    :param path: of the ``.safetensors`` file
    """
    state, tensors = read_checkpoint(checkpoint), {}
    for part in ('encoder', 'decoder'):
        for name, weight in (state[part] or {}).items():
            if weight.dim() < 2 or not weight.is_floating_point():
                tensors[f'{part}.{name}'] = weight.contiguous()
                continue
            scale = weight.flatten(1).abs().amax(dim=1).clamp(min=1e-12) / 127
            rows = (weight / scale.view(-1, *[1] * (weight.dim() - 1))).round()
            tensors[f'{part}.{name}'], tensors[f'{part}.{name}.scale'] = rows.to(torch.int8).contiguous(), scale
    settings = {name: state['settings'][name] for name in KEPT}
    about = dict(settings=json.dumps(settings), word_map=json.dumps(state['word_map'], ensure_ascii=False))
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, about)


def load_box(path=PHOTOS, device='cpu'):
    """The model of a file of :func:`pack`, in ``eval()``, with weights in single precision.

    :return: :class:`model.CaptionModel`
    :raises NotImplementedError: TODO 3 or 4 is not done yet
    """
    parts = dict(encoder={}, decoder={})
    with safe_open(path, 'pt') as file:
        about, names = file.metadata(), list(file.keys())
        for name in names:
            weight, (part, _, own) = file.get_tensor(name), name.partition('.')
            if weight.dtype == torch.int8:
                scale = file.get_tensor(f'{name}.scale')
                weight = weight.float() * scale.view(-1, *[1] * (weight.dim() - 1))
            if not (name.endswith('.scale') and name.removesuffix('.scale') in names):
                parts[part][own] = weight
    cfg = check_settings(json.loads(about['settings']) | dict(device=str(device)))
    if parts['encoder']:
        cfg['encoder_weights'] = None  # they come from this file
    model = build_model(cfg, json.loads(about['word_map']))
    model.decoder.load_state_dict(parts['decoder'])
    if parts['encoder']:
        model.encoder.stages.load_state_dict(parts['encoder'])
    return model.eval().to(device)
