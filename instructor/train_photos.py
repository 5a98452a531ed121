"""Train the model of photos: three runs, each from the best weights of the one before.

    python -m instructor.train_photos

``docs/photos.md`` has the preparation of the data, the scores of each run, and the command that makes the file of them.
"""

import argparse
import sys

import torch
from torchvision.transforms import v2

from instructor.assemble import ROOT, assemble

CFG = dict(
    data_name='flickr8k_5_cap_per_img_5_min_word_freq', encoder='efficientnet_lite1', encoded_image_size=None,
    embed_dim=288, attention_dim=256, decoder_dim=416, embed_dropout=0.3, label_smoothing=0.1, flip=True, epochs=3,
    batch_size=64, decoder_lr=1e-3, cosine=True, monitor='greedy_cider')
RUNS = {
    'frozen': {},
    'fine_tuned': dict(fine_tune_encoder=True, decoder_lr=2e-4, encoder_lr=1e-4),
    'self_critical': dict(self_critical='mean', epochs=4, batch_size=128, decoder_lr=3e-4, label_smoothing=0.0,
                          feature_dropout=0.2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data-folder', default='data/flickr8k_both', help='default: %(default)s')
    parser.add_argument('--output-folder', default='runs/photos', help='default: %(default)s')
    parser.add_argument('--seed', type=int, default=0, help='default: %(default)s')
    arguments = parser.parse_args()
    sys.path.insert(0, str(assemble(ROOT / 'instructor' / 'models.py', ROOT / 'build' / 'reference')))
    from datasets import CaptionDataset
    from solver import train

    whole, crop = CaptionDataset.images, v2.RandomResizedCrop(256, scale=(0.6, 1.0), ratio=(0.85, 1.18))

    def cropped(self, numbers, mirrored=False):
        images = whole(self, numbers, mirrored)
        return torch.stack([crop(image) for image in images]) if self.split == 'TRAIN' else images

    best = None
    for name, own in RUNS.items():
        # each epoch sees other parts of the photos; a frozen encoder would keep the features of one crop
        CaptionDataset.images = cropped if name == 'fine_tuned' else whole
        folder = f'{arguments.output_folder}/{name}'
        train(CFG | own | dict(data_folder=arguments.data_folder, output_folder=folder, start_from=best,
                               seed=arguments.seed))
        best = f'{folder}/BEST_checkpoint_Attention.pth.tar'


if __name__ == '__main__':
    main()
