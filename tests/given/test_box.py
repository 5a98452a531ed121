"""The model in the box captions without data."""

import pytest
import torch
from skimage import data

from lab.data.box import PHOTOS
from lab.decode.evaluate import caption_image
from lab.figures.style import CHINESE
from lab.train.checkpoints import load_model, load_models


def test_a_damaged_box(tmp_path):
    path = tmp_path / PHOTOS.name
    path.write_bytes(PHOTOS.read_bytes()[:-100])
    with pytest.raises(ValueError, match=path.name):
        load_model(path)


def test_the_lab_captions_a_photo_in_two_languages():
    models = load_models('', 'photos', 'cpu')
    assert list(models) == ['photos_en', 'photos_zh'] and PHOTOS.stat().st_size < 13e6
    assert list(load_models('', 'photos_zh', 'cpu')) == ['photos_zh']
    photo = torch.from_numpy(data.astronaut()).permute(2, 0, 1)
    english, chinese = (caption_image(model, photo) for model in models.values())
    assert len(english['caption']) > 4 and not CHINESE.search(''.join(english['caption']))
    assert all(CHINESE.search(word) for word in chinese['caption'])
    assert chinese['alphas'].shape == (len(chinese['caption']), 8, 8)
