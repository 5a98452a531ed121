"""The lab's figures: learning curves, BLEU against beam size, captioned pictures, attention maps.

Every function returns a matplotlib figure; the notebooks show it and save it.
"""

import textwrap
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import isotonic_regression
from skimage.transform import resize

from utils import atomic_path, best_epoch, read_json

DECODER_NAMES = {'NoAttention': 'plain LSTM', 'Attention': 'soft attention',
                 'DecoderWithSpatialAttention': 'spatial attention',
                 'DecoderWithAdaptiveAttention': 'adaptive attention',
                 'DecoderWithBahdanauAttention': 'Bahdanau attention',
                 'DecoderWithCell': 'plain decoder with another cell', 'Ensemble': 'ensemble'}
DARKEST = 0.25  # what is left of a pixel that got no attention
COLORS = {'NoAttention': 'tab:orange', 'Attention': 'tab:blue'}


def label(name):
    """A decoder's name for people: 'plain LSTM', 'soft attention', or the class of a decoder of your own."""
    return DECODER_NAMES.get(name, name)


def read_histories(folder):
    """What the trainings of a run folder left.

    :return: dict decoder name -> history of ``solver.train``, the plain LSTM first, then soft attention, then others
    :raises ValueError: a file that is cut
    """
    histories = {path.stem.removeprefix('history_'): read_json(path, 'delete it, or train this decoder again')
                 for path in sorted(Path(folder).glob('history_*.json'))}
    known = [name for name in DECODER_NAMES if name in histories]
    return {name: histories[name] for name in [*known, *(name for name in histories if name not in known)]}


def plot_history(histories):
    """Learning curves: loss, top-5 accuracy and BLEU-4 per epoch.

    :param histories: dict decoder name ('NoAttention', 'Attention') -> list of dicts, as ``solver.train`` leaves
    """
    figure, (loss, top5, bleu4) = plt.subplots(1, 3, figsize=(13, 3.6), layout='constrained')
    colors = iter(['tab:green', 'tab:red', 'tab:purple', 'tab:brown', 'tab:pink', 'tab:gray', 'tab:olive', 'tab:cyan'])
    for name, history in histories.items():
        epochs = [entry['epoch'] for entry in history]
        color, decoder = next(colors) if name not in COLORS else COLORS[name], label(name)

        def curve(axes, key, style, what, epochs=epochs, history=history, color=color, decoder=decoder):
            axes.plot(epochs, [entry[key] for entry in history], style, color=color, label=f'{decoder}, {what}',
                      marker='o', markersize=3)

        if history[0]['train_top5'] is not None:  # else it is minus CIDEr-D, no cross-entropy
            curve(loss, 'train_loss', '--', 'training')
            curve(top5, 'train_top5', '--', 'training')
        curve(loss, 'val_loss', '-', 'validation')
        curve(top5, 'val_top5', '-', 'validation')
        curve(bleu4, 'val_bleu4', ':', 'teacher forcing')
        curve(bleu4, 'val_greedy_bleu4', '-', 'free-running')
        best = best_epoch(history)
        bleu4.plot(best['epoch'], best['val_greedy_bleu4'], '*', color=color, markersize=14)
    for axes, title in ((loss, 'loss'), (top5, 'top-5 accuracy, %'), (bleu4, 'validation BLEU-4  (star: best)')):
        axes.set(title=title, xlabel='epoch')
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def plot_comparison(histories, begins=None):
    """Many runs in one figure: validation loss, top-5 accuracy and greedy BLEU-4 per epoch.

    The loss is the cross-entropy alone, since not all have the penalty of attention.

    :param histories: dict name -> list of histories of ``solver.train``, one per seed, of which the first is drawn
        strongest; lines from the eleventh on are dashed, in the colours of the first ones
    :param begins: dict name -> list of pairs: after how many epochs of what came before these histories begin, and the
        last of these (None: it is not known), from which a dotted line leads here; without it all begin at 0
    """
    figure, panels = plt.subplots(1, 3, figsize=(14, 4.2), layout='constrained')
    keys = dict(val_cross_entropy='validation cross-entropy', val_top5='validation top-5 accuracy, %',
                val_greedy_bleu4='validation BLEU-4, greedy')
    if any(keys.keys() - history[0].keys() for seeds in histories.values() for history in seeds):
        del keys['val_cross_entropy']  # some were trained before it was recorded: then the loss, of all
        keys = dict(val_loss='validation loss') | keys
    for i, (name, seeds) in enumerate(histories.items()):
        for seed, history in enumerate(seeds):
            for axes, key in zip(panels, keys, strict=True):
                before, last = begins[name][seed] if begins else (0, None)
                numbers, values = [before + entry['epoch'] for entry in history], [entry[key] for entry in history]
                style = dict(color=f'C{i % 10}', alpha=0.4 if seed else 1)
                axes.plot(numbers, values, '-o' if i < 10 else '--s', markersize=3, label=None if seed else label(name),
                          **style)
                if last and key in last:
                    axes.plot([before, numbers[0]], [last[key], values[0]], ':', **style)
    for axes, title in zip(panels, keys.values(), strict=True):
        axes.set(title=title, xlabel='epoch')
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize=9, loc='outside lower center',
                  ncols=min(len(histories), 5))
    return figure


def plot_bleu(results):
    """BLEU-1 to 4 against beam size, a panel per decoder on one scale, up to four in a row.

    :param results: list of dicts of ``evaluate.evaluate``
    """
    columns = min(len(results), 4)
    rows = -(-len(results) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(1.2 + 3.4 * columns, 3.8 * rows), sharey=True, squeeze=False,
                                  layout='constrained')
    for axes in panels.flat[len(results):]:
        axes.axis('off')
    for axes, result in zip(panels.flat, results, strict=False):
        beams = [row['beam_size'] for row in result['scores']]
        for n in (1, 2, 3, 4):
            scores = [row[f'BLEU-{n}'] for row in result['scores']]
            axes.plot(beams, scores, color=f'C{n - 1}', marker='o', markersize=4, label=f'BLEU-{n}')
        axes.set(title=textwrap.fill(label(result['model']), 30), xlabel='beam size', xticks=beams)
        axes.margins(x=0.2, y=0.15)
        axes.grid(alpha=0.3)
    for axes in panels[:, 0]:
        axes.set_ylabel('BLEU')
    figure.legend(*axes.get_legend_handles_labels(), fontsize=8, loc='outside right center')
    figure.draw_without_rendering()  # now it is known how high a panel is
    for axes, _ in zip(panels.flat, results, strict=False):
        axes.set_ylim(axes.get_ylim())  # figures beside the lines change no scale
        point = np.diff(axes.get_ylim())[0] / (axes.bbox.height * 72 / figure.dpi)
        ends = [line.get_xydata()[-1] for line in axes.lines]
        for line, end, height in zip(axes.lines, ends, spread([y for _, y in ends], 10 * point), strict=True):
            axes.annotate(f'{end[1]:.3f}', end, xytext=(5, (height - end[1]) / point), textcoords='offset points',
                          va='center', fontsize=8, color=line.get_color())
    return figure


def spread(heights, gap):
    """Heights moved as little as may be (least squares) for each to be ``gap`` away from the next."""
    order = np.argsort(heights, kind='stable')
    steps = gap * np.arange(len(heights))
    moved = np.empty(len(heights))
    moved[order] = isotonic_regression(np.asarray(heights, dtype=float)[order] - steps).x + steps
    return moved


def bleu_table(results):
    """The same figures as text, a row per decoder and beam size (Markdown).

    :param results: list of dicts of ``evaluate.evaluate``
    """
    rows = ['| decoder | parameters | best epoch | beam | BLEU-1 | BLEU-2 | BLEU-3 | BLEU-4 | seconds |',
            '|:---|---:|---:|---:|---:|---:|---:|---:|---:|']
    for result in results:
        best = result['best_epoch'] or ''  # an ensemble has none
        for score in result['scores']:
            bleus = ' | '.join(f"{score[f'BLEU-{n}']:.3f}" for n in (1, 2, 3, 4))
            rows.append(f"| {label(result['model'])} | {result['parameters']:,} | {best} "
                        f"| {score['beam_size']} | {bleus} | {score['seconds']:.1f} |")
    return '\n'.join(rows)


def load_images(path, numbers):
    """
    :return: list of (H, W, 3) uint8 pictures of an IMAGES file of ``create_input_files``
    :raises ValueError: a number that is none of its pictures'
    :raises FileNotFoundError: no such file
    """
    if not Path(path).exists():
        raise FileNotFoundError(f'{path} is not there: run create_input_files first, or correct data_folder, data_name '
                                'and split')
    with h5py.File(path) as file:
        if strange := [number for number in numbers if number not in range(len(file['images']))]:
            raise ValueError(f"there is no picture {strange[0]} in {path}: it has {len(file['images'])}, 0 to "
                             f"{len(file['images']) - 1}")
        return [file['images'][number].transpose(1, 2, 0) for number in numbers]


def plot_captions(images, titles, columns=3):
    """A sheet of pictures with text below each.

    :param images: list of (H, W, 3) uint8
    :param titles: list of str, one per image; long lines are broken
    """
    rows = -(-len(images) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4 * columns, 4.1 * rows), layout='constrained', squeeze=False)
    for ax in axes.flat:
        ax.axis('off')
    for ax, image, title in zip(axes.flat, images, titles, strict=False):
        ax.imshow(image)
        ax.set_title('\n'.join(textwrap.fill(line, 44) for line in title.splitlines()), fontsize=9, loc='left')
    return figure


def plot_side_by_side(images, texts):
    """A row per picture: the picture, and beside it what was said of it.

    :param images: list of (H, W, 3) uint8
    :param texts: list of str, one per image; long lines are broken
    """
    texts = ['\n'.join(textwrap.fill(line, 110, subsequent_indent='    ') for line in text.splitlines())
             for text in texts]
    heights = [max(2.0, 0.3 + 0.17 * len(text.splitlines())) for text in texts]
    figure, axes = plt.subplots(len(images), 2, figsize=(11, sum(heights)), squeeze=False, layout='constrained',
                                width_ratios=[2, 9], height_ratios=heights)
    for (left, right), image, text in zip(axes, images, texts, strict=True):
        left.imshow(image)
        right.text(0, 0.5, text, va='center', fontsize=9)
        left.axis('off')
        right.axis('off')
    return figure


def plot_attention(image, words, alphas, sentinel=False, columns=5):
    """One map per word, smoothly enlarged over the picture: lit is where the decoder looked for that word.

    Each map has its own scale: its greatest weight leaves the picture as it is, its least one darkens it. The
    greatest weight stands beside the word, in percent of all the attention (all cells alike: 100 / number of cells).
    Where a visual sentinel takes a part of the attention, a panel below shows what is left for the picture: 1 - beta,
    "when it looks".

    :param image: (H, W, 3) uint8
    :param words: list of str
    :param alphas: (len(words), h, w) attention weights
    :param sentinel: whether the decoder has one: then the panel is there even if the picture has all of the attention
    """
    panels = len(words) + 1
    columns = min(columns, panels)
    rows = -(-panels // columns)
    grounding = visual_grounding(alphas, sentinel)
    figure = plt.figure(figsize=(2.3 * columns, 2.5 * rows + 2.2 * (grounding is not None)), layout='constrained')
    maps, *below = figure.subfigures(1 + (grounding is not None), 1, squeeze=False,
                                     height_ratios=[2.5 * rows, 2.2][:1 + (grounding is not None)]).flat
    axes = maps.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.axis('off')
    for part in below:
        ax = part.subplots()
        ax.bar(range(len(words)), grounding, color='tab:blue')
        ax.set_xticks(range(len(words)), words, rotation=45, ha='right')
        ax.set(ylim=(0, 1), ylabel='1 - β', title='when it looks')
    axes.flat[0].imshow(image)
    axes.flat[0].set_title('picture', fontsize=11)
    for ax, word, alpha in zip(axes.flat[1:], words, alphas, strict=False):
        alpha = np.asarray(alpha, dtype=float)
        smooth = resize(alpha, image.shape[:2], order=3, mode='edge', clip=True)
        light = (smooth - smooth.min()) / max(np.ptp(smooth), 1e-12)
        ax.imshow((image * (DARKEST + (1 - DARKEST) * light[..., np.newaxis])).astype(np.uint8))
        ax.set_title(f'{word}  {alpha.max():.0%}', fontsize=11)
    figure.suptitle(textwrap.fill(' '.join(words), 24 * columns), fontsize=12)
    return figure


def visual_grounding(alphas, sentinel=False):
    """1 - beta of each word: the share of its attention that the picture gets, and not the visual sentinel
    (Lu et al. 2017, sec. 5.3).

    :param alphas: (words, h, w), or None
    :param sentinel: whether the decoder has a sentinel. False: this is seen from the sums of the alphas
    :return: (words,), or None for a decoder without attention or without a sentinel
    """
    if alphas is None or not len(alphas):
        return None
    grounding = np.asarray(alphas, dtype=float).reshape(len(alphas), -1).sum(axis=1)
    return grounding if sentinel or (grounding < 1 - 1e-3).any() else None


def plot_visual_grounding(per_word, visual, at_least=10):
    """Mean 1 - beta of each word (Lu et al. 2017, fig. 6). Names of things and of colours have a colour of their own.
    The legend gives the mean over all words of each kind.

    :param per_word: dict word -> list of 1 - beta, see ``shapes.attention_per_word``
    :param visual: the names of things and of colours
    :param at_least: words that occur less often are left out, unless all words do
    """
    at_least = min(at_least, max(map(len, per_word.values()), default=0))
    means = sorted(((np.mean(values), word) for word, values in per_word.items() if len(values) >= at_least),
                   reverse=True)
    figure, axes = plt.subplots(figsize=(max(0.3 * len(means), 4), 3.6), layout='constrained')
    for part, color, name in ((True, 'tab:blue', 'shapes and colours'), (False, 'tab:gray', 'other words')):
        chosen = [(i, value) for i, (value, word) in enumerate(means) if (word in visual) == part]
        if chosen:
            every = [value for word, values in per_word.items() if (word in visual) == part for value in values]
            axes.bar(*zip(*chosen, strict=True), color=color, label=f'{name}: {np.mean(every):.2f}')
    axes.set_xticks(range(len(means)), [word for _, word in means], rotation=60, ha='right', fontsize=8)
    axes.set(ylim=(0, 1), ylabel='mean 1 - β', title='how much it looks, word by word')
    figure.legend(loc='outside right upper')
    return figure


def save_figure(figure, path):
    """Write a figure as PNG, atomically; its folder is made if need be."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format='png', dpi=110)
