"""How much faster than the usual way: ``make bench``, or ``python -m benchmarks.bench``.

Sizes are those of the original lab on COCO (256 x 256 pictures, ResNet-101, 512 throughout, 9,490 words, 80 captions a
batch); weights and features are random, captions as long as COCO's. Both ways are timed in turns in one run, the best
time of each counts, and the table says their ratio. It is left as Markdown and as JSON.
"""

import argparse
import contextlib
import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import psutil
import torch
from PIL import Image
from tqdm import tqdm

from benchmarks import textbook
from instructor.assemble import ROOT
from lab.decode.beam_search import beam_search
from lab.train import fast
from lab.train.model import true_words
from solver import caption_loss
from utils import atomic_path

SIZES = dict(embed_dim=512, decoder_dim=512, vocab_size=9490, encoder_dim=2048)
SMALL = dict(embed_dim=7, decoder_dim=10, vocab_size=13, encoder_dim=6)
CAPTIONS, PER_PICTURE, WORDS = 80, 5, 11
KINDS = 'soft attention', 'plain LSTM'


class Machine:
    """Where it runs: what a call takes there, in seconds and in memory.

    :param device: 'cpu'; of ``benchmarks.gpu`` 'cuda', too
    :param small: tiny sizes, everything timed once
    :param bf16: the lab's own ways in half precision
    """

    def __init__(self, device, small=False, bf16=False):
        self.device = torch.device(device)
        self.cuda = self.device.type == 'cuda'
        self.small, self.bf16 = small, bf16
        self.sizes, self.attention_dim = (SMALL, 9) if small else (SIZES, 512)

    def precision(self):
        """Of the lab's own way."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def seconds(self, function, before=None):
        """:param before: called first, untimed"""
        if before:
            before()
        self.wait()
        start = time.perf_counter()
        function()
        self.wait()
        return time.perf_counter() - start

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def best(self, function, repeats=3, before=None):
        """The best time of some on end, as in a training."""
        return min(self.seconds(function, before) for _ in range(1 if self.small else repeats))

    def in_turns(self, *timed, rounds=3):
        """The best of each.

        :param timed: functions that return seconds
        """
        times = [[function() for function in timed] for _ in range(1 if self.small else rounds)]
        return [min(column) for column in zip(*times, strict=True)]

    def peak(self, function):
        """Memory that a call takes at its peak, on top of what was there before, in MB; None: it can't be known."""
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            function()
            return (torch.cuda.max_memory_allocated() - before) / 1e6
        if platform.system() != 'Linux':
            return None
        with contextlib.suppress(OSError, AttributeError):  # another C library: what was freed may not be given back
            ctypes.CDLL('libc.so.6').malloc_trim(0)
        Path('/proc/self/clear_refs').write_text('5', encoding='utf-8')  # the peak is what there is now
        before = _high_water_mark()
        function()
        return _high_water_mark() - before

    def row(self, what, unit, usual, ours, rounds=3, repeats=3, memory=True, before=None):
        """A row of the table.

        :param usual, ours: (function, how many units it does)
        """
        (usual, usual_count), (ours, ours_count) = usual, ours
        usual_s, ours_s = self.in_turns(lambda: self.best(usual, repeats, before),
                                        lambda: self.best(ours, repeats, before), rounds=rounds)
        usual_mb, ours_mb = (self.peak(usual), self.peak(ours)) if memory else (None, None)
        return dict(what=what, unit=unit, usual=usual_count / usual_s, ours=ours_count / ours_s, usual_mb=usual_mb,
                    ours_mb=ours_mb)


def _high_water_mark():
    lines = Path('/proc/self/status').read_text(encoding='utf-8').splitlines()
    line, = (line for line in lines if line.startswith('VmHWM'))
    return int(line.split()[1]) * 1024 / 1e6


class Setting:
    """A decoder with random weights, and a batch of pictures' grids and captions."""

    def __init__(self, models, machine, kind, cells, pictures=CAPTIONS // PER_PICTURE):
        torch.manual_seed(0)
        self.machine = machine
        sizes = machine.sizes
        decoder = (models.DecoderWithRNN(**sizes) if kind == 'plain LSTM' else
                   models.DecoderWithAttention(**sizes, attention_dim=machine.attention_dim))
        self.decoder = decoder.to(machine.device)
        self.pictures = torch.randn(pictures, cells, sizes['encoder_dim']).relu().to(machine.device)
        self.image_of = torch.arange(pictures).repeat_interleave(PER_PICTURE)
        count = len(self.image_of)
        # COCO's captions: 10.5 words on average, standard deviation 2.4; <start> and <end> on top
        self.lengths = (torch.randn(count) * 2.4 + 10.5).round().clamp(6, 40).long() + 2
        self.captions = torch.randint(1, sizes['vocab_size'] - 4, (count, 52)).to(machine.device)
        parameters = list(self.decoder.parameters())
        self.plain_adam = torch.optim.Adam(parameters, lr=4e-4)
        self.fused_adam = torch.optim.Adam(parameters, lr=4e-4, fused=True)

    def update(self, loss, *optimizers):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            torch.nn.utils.clip_grad_value_(optimizer.param_groups[0]['params'], 5.0)
            optimizer.step()

    def textbook_loss(self, grids):
        return textbook.loss(textbook.forward(self.decoder, grids, self.captions, self.lengths))

    def fast_loss(self, grids, image_of=None):
        with self.machine.precision():
            decoded = fast.fast_forward(self.decoder, grids, self.captions, self.lengths, image_of)
        scores, targets, alphas, *_ = true_words(decoded)
        return caption_loss(scores.float(), targets, alphas, alpha_c=1.0)  # as accelerate returns it

    def textbook_step(self):
        self.update(self.textbook_loss(self.pictures[self.image_of]), self.plain_adam)

    def fast_step(self):
        """All captions of a picture are in the batch."""
        self.update(self.fast_loss(self.pictures, image_of=self.image_of), self.fused_adam)

    def default_step(self):
        """No two captions of the batch share a picture."""
        self.update(self.fast_loss(self.pictures[self.image_of]), self.fused_adam)


def training(models, machine):
    """Steps of both decoders."""
    for kind in KINDS:
        for cells in (64, 196):
            setting = Setting(models, machine, kind, cells)
            usual = setting.textbook_step, CAPTIONS
            yield machine.row(f'training step, {kind}, {cells} cells, `by_picture`', 'captions', usual,
                              (setting.fast_step, CAPTIONS))
            yield machine.row('the same, neither (the default)', 'captions', usual, (setting.default_step, CAPTIONS))
        native = Setting(models, machine, kind, 64)
        yield machine.row(f'training step, {kind}, 196 cells (8 × 8 pooled up to 14 × 14) against the native 64',
                          'captions', usual, (native.fast_step, CAPTIONS), repeats=6)  # the first find no pages yet


def encoding(models, machine):
    """ResNet-101, an epoch with it frozen and fine-tuned, and the latency of a single caption."""
    pictures, side = (2, 64) if machine.small else (8, 256)
    machine.sizes = {**machine.sizes, 'encoder_dim': 2048}
    usual, native = (Setting(models, machine, 'soft attention', cells, pictures) for cells in (196, 64))
    pooled_up = models.Encoder('resnet101', 14, weights=None).to(machine.device)
    encoder = models.Encoder('resnet101', None, weights=None).to(machine.device)
    images = torch.randint(0, 256, (pictures, 3, side, side), dtype=torch.uint8).to(machine.device)

    def encode_per_caption():
        with torch.no_grad():
            return torch.cat([textbook.encode(pooled_up, images[part]) for part in usual.image_of.split(16)])

    def encode_once():
        with torch.inference_mode(), machine.precision():
            return encoder.native_grid(images)

    def usual_frozen():
        usual.update(usual.textbook_loss(encode_per_caption()), usual.plain_adam)

    def first_epoch():
        native.update(native.fast_loss(encode_once().float().clone(), image_of=native.image_of), native.fused_adam)

    yield machine.row('ResNet-101 over the pictures: once per caption and pooled up, against once', 'pictures',
                      (encode_per_caption, pictures), (encode_once, pictures), rounds=2, repeats=1)
    yield machine.row('an epoch, encoder frozen: the same and training, against training on kept features', 'pictures',
                      (usual_frozen, pictures), (native.fast_step, pictures), rounds=2, repeats=2)
    yield machine.row('the first epoch, which makes these features', 'pictures', (usual_frozen, pictures),
                      (first_epoch, pictures), rounds=1, repeats=1)

    for module in (pooled_up, encoder):
        module.fine_tune(True)
        module.train()
    open_layers = [[p for p in module.parameters() if p.requires_grad] for module in (pooled_up, encoder)]
    plain = torch.optim.Adam(open_layers[0], lr=1e-4)
    fused = torch.optim.Adam(open_layers[1], lr=1e-4, fused=True)

    def usual_tuned():
        grids = textbook.encode(pooled_up, images[usual.image_of])
        usual.update(usual.textbook_loss(grids), usual.plain_adam, plain)

    def tuned():
        with machine.precision():
            grids = encoder.native_grid(images)
        native.update(native.fast_loss(grids, image_of=native.image_of), native.fused_adam, fused)

    yield machine.row('an epoch, encoder fine-tuned: it runs once per caption, against once per picture', 'pictures',
                      (usual_tuned, pictures), (tuned, pictures), rounds=1, repeats=2)

    for setting, module in ((usual, pooled_up), (native, encoder)):
        module.fine_tune(False)
        never_ending(setting.decoder)
        module.eval()
    words = word_map(machine)

    def usual_caption():
        with torch.no_grad():
            grid = textbook.encode(pooled_up, images[:1])
            textbook.beam_search(usual.decoder, grid.flatten(1, 2), words, 5, WORDS)

    def caption():
        with torch.no_grad():
            beam_search(native.decoder, encoder(images[:1]), words, 5, WORDS)

    yield machine.row('one caption, beam 5, encoder included', 'captions', (usual_caption, 1), (caption, 1))

    def usual_pass():
        for _ in range(PER_PICTURE):
            usual_caption()

    def first_pass():
        with torch.no_grad():
            beam_search(native.decoder, encode_once().float().clone(), words, 5, WORDS)

    def later_pass():
        with torch.no_grad():
            beam_search(native.decoder, native.pictures, words, 5, WORDS)

    yield machine.row('BLEU pass, beam 5, soft attention, encoder included: each picture five times, one at a time, '
                      f'against once, {pictures} at a time', 'pictures', (usual_pass, 1),
                      (first_pass, pictures), rounds=2, repeats=1)
    yield machine.row('the same, on kept features', 'pictures', (usual_pass, 1), (later_pass, pictures), rounds=2,
                      repeats=1)


def word_map(machine):
    v = machine.sizes['vocab_size']
    return {'<pad>': 0, **{f'w{i}': i for i in range(1, v - 3)}, '<unk>': v - 3, '<start>': v - 2, '<end>': v - 1}


def never_ending(decoder):
    """Random weights know no end; so that all captions have WORDS words, there is none."""
    decoder.eval()
    with torch.no_grad():
        decoder.fc.bias[-1] = -1e9


def searching(models, machine, pictures=32, beam_sizes=(1, 3, 5)):
    words = word_map(machine)
    for kind in KINDS:
        setting = Setting(models, machine, kind, 64, pictures)
        never_ending(setting.decoder)
        for beam_size in beam_sizes:
            def usual(setting=setting, beam_size=beam_size):
                for i in range(2):  # of the pictures; each five times, once per caption
                    for _ in range(PER_PICTURE):
                        textbook.beam_search(setting.decoder, setting.pictures[i:i + 1], words, beam_size, WORDS)

            def ours(setting=setting, beam_size=beam_size):
                beam_search(setting.decoder, setting.pictures, words, beam_size, WORDS)

            yield machine.row(f'search of a BLEU pass, beam {beam_size}, {kind}: one picture at a time, five times '
                              f'each, against {pictures} at once', 'pictures', (usual, 2), (ours, pictures),
                              rounds=2, repeats=2)


def preparing(_, machine):
    """640 x 480 JPEGs to HDF5."""
    pictures = 2 if machine.small else 8000
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        rng = np.random.default_rng(0)
        coarse = rng.integers(0, 256, (pictures, 30, 40, 3), dtype=np.uint8)
        entries = []
        for i, pixels in enumerate(coarse):
            Image.fromarray(pixels).resize((640, 480), Image.Resampling.BICUBIC).save(folder / f'{i}.jpg', quality=90)
            entries.append(dict(filename=f'{i}.jpg', split='train', sentences=[dict(tokens=['a', 'picture'])] * 5))
        (folder / 'set.json').write_text(json.dumps(dict(images=entries)))
        peaks = []

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
                command = [sys.executable, 'create_input_files.py', '--dataset=set', '--min-word-freq=1',
                           f'--karpathy-json-path={folder / "set.json"}', f'--image-folder={folder}',
                           f'--output-folder={output}']
                with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
                    peaks.append(watch(process))
                    if process.returncode:
                        raise RuntimeError(process.stderr.read().decode())

        row = machine.row('preparation of 640 × 480 JPEGs; memory of all processes together', 'pictures',
                          (usual, pictures), (ours, pictures), rounds=1, repeats=2, memory=False,
                          # what one way leaves to be written is not to slow the other
                          before=getattr(os, 'sync', None))
        yield {**row, 'usual_mb': machine.peak(usual), 'ours_mb': max(peaks)}


def watch(process):
    """Wait for a process; the memory that it and its children took together at their peak, in MB."""
    peak, parent = 0, psutil.Process(process.pid)
    while process.poll() is None:
        total = 0
        for one in [parent, *_children(parent)]:
            with contextlib.suppress(psutil.Error):
                total += one.memory_info().rss
        peak = max(peak, total)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    return peak / 1e6


def _children(parent):
    with contextlib.suppress(psutil.Error):
        return parent.children(recursive=True)
    return []


PARTS = dict(preparing=preparing, encoding=encoding, training=training, searching=searching)


def markdown(rows):
    def figure(megabytes):
        return '' if megabytes is None else f'{megabytes:,.0f}'

    lines = ['| | the usual way | here | times faster | MB, usual | MB, here |', '|:---|---:|---:|---:|---:|---:|']
    for row in rows:
        usual, ours = (f"{row[way]:.3g} {row['unit']}/s" for way in ('usual', 'ours'))
        lines.append(f"| {row['what']} | {usual} | {ours} | **{row['ours'] / row['usual']:.1f}** | "
                     f"{figure(row['usual_mb'])} | {figure(row['ours_mb'])} |")
    return '\n'.join(lines) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('parts', nargs='*', metavar='PART', help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument('--bf16', action='store_true', help="the lab's own ways in half precision")
    parser.add_argument('--small', action='store_true', help='tiny sizes, each once: only to see that it runs')
    parser.add_argument('--output-folder', type=Path, default=ROOT / 'build' / 'bench')
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        models = textbook.reference_models(folder)
        for part in tqdm(args.parts or PARTS, desc='benchmark', unit='part'):
            for row in PARTS[part](models, Machine('cpu', args.small, args.bf16)):
                rows.append(row)
                tqdm.write(markdown([row]).splitlines()[-1])
    about = dict(torch=torch.__version__, threads=torch.get_num_threads(), bf16=args.bf16)
    for name, text in (('bench.md', markdown(rows)), ('bench.json', json.dumps(dict(about, rows=rows), indent=1))):
        with atomic_path(args.output_folder / name) as path:
            path.write_text(text, encoding='utf-8')
    print(f"\n{', '.join(f'{name} {value}' for name, value in about.items() if value)}\n\n{markdown(rows)}")
    print(f"The table is in {args.output_folder / 'bench.md'} and, with all digits, in bench.json beside it.")


if __name__ == '__main__':
    main()
