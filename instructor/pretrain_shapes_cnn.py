"""Train the encoder of the embedded data set and write ``weights/shapes_cnn.pth``.

    python -m instructor.pretrain_shapes_cnn

Each cell of the encoder's grid learns to say what lies there: the size, colour and shape of the object whose box
holds the cell's centre, or nothing. No captions, and none of the pictures of the data set itself, which come from
other random streams. (One list of labels per picture, as for ImageNet, was tried first: see docs/shapes.md.)
"""

import argparse
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from accelerate.utils import set_seed
from torch import nn
from tqdm import tqdm

from lab.data.encoders import SHAPES_CNN_WEIGHTS, shapes_cnn
from lab.data.shapes import COLORS, SHAPES, SIZE, SIZES, draw_scene
from utils import atomic_path

ATTRIBUTES = {'size': list(SIZES), 'color': list(COLORS), 'shape': list(SHAPES)}
GRID = 16  # cells along a side
PICTURES, HELD_OUT, EPOCHS, BATCH_SIZE, LR = 8000, 500, 5, 64, 4e-3
STREAM = 0x5EED  # first word of the random streams here; generate_shapes uses others


def picture(index):
    """:return: image (256, 256, 3) uint8, labels (3, 16, 16) uint8: size, colour, shape per cell; 0 is nothing"""
    image, scene = draw_scene(np.random.default_rng([STREAM, index]))
    labels = np.zeros((len(ATTRIBUTES), GRID, GRID), dtype=np.uint8)
    centre = (np.arange(GRID) + 0.5) * SIZE / GRID
    for item in scene['objects']:
        x0, y0, x1, y1 = item['box']
        inside = np.outer((y0 <= centre) & (centre < y1), (x0 <= centre) & (centre < x1))
        for label, (name, values) in zip(labels, ATTRIBUTES.items(), strict=True):
            label[inside] = 1 + values.index(item[name])
    return image, labels


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    set_seed(0)
    total = PICTURES + HELD_OUT
    images = torch.empty(total, 3, 256, 256, dtype=torch.uint8)
    labels = torch.empty(total, len(ATTRIBUTES), GRID, GRID, dtype=torch.uint8)
    with ProcessPoolExecutor() as pool:
        for i, (image, label) in enumerate(tqdm(pool.map(picture, range(total), chunksize=50), total=total)):
            images[i] = torch.from_numpy(image).permute(2, 0, 1)
            labels[i] = torch.from_numpy(label)

    encoder = shapes_cnn().to(memory_format=torch.channels_last)
    choices = [1 + len(values) for values in ATTRIBUTES.values()]
    vote = nn.LazyConv2d(sum(choices), 1)
    vote(encoder(torch.zeros(1, 3, SIZE, SIZE)))  # now it knows its channels
    parameters = [*encoder.parameters(), *vote.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=1e-2)
    steps = EPOCHS * (PICTURES // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=steps)

    def scores(batch):
        """:return: per attribute (n, choices, 16, 16)"""
        pixels = ((batch.float() / 255 - 0.5) / 0.25).contiguous(memory_format=torch.channels_last)
        with torch.autocast('cpu', torch.bfloat16):  # nearly three times as fast where the processor has it
            votes = vote(encoder(pixels))
        return votes.float().split(choices, dim=1)

    for epoch in range(1, EPOCHS + 1):
        encoder.train()
        order = torch.randperm(PICTURES).split(BATCH_SIZE)[:PICTURES // BATCH_SIZE]
        bar = tqdm(order, desc=f'epoch {epoch}/{EPOCHS}', mininterval=10)
        for rows in bar:
            truth = labels[rows].long()
            loss = sum(nn.functional.cross_entropy(score, truth[:, i]) for i, score in enumerate(scores(images[rows])))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.set_postfix(loss=f'{loss.item():.4f}', refresh=False)
        encoder.eval()
        with torch.no_grad():
            guesses = torch.cat([torch.stack([score.argmax(dim=1) for score in scores(batch)], dim=1)
                                 for batch in images[PICTURES:].split(100)])
        truth = labels[PICTURES:]
        right = (guesses == truth).all(dim=1)[truth[:, 0] > 0].float().mean()
        print(f'epoch {epoch}: {right:.1%} of the object cells of {HELD_OUT} held-out pictures right', flush=True)
        with atomic_path(SHAPES_CNN_WEIGHTS) as temporary:
            torch.save(encoder.state_dict(), temporary)
    print(f'{SHAPES_CNN_WEIGHTS}: {SHAPES_CNN_WEIGHTS.stat().st_size / 1e6:.2f} MB')


if __name__ == '__main__':
    main()
