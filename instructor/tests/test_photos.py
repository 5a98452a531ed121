"""The model in the box: what 8 bits keep of a checkpoint."""

import torch

from instructor.pack_photos import pack
from lab.data.box import unpack


def test_a_packed_model_is_the_checkpoints(tmp_path):
    shapes = {'fc.weight': (7, 5), 'fc.bias': (7,), 'conv.weight': (4, 3, 2, 2), 'steps': ()}
    state = {part: {name: torch.randn(shape) for name, shape in shapes.items()} for part in ('decoder', 'encoder')}
    values = dict(settings=dict(alpha_c=1.0), word_map={'狗': 1}, encoder_digest='0f')
    pack(state | values, tmp_path / 'model.safetensors')
    kept = unpack(tmp_path / 'model.safetensors')
    assert values.items() <= kept.items()
    for part, weights in state.items():
        assert kept[part].keys() == weights.keys()
        for name, weight in weights.items():
            rows = weight.reshape(len(weight) if weight.dim() > 1 else 1, -1)
            step = rows.abs().amax(dim=1, keepdim=True) / 127 if weight.dim() > 1 else 0
            assert ((kept[part][name].reshape(rows.shape) - rows).abs() <= step * 0.501).all(), name
