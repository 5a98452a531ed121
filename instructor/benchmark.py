"""How much faster than the usual way: ``python -m instructor.benchmark``.

Sizes are those of the original lab on COCO (ResNet-101, 512 throughout, 9,490 words, 80 captions a batch); weights and
features are random, captions as long as COCO's. Both ways are timed in turns in one run, the best time of each counts,
and the table says their ratio. It is Markdown, for docs/speed.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

import lean
from beam_search import beam_search
from instructor import textbook
from instructor.assemble import ROOT
from solver import caption_loss

SIZES = dict(embed_dim=512, decoder_dim=512, vocab_size=9490, encoder_dim=2048)
CAPTIONS, PER_PICTURE, WORDS, BUCKETS = 80, 5, 11, 4


class Setting:
    """A decoder with random weights, and a batch of pictures and captions."""

    def __init__(self, models, kind, cells, pictures=CAPTIONS // PER_PICTURE):
        torch.manual_seed(0)
        self.decoder = (models.DecoderWithRNN(**SIZES) if kind == 'plain LSTM' else
                        models.DecoderWithAttention(**SIZES, attention_dim=512))
        self.pictures = torch.randn(pictures, cells, SIZES['encoder_dim']).relu()
        self.image_of = torch.arange(pictures).repeat_interleave(PER_PICTURE)
        count = len(self.image_of)
        # COCO's captions: 10.5 words on average, standard deviation 2.4; <start> and <end> on top
        lengths = (torch.randn(BUCKETS, count) * 2.4 + 10.5).round().clamp(6, 40).long() + 2
        self.lengths, self.buckets = lengths[0], lengths.flatten().sort().values.view(BUCKETS, count)
        self.captions = torch.randint(1, SIZES['vocab_size'] - 4, (count, 52))
        parameters = list(self.decoder.parameters())
        self.plain_adam = torch.optim.Adam(parameters, lr=4e-4)
        self.fused_adam = torch.optim.Adam(parameters, lr=4e-4, fused=True)

    def update(self, decoded, optimizer):
        loss, *_ = caption_loss(decoded, 1.0)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(self.decoder.parameters(), 5.0)
        optimizer.step()

    def textbook_step(self):
        self.update(textbook.forward(self.decoder, self.pictures[self.image_of], self.captions, self.lengths),
                    self.plain_adam)

    def lean_step(self):
        """All captions of a picture are in the batch."""
        self.update(lean.lean_forward(self.decoder, self.pictures, self.captions, self.lengths, self.image_of),
                    self.fused_adam)

    def bucketed_steps(self):
        """No two captions of the batch share a picture, all are of like length; as many steps as there are buckets."""
        for lengths in self.buckets:
            self.update(lean.lean_forward(self.decoder, self.pictures[self.image_of], self.captions, lengths),
                        self.fused_adam)


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turns(*functions, rounds=3, repeats=3):
    """The best time of each; in a turn it runs some times on end, as it does in a training."""
    times = [[min(seconds(function) for _ in range(repeats)) for function in functions] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


def row(what, unit, count, slow, fast):
    return (f'| {what} | {count / slow:.3g} {unit}/s | {count / fast:.3g} {unit}/s | **{slow / fast:.1f}** |')


def training(models):
    for kind, cells in (('soft attention', 64), ('soft attention', 196), ('plain LSTM', 64)):
        setting = Setting(models, kind, cells)
        slow, fast, bucketed = in_turns(setting.textbook_step, setting.lean_step, setting.bucketed_steps)
        yield row(f'training step, {kind}, {cells} cells, `by_picture`', 'captions', CAPTIONS, slow, fast)
        yield row('the same, `bucket` instead', 'captions', CAPTIONS, slow, bucketed / BUCKETS)
        if (kind, cells) == ('soft attention', 196):
            native = Setting(models, kind, 64)
            fast, = in_turns(native.lean_step)
            yield row('soft attention, 196 cells (8 × 8 pooled up to 14 × 14) against the native 64', 'captions',
                      CAPTIONS, slow, fast)


def matrix_rate(models):
    """Share of the machine's own matrix-product rate that a training step with attention reaches."""
    setting = Setting(models, 'soft attention', 64)
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    step, product = in_turns(setting.lean_step, lambda: a @ b)
    e, d, v, m = SIZES['encoder_dim'], SIZES['decoder_dim'], SIZES['vocab_size'], SIZES['embed_dim']
    words, pictures, cells, att = int((setting.lengths - 1).sum()), len(setting.pictures), 64, 512
    # multiplications: forward, gradient of the weights, gradient of the input (which the pictures do not need)
    per_word = 3 * (d * (att + e + 4 * d) + e * 4 * d + m * 4 * d + d * v) + 2 * 2 * cells * e + 4 * cells * att
    step_rate = 2 * (words * per_word + 2 * pictures * cells * e * att) / step
    yield (f'| matrix-product rate, of {2 * 2048 ** 3 / product / 1e9:.0f} GFLOP/s (2048 × 2048) | | '
           f'{step_rate / 1e9:.0f} GFLOP/s | {step_rate / (2 * 2048 ** 3 / product):.0%} |')


def epoch(models):
    """Encoder and training of all captions of a few pictures, per picture."""
    setting = Setting(models, 'soft attention', 196)
    native = Setting(models, 'soft attention', 64)
    encoder = models.Encoder('resnet101', 14, weights=None).train()
    images = torch.randint(0, 256, (len(setting.pictures), 3, 256, 256), dtype=torch.uint8)

    def usual():
        with torch.no_grad():
            encoder_out = torch.cat([encoder(images[part]) for part in setting.image_of.split(16)])
        setting.update(textbook.forward(setting.decoder, encoder_out, setting.captions, setting.lengths),
                       setting.plain_adam)

    slow, fast = in_turns(usual, native.lean_step, rounds=1)
    yield row('an epoch with a frozen ResNet-101: encoder per caption at 14 × 14, against features once at 8 × 8',
              'pictures', len(images), slow, fast)


def searching(models, pictures=32, beam_size=5):
    words = {f'w{i}': i for i in range(1, SIZES['vocab_size'] - 3)}
    word_map = {'<pad>': 0, **words, '<unk>': 9487, '<start>': 9488, '<end>': 9489}
    for kind in ('soft attention', 'plain LSTM'):
        setting = Setting(models, kind, 64, pictures)
        decoder = setting.decoder.eval()
        with torch.no_grad():  # random weights know no end: all captions have WORDS words
            decoder.fc.bias[word_map['<end>']] = -1e9

        def usual(setting=setting, decoder=decoder):
            for i in range(2):  # of the pictures; each five times, once per caption
                for _ in range(PER_PICTURE):
                    textbook.beam_search(decoder, setting.pictures[i:i + 1], word_map, beam_size, WORDS)

        def ours(setting=setting, decoder=decoder):
            beam_search(decoder, setting.pictures, word_map, beam_size, WORDS)

        slow, fast = in_turns(usual, ours, rounds=1)
        yield row(f'BLEU pass, beam {beam_size}, {kind}: one image at a time, five times each, against {pictures} at '
                  'once', 'images', 1, slow / 2, fast / pictures)


def preparing(_, pictures=4000):
    """640 x 480 JPEGs to HDF5."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        rng = np.random.default_rng(0)
        coarse = rng.integers(0, 256, (pictures, 30, 40, 3), dtype=np.uint8)
        entries = []
        for i, pixels in enumerate(coarse):
            Image.fromarray(pixels).resize((640, 480), Image.Resampling.BICUBIC).save(folder / f'{i}.jpg', quality=90)
            entries.append(dict(filename=f'{i}.jpg', split='train', sentences=[dict(tokens=['a', 'picture'])] * 5))
        (folder / 'set.json').write_text(json.dumps(dict(images=entries)))

        def usual():
            with h5py.File(folder / 'usual.hdf5', 'w') as file:
                images = file.create_dataset('images', (pictures, 3, 256, 256), dtype='uint8')
                for i in range(pictures):
                    image = Image.open(folder / f'{i}.jpg').convert('RGB').resize((256, 256), Image.Resampling.BICUBIC)
                    image = np.asarray(image).transpose(2, 0, 1)
                    assert image.shape == (3, 256, 256) and np.max(image) <= 255
                    images[i] = image

        def ours():
            with tempfile.TemporaryDirectory() as output:
                subprocess.run([sys.executable, 'create_input_files.py', '--dataset=set', '--min-word-freq=1',
                                f'--karpathy-json-path={folder / "set.json"}', f'--image-folder={folder}',
                                f'--output-folder={output}'], cwd=ROOT, check=True, capture_output=True)

        slow, fast = in_turns(usual, ours, rounds=1)
        yield row('preparation of 640 × 480 JPEGs', 'images', pictures, slow, fast)


PARTS = dict(training=training, matrix_rate=matrix_rate, epoch=epoch, searching=searching, preparing=preparing)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('parts', nargs='*', metavar='PART', help=f"{', '.join(PARTS)}; default: all")
    chosen = parser.parse_args().parts or list(PARTS)
    unknown = set(chosen) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; known are {', '.join(PARTS)}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        models = textbook.reference_models(folder)
        for part in tqdm(chosen, desc='benchmark', unit='part'):
            rows += list(PARTS[part](models))
    print(f'torch {torch.__version__}, {torch.get_num_threads()} threads\n')
    print('| | the usual way | here | times faster |\n|:---|---:|---:|---:|')
    print('\n'.join(rows))


if __name__ == '__main__':
    main()
