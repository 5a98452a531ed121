"""Train the encoder of the embedded data set and write ``weights/shapes_cnn.pth``.

    python -m instructor.pretrain_shapes_cnn

As an ImageNet classifier learns from one label per photo, this one learns from the list of coloured shapes in
a picture ("red star", "blue ring"): no boxes, no captions, and none of the pictures of the data set itself,
which come from other random streams. Each cell of the grid votes for what it sees; a picture holds what its
best cells vote for.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from encoders import SHAPES_CNN_WEIGHTS, shapes_cnn
from shapes import COLORS, SHAPES, draw_scene
from utils import atomic_path, seed_everything

KINDS = [(color, shape) for color in COLORS for shape in SHAPES]
STREAM = 0x5EED  # first word of the random streams here; generate_shapes uses others


def picture(index):
    """:return: image (256, 256, 3) uint8, label (len(KINDS),) 1 where such an object is there"""
    image, scene = draw_scene(np.random.default_rng([STREAM, index]))
    held = {(o['color'], o['shape']) for o in scene['objects']}
    return image, np.array([kind in held for kind in KINDS], dtype=np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--pictures', type=int, default=8000)
    parser.add_argument('--epochs', type=int, default=6)
    parser.add_argument('--batch-size', type=int, default=64)
    parser.add_argument('--lr', type=float, default=4e-3)
    parser.add_argument('--output', type=Path, default=SHAPES_CNN_WEIGHTS)
    args = parser.parse_args()

    seed_everything(0)
    held_out = 500
    total = args.pictures + held_out
    images = torch.empty(total, 3, 256, 256, dtype=torch.uint8)
    labels = torch.empty(total, len(KINDS))
    with ProcessPoolExecutor() as pool:
        for i, (image, label) in enumerate(tqdm(pool.map(picture, range(total), chunksize=50), total=total)):
            images[i] = torch.from_numpy(image).permute(2, 0, 1)
            labels[i] = torch.from_numpy(label)

    encoder = shapes_cnn().to(memory_format=torch.channels_last)
    vote = nn.Conv2d(128, len(KINDS), 1)
    parameters = [*encoder.parameters(), *vote.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=args.lr, weight_decay=1e-2)
    steps = args.epochs * (args.pictures // args.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=steps)

    def scores(batch):
        pixels = ((batch.float() / 255 - 0.5) / 0.25).contiguous(memory_format=torch.channels_last)
        with torch.autocast('cpu', torch.bfloat16):  # nearly three times as fast where the processor has it
            votes = vote(encoder(pixels))
        return votes.float().flatten(2).topk(8, dim=2).values.mean(dim=2)

    for epoch in range(1, args.epochs + 1):
        encoder.train()
        order = torch.randperm(args.pictures).split(args.batch_size)[:args.pictures // args.batch_size]
        bar = tqdm(order, desc=f'epoch {epoch}/{args.epochs}', mininterval=10)
        for rows in bar:
            loss = nn.functional.binary_cross_entropy_with_logits(scores(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.set_postfix(loss=f'{loss.item():.4f}', refresh=False)
        encoder.eval()
        with torch.no_grad():
            guesses = torch.cat([scores(batch) > 0 for batch in images[args.pictures:].split(100)])
        right = (guesses == labels[args.pictures:].bool()).all(dim=1).float().mean()
        print(f'epoch {epoch}: {right:.1%} of {held_out} held-out pictures named without a mistake', flush=True)
        with atomic_path(args.output) as temporary:
            torch.save(encoder.state_dict(), temporary)
    print(f'{args.output}: {args.output.stat().st_size / 1e6:.2f} MB')


if __name__ == '__main__':
    main()
