"""Make ``weights/photos.safetensors`` of two trained checkpoints, and score it in 32 and in 8 bits on validation.

    python -m instructor.pack_photos FINE_TUNED SELF_CRITICAL --share 0.3

The decoder's weights are the average of those of two checkpoints with the same encoder, 0.7 of the first and 0.3 of the
second. Between the weights before and after a further training lie better ones (Wortsman et al., arXiv 2109.01903).
``docs/photos.md`` has the trainings.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from instructor.assemble import ROOT, assemble

PHOTOS = ROOT / 'weights' / 'photos.safetensors'
SETTINGS = dict(data_folder='data/flickr8k_both', output_folder='runs/photos', start_from=None, checkpoint=None,
                device=None, fine_tune_encoder=False)


def pack(state, path):
    """Write the model of a checkpoint, as ``lab/data/box.py`` reads it.

    :param state: of ``checkpoints.read_checkpoint``; an encoder that was not fine-tuned is kept by name
    :param path: ends in .safetensors
    """
    from lab.data.box import PARTS, VALUES
    from utils import atomic_path

    tensors = {}
    for part in PARTS:
        for name, weight in (state[part] or {}).items():
            if weight.dim() >= 2:
                scale = weight.abs().amax(dim=tuple(range(1, weight.dim())), keepdim=True).clamp(min=1e-12) / 127
                tensors[f'{part}.{name}.scale'], weight = scale, (weight / scale).round().to(torch.int8)
            tensors[f'{part}.{name}'] = weight.contiguous()
    values = {name: json.dumps(state[name], ensure_ascii=False) for name in VALUES}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkpoints', nargs=2)
    parser.add_argument('--share', type=float, default=0.3, help="the second's share of the weights")
    parser.add_argument('--to', type=Path, default=PHOTOS, help='the file; default: %(default)s')
    arguments = parser.parse_args()
    sys.path.insert(0, str(assemble(ROOT / 'instructor' / 'models.py', ROOT / 'build' / 'reference')))
    from lab.app import PHOTO_SEARCH
    from lab.decode.evaluate import evaluate
    from lab.train.checkpoints import load_model, read_checkpoint

    state, other = map(read_checkpoint, arguments.checkpoints)
    state['decoder'] = {name: torch.lerp(weight, other['decoder'][name], arguments.share)
                        for name, weight in state['decoder'].items()}
    data_folder = state['settings']['data_folder']
    state['settings'] |= SETTINGS
    pack(state, arguments.to)
    print(f'{arguments.to}: {arguments.to.stat().st_size / 1e6:.2f} MB')
    whole = ROOT / 'build' / 'average.pth.tar'
    torch.save(state, whole)
    for path in (whole, arguments.to):
        for model in load_model(path).by_language():
            model.settings = {**model.settings, 'data_folder': data_folder}
            result = evaluate(model, split='VAL', beam_sizes=[3], search=PHOTO_SEARCH)
            different = len({tuple(words) for words in result['captions_per_beam'][0]})
            print(path, model.language, result['scores'][0], f'{different} different captions')


if __name__ == '__main__':
    main()
