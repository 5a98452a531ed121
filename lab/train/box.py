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

from lab.train.model import build_model
from lab.train.settings import check_settings
from utils import atomic_path

PHOTOS = Path(__file__).parents[2] / 'weights' / 'photos.safetensors'
KEPT = ('attention', 'encoder', 'encoder_stride', 'encoded_image_size', 'embed_dim', 'attention_dim', 'decoder_dim')


def pack(model, path):
    """Write a trained model in a quarter of the bytes.

    :param model: :class:`model.CaptionModel`
    :param path: of the ``.safetensors`` file
    """
    parts, tensors = {'decoder': model.decoder} | ({'encoder': model.encoder.stages} if model.tuned else {}), {}
    for part, module in parts.items():
        for name, weight in module.state_dict().items():
            if weight.dim() < 2:
                tensors[f'{part}.{name}'] = weight.contiguous()
                continue
            scale = weight.flatten(1).abs().amax(dim=1).clamp(min=1e-12) / 127
            tensors[f'{part}.{name}'] = (weight / along_rows(scale, weight)).round().to(torch.int8).contiguous()
            tensors[f'{part}.{name}.scale'] = scale
    about = dict(settings=json.dumps({name: model.settings[name] for name in KEPT}),
                 word_map=json.dumps(model.word_map, ensure_ascii=False))
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, about)


def along_rows(scale, weight):
    return scale.view(-1, *[1] * (weight.dim() - 1))


def load_box(path=PHOTOS, device='cpu'):
    """The model of a file of :func:`pack`, in ``eval()``, with weights in single precision.

    :return: :class:`model.CaptionModel`, called 'photos'
    :raises NotImplementedError: TODO 3 or 4 is not done yet
    """
    parts = dict(encoder={}, decoder={})
    with safe_open(path, 'pt') as file:
        about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}
    for name, weight in tensors.items():
        part, _, own = name.partition('.')
        if weight.dtype == torch.int8:
            weight = weight.float() * along_rows(tensors[f'{name}.scale'], weight)
        if not own.endswith('.scale'):
            parts[part][own] = weight
    cfg = check_settings(json.loads(about['settings']) | dict(device=str(device)))
    if parts['encoder']:
        cfg['encoder_weights'] = None  # they come from this file
    model = build_model(cfg, json.loads(about['word_map']))
    model.decoder.load_state_dict(parts['decoder'])
    if parts['encoder']:
        model.encoder.stages.load_state_dict(parts['encoder'])
    model.kind = 'photos'
    return model.eval()
