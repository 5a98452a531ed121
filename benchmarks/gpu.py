"""The lab on a GPU, in eight minutes at most: ``python -m benchmarks.gpu``.

Speeds are at COCO's sizes, as in ``benchmarks.bench``, with random weights and pictures. Trainings are those of the
notebooks, by their own settings cells. Each section has a share of the time. One that fails leaves its error in the
table, the next one goes on, and the exit code is 1. Beside torch 2.11 or newer it needs a few packages only:

    pip install torchvision accelerate h5py scikit-image filelock psutil tqdm && python -m benchmarks.gpu

``--small`` runs every section with tiny sizes, also on a CPU. ``--device mps`` only compares a training step on Apple's
GPU with the CPU's.
"""

import argparse
import functools
import gc
import json
import math
import os
import signal
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from instructor.assemble import ROOT, assemble

START = time.perf_counter()
if __name__ == '__main__':  # before the lab's own modules are imported: models.py there is the reference
    FOLDER = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    sys.path.insert(0, str(assemble(ROOT / 'instructor' / 'models.py', Path(FOLDER.name) / 'lab')))

import torch  # noqa: E402

import models  # noqa: E402
from benchmarks.bench import CAPTIONS, Machine, Setting, searching  # noqa: E402
from create_input_files import create_input_files  # noqa: E402
from lab.data.shapes import generate_shapes  # noqa: E402
from lab.decode.evaluate import evaluate  # noqa: E402
from lab.train.checkpoints import checkpoint_paths, load_model  # noqa: E402
from lab.train.model import true_words  # noqa: E402
from solver import caption_loss, train  # noqa: E402
from utils import atomic_path, best_epoch  # noqa: E402

TOLERANCE = 1e-3  # relative, between devices: the two forms differ by 1e-5 on a CPU, a lost state of Adam costs 4e-2
PRECISIONS = {False: 'single precision', True: 'bf16'}
FEW = dict(train=32, val=8, test=8)
NOTEBOOKS = {'plain LSTM': 'train_rnn.ipynb', 'soft attention': 'train_attention.ipynb'}
BESIDE = '''\
Beside it: of training steps, the textbook loop at 196 cells in single precision; of beam search, the textbook search;
of a resumed training, one that stayed on its device. MB is what a call takes at its peak, on top of what was there
before. In single precision a GPU's convolutions are in TF32, torch's default. `instructor/ASSIGNMENT.md` and
`docs/shapes.md` say what the notebooks take and reach on two cores.
'''


class OutOfTime(Exception):
    """A section has used up its share."""


def row(what, unit, here, beside=None, mb=None, beside_mb=None):
    """A row of the table.

    :param beside: what it is compared with, see BESIDE
    :param mb, beside_mb: memory at the peak, on top of what was there before
    """
    return dict(what=what, unit=unit, here=here, beside=beside, mb=mb, beside_mb=beside_mb)


def written_loss(setting, grids):
    """The loss by the decoder's own ``forward``, as with ``fast=False``.

    :param grids: (captions, cells, encoder_dim)
    """
    lengths = setting.lengths.unsqueeze(1).to(grids.device)
    return caption_loss(*true_words(setting.decoder(grids, setting.captions, lengths))[:3], alpha_c=1.0)


LOSSES = {'the textbook loop': Setting.textbook_loss, '`fast=False`': written_loss, '`fast=True`': Setting.fast_loss}


def difference(here, there, loss):
    """The largest relative difference of the loss, and of the gradient of any weight, between two devices.

    :param here, there: ``bench.Setting`` with the same weights and batch
    :return: what differs most, and by how much
    """
    results = []
    for setting in (here, there):
        setting.decoder.dropout.p = 0.0  # each device has random numbers of its own
        setting.decoder.zero_grad()
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # TF32 rounds more
            value = loss(setting, setting.pictures[setting.image_of])
            value.backward()
        gradients = {name: weight.grad.cpu() for name, weight in setting.decoder.named_parameters()}
        results.append({'the loss': value.detach().cpu(), **gradients})
    largest = max(gradient.abs().max() for name, gradient in results[1].items() if name != 'the loss')
    # some gradients are 0 but for rounding, such as the one of attention.att.bias
    apart = {name: ((results[0][name] - expected).abs().max() / max(expected.abs().max(), largest / 10)).item()
             for name, expected in results[1].items()}
    worst = max(apart, key=lambda name: math.inf if math.isnan(apart[name]) else apart[name])
    return worst, apart[worst]


def same_step(kind, way, models, machine):
    """A training step in single precision has the loss and the gradients that it has on the CPU."""
    settings = [Setting(models, each, kind, 64, pictures=4) for each in (machine, Machine('cpu', machine.small))]
    worst, value = difference(*settings, LOSSES[way])
    if not value <= TOLERANCE:
        raise ValueError(f"differs from the CPU's: {worst} by {value:.2g} of its largest entry")
    yield row(f"training step, {kind}, {way}: largest relative difference from the CPU's (rounding, if below "
              f'{TOLERANCE})', '', value)


def measure(machine, step, count):
    """:return: how many things a second, if one step does ``count``; MB at the peak"""
    steps = 1 if machine.small else 5

    def on_end():  # as in a training, where a GPU's queue does not run dry
        for _ in range(steps):
            step()

    on_end()
    return steps * count / machine.best(on_end), machine.peak(step)


def training(models, machine):
    """Steps of soft attention, no two captions of a picture in the batch, as is the default."""
    usual = None
    for cells in (196, 64):
        setting = Setting(models, machine, 'soft attention', cells)
        for way, loss in LOSSES.items():
            adam = setting.plain_adam if loss is Setting.textbook_loss else setting.fused_adam
            for machine.bf16, precision in PRECISIONS.items():
                def step(setting=setting, loss=loss, adam=adam):
                    with machine.precision():
                        value = loss(setting, setting.pictures[setting.image_of])
                    setting.update(value, adam)

                rate, mb = measure(machine, step, CAPTIONS)
                usual = usual or (rate, mb)
                yield row(f'training step, soft attention, {cells} cells, {way}, {precision}', 'captions/s', rate,
                          usual[0], mb, usual[1])


def encoding(models, machine):
    """ResNet-101, frozen as for ``features.encode_images``, and fine-tuned by all captions of each picture."""
    pictures, side = (2, 32) if machine.small else (32, 256)
    machine.sizes = {**machine.sizes, 'encoder_dim': 2048}
    encoder = models.Encoder('resnet101', None, weights=None).to(machine.device).eval()
    images = torch.randint(0, 256, (pictures, 3, side, side), dtype=torch.uint8).to(machine.device)

    def encode():
        with torch.inference_mode(), machine.precision():
            encoder.native_grid(images)

    setting = Setting(models, machine, 'soft attention', 64, pictures // 2)
    encoder.fine_tune(True)
    adam = torch.optim.Adam([p for p in encoder.parameters() if p.requires_grad], lr=1e-4, fused=True)

    def tune():
        with machine.precision():
            grids = encoder.native_grid(images[:pictures // 2])
        setting.update(setting.fast_loss(grids, setting.image_of), setting.fused_adam, adam)

    for what, step, count in (('encoding', encode, pictures), ('fine-tuning with soft attention', tune, pictures // 2)):
        for machine.bf16, precision in PRECISIONS.items():
            rate, mb = measure(machine, step, count)
            yield row(f'ResNet-101, {what}, {count} pictures at once, {precision}', 'pictures/s', rate, mb=mb)


def beam_search(models, machine):
    for one in searching(models, machine, beam_sizes=(5,)):
        yield row(one['what'], 'pictures/s', one['ours'], one['usual'], one['ours_mb'], one['usual_mb'])


def settings_of(notebook):
    """The settings cell of a notebook: dict name -> value."""
    cells = json.loads((ROOT / notebook).read_text(encoding='utf-8'))['cells']
    cell = next(cell for cell in cells if 'parameters' in cell['metadata'].get('tags', []))
    names = {}
    exec(''.join(cell['source']), names)
    return names


def draw(cfg, pictures):
    """The data of the notebooks, in the folder of their settings."""
    folder = cfg['data_folder']
    generate_shapes(folder, **pictures)
    create_input_files('shapes', f'{folder}/dataset_shapes.json', folder, output_folder=folder)


def resuming(models, machine):
    """A checkpoint of one device goes on on the other, and its next epoch is the one that it would have had at home."""
    cfg = settings_of(NOTEBOOKS['soft attention'])['cfg'] | dict(data_folder='data/few', dropout=0.0, cosine=False)
    os.environ['ACCELERATE_MIXED_PRECISION'] = 'no'  # read by each training
    draw(cfg, FEW)
    for here, there in ((str(machine.device), 'cpu'), ('cpu', str(machine.device))):
        folder = tempfile.mkdtemp(dir='.')
        first = cfg | dict(device=here, epochs=1, output_folder=f'{folder}/first')
        train(first)
        stayed, moved = (train(cfg | dict(device=device, epochs=2, checkpoint=str(checkpoint_paths(first)[0]),
                                          output_folder=f'{folder}/{place}'))[-1]['val_loss']
                         for device, place in ((here, 'stayed'), (there, 'moved')))
        yield row(f'loss on validation, first epoch on {here}, second resumed on {there}', '', moved, stayed)
        if not abs(moved - stayed) <= TOLERANCE * stayed:
            raise ValueError(f'a checkpoint of {here} goes on in another way on {there}')


def train_notebook(kind, models, machine):
    """A training notebook without its checks and figures, then the BLEU-4 of ``test.ipynb``."""
    given, device = settings_of(NOTEBOOKS[kind]), str(machine.device)
    cfg = given['cfg'] | dict(device=device) | (dict(epochs=1) if machine.small else {})
    start = time.perf_counter()
    draw(cfg, FEW if machine.small else given['pictures'])
    history = train(cfg)
    seconds = time.perf_counter() - start
    yield row(f'`{NOTEBOOKS[kind]}`', 'minutes', seconds / 60)
    yield row(f'greedy BLEU-4 on validation, {kind}', '', best_epoch(history)['val_greedy_bleu4'])
    model = load_model(checkpoint_paths(cfg)[1], device)
    for score in evaluate(model, 'TEST', (1, 3, 5), history=history)['scores']:
        yield row(f"BLEU-4 on test, {kind}, beam {score['beam_size']}", '', score['BLEU-4'])


STEPS = {f'training step, {kind}, {way}': (12, functools.partial(same_step, kind, way))
         for kind in NOTEBOOKS for way in ('`fast=False`', '`fast=True`')}
# name -> seconds, function(models, machine) that yields rows. What one section leaves of its share is the next one's
SECTIONS = {**STEPS, 'training speed': (80, training), 'ResNet-101': (50, encoding), 'beam search': (40, beam_search),
            'resuming': (50, resuming),
            **{name: (90, functools.partial(train_notebook, kind)) for kind, name in NOTEBOOKS.items()}}


def stop_after(seconds):
    """Raise :class:`OutOfTime` then, wherever the program is; 0 takes that back. Windows has no such clock."""
    def stop(*_):
        raise OutOfTime('its share of the eight minutes is used up')

    if hasattr(signal, 'setitimer'):
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def run(sections, models, device, small):
    """:return: rows; one of a section that failed has its name and an ``error``"""
    rows, until = [], time.perf_counter()
    for name, (share, section) in sections.items():
        start, before, until = time.perf_counter(), len(rows), until + share
        try:
            stop_after(max(until - start, 0.001))
            for one in section(models, Machine(device, small)):
                rows.append(one)
        except Exception as error:
            rows.append(dict(what=name, error=' '.join(f'{type(error).__name__}: {error}'.split())[:200]))
        finally:
            stop_after(0)
        print(f'\n{name}: {time.perf_counter() - start:.0f} s\n\n{markdown(rows[before:])}', flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def markdown(rows):
    def figure(value, unit=''):
        return '' if value is None else f'{value:{",.0f" if value >= 100 else ".3g"}} {unit}'.rstrip()

    lines = ['| | here | beside it | times | MB here | MB beside it |', '|:---|---:|---:|---:|---:|---:|']
    for one in rows:
        if 'error' in one:
            lines.append(f"| {one['what']} | **failed** | {one['error'].replace('|', '/')} | | | |")
            continue
        times = one['here'] / one['beside'] if one['beside'] and one['unit'].endswith('/s') else None
        figures = figure(one['here'], one['unit']), *map(figure, (one['beside'], times, one['mb'], one['beside_mb']))
        lines.append(f"| {one['what']} | {' | '.join(figures)} |")
    return '\n'.join(lines) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--device', choices=['cuda', 'cpu', 'mps'], default='cuda', help='mps: only a training step')
    parser.add_argument('--small', action='store_true', help='tiny sizes: only to see that every section runs')
    parser.add_argument('--output', type=Path, default=ROOT / 'build' / 'gpu.md', help='.json beside it: all digits')
    args = parser.parse_args()
    output, there = args.output.resolve(), dict(cuda=torch.cuda, mps=torch.backends.mps)
    if args.device in there and not there[args.device].is_available():
        parser.error(f'there is no {args.device} here that torch can use; --device cpu --small tries out this program')
    os.chdir(FOLDER.name)  # the notebooks' folders of data and runs
    rows = run(STEPS if args.device == 'mps' else SECTIONS, models, args.device, args.small)
    os.chdir(ROOT)
    name = torch.cuda.get_device_name() if args.device == 'cuda' else args.device
    about = (f"{name}{', tiny sizes' if args.small else ''}, torch {torch.__version__}, {date.today()}, "
             f'{time.perf_counter() - START:.0f} seconds in all')
    for path, text in ((output, f'{about}\n\n{markdown(rows)}\n{BESIDE}'),
                       (output.with_suffix('.json'), json.dumps(dict(about=about, rows=rows), indent=1))):
        with atomic_path(path) as part:
            part.write_text(text, encoding='utf-8')
    print(f'\n{output.read_text(encoding="utf-8")}\nThe table is in {output}.')
    sys.exit(any('error' in one for one in rows))


if __name__ == '__main__':
    main()
