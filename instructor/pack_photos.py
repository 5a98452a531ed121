"""Make ``weights/photos.safetensors`` of a trained checkpoint, and say what 8 bits lose on the validation split.

    python -m instructor.pack_photos runs/photos/BEST_checkpoint_Attention.pth.tar

``docs/photos.md`` has the training.
"""

import argparse
import sys

from instructor.assemble import ROOT, assemble

PHOTOS = ROOT / 'weights' / 'photos.safetensors'
FOLDERS = dict(data_folder='data/flickr8k', output_folder='runs/photos', start_from=None, checkpoint=None, device=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkpoint')
    arguments = parser.parse_args()
    sys.path.insert(0, str(assemble(ROOT / 'instructor' / 'models.py', ROOT / 'build' / 'reference')))
    from lab.decode.evaluate import evaluate
    from lab.train.box import pack
    from lab.train.checkpoints import load_model, read_checkpoint

    state = read_checkpoint(arguments.checkpoint)
    data_folder = state['settings']['data_folder']
    pack(state | dict(settings=state['settings'] | FOLDERS), PHOTOS)
    print(f'{PHOTOS}: {PHOTOS.stat().st_size / 1e6:.2f} MB')
    for path in (arguments.checkpoint, PHOTOS):
        for model in load_model(path).by_language():
            model.settings = {**model.settings, 'data_folder': data_folder}
            result = evaluate(model, split='VAL', beam_sizes=[3])
            different = len({tuple(words) for words in result['captions_per_beam'][0]})
            print(path, model.language, result['scores'][0], f'{different} different captions')


if __name__ == '__main__':
    main()
