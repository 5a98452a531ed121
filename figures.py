"""The lab's figures: learning curves, BLEU against beam size, captioned pictures, attention maps.

Every function returns a matplotlib figure; the notebooks show it and save it.
"""

import json
import textwrap
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np
from skimage.transform import resize

from utils import atomic_path

DECODER_NAMES = {'NoAttention': 'plain LSTM', 'Attention': 'soft attention'}
DARKEST = 0.25  # what is left of a pixel that got no attention
COLORS = {'NoAttention': 'tab:orange', 'Attention': 'tab:blue'}


def label(name):
    """A decoder's name for people: 'plain LSTM', 'soft attention', or the class of a decoder of your own."""
    return DECODER_NAMES.get(name, name)


def read_histories(folder):
    """What the trainings of a run folder left.

    :return: dict decoder name -> history of ``solver.train``, the plain LSTM first, then soft attention, then others
    """
    found = {path.stem.removeprefix('history_'): json.loads(path.read_text())
             for path in sorted(Path(folder).glob('history_*.json'))}
    known = [name for name in DECODER_NAMES if name in found]
    return {name: found[name] for name in [*known, *(name for name in found if name not in known)]}


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

        curve(loss, 'train_loss', '--', 'training')
        curve(loss, 'val_loss', '-', 'validation')
        curve(top5, 'train_top5', '--', 'training')
        curve(top5, 'val_top5', '-', 'validation')
        curve(bleu4, 'val_bleu4', ':', 'teacher forcing')
        curve(bleu4, 'val_greedy_bleu4', '-', 'free-running')
        best = max(history, key=lambda entry: entry['val_greedy_bleu4'])
        bleu4.plot(best['epoch'], best['val_greedy_bleu4'], '*', color=color, markersize=14)
    for axes, title in ((loss, 'loss'), (top5, 'top-5 accuracy, %'), (bleu4, 'validation BLEU-4  (star: best)')):
        axes.set(title=title, xlabel='epoch')
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def plot_bleu(results):
    """BLEU-1 to 4 against beam size, a panel per decoder on one scale.

    :param results: list of dicts of ``evaluate.evaluate``
    """
    figure, panels = plt.subplots(1, len(results), figsize=(1.2 + 3.4 * len(results), 3.8), sharey=True, squeeze=False,
                                  layout='constrained')
    for axes, result in zip(panels.flat, results, strict=True):
        beams = [row['beam_size'] for row in result['scores']]
        for n in (1, 2, 3, 4):
            scores = [row[f'BLEU-{n}'] for row in result['scores']]
            axes.plot(beams, scores, color=f'C{n - 1}', marker='o', markersize=4, label=f'BLEU-{n}')
            axes.annotate(f'{scores[-1]:.3f}', (beams[-1], scores[-1]), xytext=(5, 0), textcoords='offset points',
                          va='center', fontsize=8, color=f'C{n - 1}')
        axes.set(title=label(result['model']), xlabel='beam size', xticks=beams)
        axes.margins(x=0.2)
        axes.grid(alpha=0.3)
    panels[0, 0].set_ylabel('BLEU')
    figure.legend(*axes.get_legend_handles_labels(), fontsize=8, loc='outside right center')
    return figure


def bleu_table(results):
    """The same figures as text, a row per decoder and beam size (Markdown).

    :param results: list of dicts of ``evaluate.evaluate``
    """
    rows = ['| decoder | parameters | best epoch | beam | BLEU-1 | BLEU-2 | BLEU-3 | BLEU-4 | seconds |',
            '|:---|---:|---:|---:|---:|---:|---:|---:|---:|']
    for result in results:
        for score in result['scores']:
            bleus = ' | '.join(f"{score[f'BLEU-{n}']:.3f}" for n in (1, 2, 3, 4))
            rows.append(f"| {label(result['model'])} | {result['parameters']:,} | {result['best_epoch']} "
                        f"| {score['beam_size']} | {bleus} | {score['seconds']:.1f} |")
    return '\n'.join(rows)


def load_images(path, numbers):
    """:return: list of (H, W, 3) uint8 pictures of an IMAGES file of ``create_input_files``"""
    with h5py.File(path) as file:
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


def plot_attention(image, words, alphas, columns=5):
    """One map per word, smoothly enlarged over the picture: lit is where the decoder looked for that word.

    Each map has its own scale: its greatest weight leaves the picture as it is, its least one darkens it. The
    greatest weight stands beside the word, in percent of all the attention (all cells alike: 100 / number of cells).

    :param image: (H, W, 3) uint8
    :param words: list of str
    :param alphas: (len(words), h, w) attention weights
    """
    panels = len(words) + 1
    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.3 * columns, 2.5 * rows), layout='constrained', squeeze=False)
    for ax in axes.flat:
        ax.axis('off')
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


def save_figure(figure, path):
    """Write a figure as PNG, atomically; its folder is made if need be."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format='png', dpi=110)
