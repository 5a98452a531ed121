"""An epoch and a test pass at COCO's size: ``python -m benchmarks.coco --device cuda``.

As many pictures, captions, words and cells as COCO has, with random features in place of the photos', through the
same ``solver.train`` and ``evaluate.evaluate`` as the notebooks. It needs no download and 34 GB on the disk.
``--pictures 4000`` takes fewer, and says what that would be for all.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import torch
import torchvision

from instructor.assemble import ROOT, assemble

PICTURES, OTHERS, PER_PICTURE, VOCABULARY, LONGEST = 113_287, 5_000, 5, 9_490, 50
NAME = 'coco_sized'


def write_split(folder, split, pictures, words, rng):
    """The files that ``create_input_files`` would write, of pictures that are not there.

    Captions are as long as COCO's (10.5 words on average, standard deviation 2.4) and their words as unequally frequent
    as a language's (the i-th with probability 1 / i); they have nothing to do with the pictures.

    :param pictures: how many; ``words``: list of the vocabulary's words; ``rng``: numpy's random generator
    """
    lengths = rng.normal(10.5, 2.4, (pictures, PER_PICTURE)).round().clip(6, 40).astype(int)
    frequency = 1 / np.arange(1, len(words) + 1)
    drawn = rng.choice(len(words), lengths.sum(), p=frequency / frequency.sum())
    captions = np.zeros((pictures * PER_PICTURE, LONGEST + 2), dtype=int)  # <pad> is 0
    place = np.arange(LONGEST + 2)
    captions[:, 0] = len(words) + 2  # <start>, as vocabulary.build_word_map numbers it
    captions[(1 <= place) & (place <= lengths.reshape(-1, 1))] = drawn + 1
    captions[place == lengths.reshape(-1, 1) + 1] = len(words) + 3  # <end>
    sentences = iter(np.split(np.array(words)[drawn], lengths.flatten().cumsum()[:-1]))
    references = [json.dumps([next(sentences).tolist() for _ in range(PER_PICTURE)]) for _ in range(pictures)]
    with h5py.File(folder / f'{split}_IMAGES_{NAME}.hdf5', 'w') as file:
        file.attrs.update(captions_per_image=PER_PICTURE, pictures=f'{split} {pictures}')
        file['references'], file['names'] = references, [f'{split}{i}.jpg' for i in range(pictures)]
        file.create_dataset('images', (pictures, 3, 256, 256), 'uint8', fill_time='never')[-1:] = 0
    for kind, values in ('CAPTIONS', captions.tolist()), ('CAPLENS', (lengths.flatten() + 2).tolist()):
        (folder / f'{split}_{kind}_{NAME}.json').write_text(json.dumps(values))


def write_features(folder, split, encoder, rng):
    """The file that ``features.encode_images`` would write: (pictures, h, w, encoder_dim) at random, none below 0."""
    from datasets import CaptionDataset
    from lab.train.features import file_of
    dataset = CaptionDataset(folder, NAME, split)
    grid = tuple(encoder.native_grid(torch.zeros(1, 3, 256, 256)).shape[1:])
    file = np.lib.format.open_memmap(file_of(encoder, dataset, grid), 'w+', np.float16, (len(dataset.names), *grid))
    block = rng.standard_normal((min(len(file), 997), *grid), dtype=np.float32).clip(0).astype(np.float16)
    for start in range(0, len(file), len(block)):
        file[start:start + len(block)] = block[:len(file) - start]


def write_all(folder, args):
    """All that a training needs but for the features of VAL; :return: the encoder, and the file of its weights"""
    from lab.data.vocabulary import build_word_map
    from models import Encoder

    rng = np.random.default_rng(0)
    words = [f'w{i:05}' for i in range(args.words - 4)]  # in alphabetical order, as build_word_map numbers them
    (folder / f'WORDMAP_{NAME}.json').write_text(json.dumps(build_word_map([words], 1)))
    torch.manual_seed(0)
    weights = folder / 'encoder.pth'
    backbone = torchvision.models.get_model(args.encoder, weights=None)
    for module in backbone.modules():  # a hundred random layers add up to more than half precision holds
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.constant_(module.weight, 0.3)
    torch.save(backbone.state_dict(), weights)
    encoder = Encoder(args.encoder, None, weights=str(weights)).eval()
    sizes = dict(TRAIN=args.pictures, VAL=args.others, TEST=args.others)
    with torch.no_grad():
        for split, pictures in sizes.items():
            write_split(folder, split, pictures, words, rng)
            if split != 'VAL':
                write_features(folder, split, encoder, rng)
    return encoder, weights


def measure(folder, args):
    """:return: list of (what, value, unit, the value for all of COCO or None)"""
    import solver
    from datasets import CaptionDataset
    from lab.decode.evaluate import evaluate
    from lab.train import checkpoints, features

    encoder, weights = write_all(folder, args)
    rows, of_all = [], PICTURES / args.pictures

    start = time.perf_counter()  # black pictures, as that file has no others: the encoder does not mind
    features.encode_images(encoder.to(args.device), CaptionDataset(folder, NAME, 'VAL'), args.device)
    seconds = time.perf_counter() - start
    rows.append((f'{args.encoder} over {args.others:,} pictures, features written', seconds, 's',
                 seconds * PICTURES / args.others))

    epochs, train_epoch = [], solver.train_epoch

    def timed(*given):
        began = time.perf_counter()
        scores = train_epoch(*given)  # it ends by asking for the loss, so a GPU is done
        epochs.append(time.perf_counter() - began)
        return scores

    solver.train_epoch = timed
    cfg = dict(data_folder=str(folder), data_name=NAME, encoder=args.encoder, encoder_weights=str(weights),
               encoded_image_size=None, batch_size=args.batch_size, epochs=args.epochs, device=args.device,
               output_folder=str(folder / 'runs'))
    start = time.perf_counter()
    history = solver.train(cfg)
    whole = time.perf_counter() - start
    captions = PER_PICTURE * args.pictures
    rows.append(('before the first epoch: reading captions',
                 whole - sum(epoch['seconds'] for epoch in history), 's', None))
    rows.append((f'an epoch of {captions:,} captions, the best of {args.epochs}', min(epochs), 's',
                 min(epochs) * of_all))
    rows.append(('captions', captions / min(epochs), 'per second', None))
    rows.append((f'validation on {args.others:,} pictures', min(one['seconds'] - other for one, other in
                                                                zip(history, epochs, strict=True)), 's', None))

    model = checkpoints.load_model(checkpoints.checkpoint_paths({**solver.DEFAULTS, **cfg})[0], args.device)
    result = evaluate(model, 'TEST', (1, 3, 5))
    length = np.mean([len(one['caption']) for one in result['captions']])
    for score in result['scores']:
        rows.append((f"BLEU pass on {args.others:,} pictures, beam {score['beam_size']} (captions of "
                     f'{length:.1f} words)', score['seconds'], 's', None))
    return rows


def markdown(rows, about):
    lines = [f'| {about} | | all of COCO |', '|:---|---:|---:|']
    for what, value, unit, of_all in rows:
        lines.append(f"| {what} | {value:,.1f} {unit} | {'' if of_all is None else f'{of_all:,.0f} {unit}'} |")
    return '\n'.join(lines) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--pictures', type=int, default=PICTURES, help='to train on')
    parser.add_argument('--others', type=int, default=OTHERS, help='to validate and to test on, each')
    parser.add_argument('--words', type=int, default=VOCABULARY)
    parser.add_argument('--encoder', default='resnet101')
    parser.add_argument('--epochs', type=int, default=2)
    parser.add_argument('--batch-size', type=int, default=80, help='captions')
    parser.add_argument('--output-folder', type=Path, default=ROOT / 'build' / 'bench')
    parser.add_argument('--build', type=Path, default=ROOT / 'build' / 'coco', help='build folder')
    args = parser.parse_args()
    args.output_folder.mkdir(parents=True, exist_ok=True)
    needed = (args.pictures + 2 * args.others) * 64 * 2048 * 2 * 1.05
    if needed > (free := shutil.disk_usage(args.output_folder).free):
        parser.error(f'features of {args.pictures:,} pictures need {needed / 1e9:.0f} GB of disk space, and '
                     f'{args.output_folder} has {free / 1e9:.0f} GB: take fewer --pictures')
    # before the lab's own modules are imported: models.py there is the reference
    sys.path.insert(0, str(assemble(ROOT / 'instructor' / 'models.py', args.build)))
    with tempfile.TemporaryDirectory(dir=args.output_folder) as folder:
        rows = measure(Path(folder), args)
    from utils import atomic_path
    about = ', '.join([f'torch {torch.__version__}', f'batches of {args.batch_size}',
                       torch.cuda.get_device_name() if args.device.startswith('cuda') else
                       f'{torch.get_num_threads()} threads'])
    for name, text in (('coco.md', markdown(rows, about)),
                       ('coco.json', json.dumps(dict(settings={key: str(value) for key, value in vars(args).items()},
                                                     rows=rows), indent=1))):
        with atomic_path(args.output_folder / name) as path:
            path.write_text(text, encoding='utf-8')
    print('\n' + markdown(rows, about))


if __name__ == '__main__':
    main()
