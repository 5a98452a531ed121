"""The model in the box: what 8 bits keep of a checkpoint, and that it captions without data."""

import pytest
import torch
from skimage import data

from lab.decode.evaluate import caption_image
from lab.figures.style import CHINESE
from lab.train.box import PHOTOS, pack
from lab.train.checkpoints import checkpoint_paths, load_model, load_models, read_checkpoint
from solver import check_settings


@pytest.fixture
def packed(trained, tmp_path):
    """The path of a packed model, and its checkpoint."""
    checkpoint = checkpoint_paths(check_settings(trained(True)[0]))[1]
    encoder = load_model(checkpoint).encoder.stages.state_dict()  # as if it were fine-tuned
    pack(read_checkpoint(checkpoint) | dict(encoder=encoder), tmp_path / 'model.safetensors')
    return tmp_path / 'model.safetensors', checkpoint


def test_a_packed_model_is_the_checkpoints(packed):
    small, whole = (load_model(path, 'cpu') for path in packed)
    assert small.word_map == whole.word_map and small.settings == whole.settings
    assert small.tuned
    for (name, kept), weight in zip(small.state_dict().items(), whole.state_dict().values(), strict=True):
        rows = weight.reshape(len(weight) if weight.dim() > 1 else 1, -1)
        step = rows.abs().amax(dim=1, keepdim=True) / 127 if weight.dim() > 1 else 0
        assert ((kept.reshape(rows.shape) - rows).abs() <= step * 0.501).all(), name


def test_a_damaged_box(packed):
    path, _ = packed
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=path.name):
        load_model(path)


def test_the_lab_captions_a_photo_in_two_languages():
    models = load_models('', 'photos', 'cpu')
    assert list(models) == ['photos_en', 'photos_zh'] and PHOTOS.stat().st_size < 13e6
    photo = torch.from_numpy(data.astronaut()).permute(2, 0, 1)
    english, chinese = (caption_image(model, photo) for model in models.values())
    assert len(english['caption']) > 4 and not CHINESE.search(''.join(english['caption']))
    assert all(CHINESE.search(word) for word in chinese['caption'])
    assert chinese['alphas'].shape == (len(chinese['caption']), 8, 8)
