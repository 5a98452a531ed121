"""The lab's figures: learning curves, BLEU against beam size, captioned pictures, attention maps.

Every function returns a matplotlib figure; the notebooks show it and save it.
"""

import h5py
import matplotlib.pyplot as plt
import numpy as np
from skimage.transform import resize

from utils import atomic_path

DECODER_NAMES = {'NoAttention': 'plain LSTM', 'Attention': 'soft attention'}
COLORS = {'NoAttention': 'tab:orange', 'Attention': 'tab:blue'}


def plot_history(histories):
    """Learning curves: loss, top-5 accuracy and BLEU-4 per epoch.

    :param histories: dict decoder name ('NoAttention', 'Attention') -> list of dicts, as ``solver.train`` leaves
    """
    figure, (loss, top5, bleu4) = plt.subplots(1, 3, figsize=(13, 3.6), layout='constrained')
    for name, history in histories.items():
        epochs = [entry['epoch'] for entry in history]
        color, label = COLORS.get(name), DECODER_NAMES.get(name, name)

        def curve(axes, key, style, what, epochs=epochs, history=history, color=color, label=label):
            axes.plot(epochs, [entry[key] for entry in history], style, color=color, label=f'{label}, {what}',
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
    """BLEU-1 to 4 against beam size, solid with and dashed without attention.

    :param results: list of dicts of ``evaluate.evaluate``
    """
    figure, axes = plt.subplots(figsize=(6.4, 4), layout='constrained')
    for result in results:
        style = '-' if result['model'] == 'Attention' else '--'
        for n in (1, 2, 3, 4):
            axes.plot([row['beam_size'] for row in result['scores']], [row[f'BLEU-{n}'] for row in result['scores']],
                      style, color=f'C{n - 1}', marker='o', markersize=4,
                      label=f"BLEU-{n}, {DECODER_NAMES[result['model']]}")
    axes.set(xlabel='beam size', ylabel='BLEU', xticks=[row['beam_size'] for row in results[0]['scores']])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, bbox_to_anchor=(1.01, 1), loc='upper left')
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
            rows.append(f"| {DECODER_NAMES[result['model']]} | {result['parameters']:,} | {result['best_epoch']} "
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
        ax.set_title('\n'.join(_wrap(line, 44) for line in title.splitlines()), fontsize=9, loc='left')
    return figure


def plot_attention(image, words, alphas, columns=5):
    """One map per word, smoothly enlarged over the picture: bright is where the decoder looked for that word.

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
        smooth = resize(np.asarray(alpha, dtype=float), image.shape[:2], order=3, mode='edge', clip=True)
        ax.imshow(image)
        # each map has its own scale: black is its least, white its greatest weight
        ax.imshow(smooth, cmap='gray', alpha=0.75)
        ax.set_title(word, fontsize=11)
    return figure


def save_figure(figure, path):
    """Write a figure as PNG, atomically; its folder is made if need be."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format='png', dpi=110)


def _wrap(line, width):
    import textwrap
    return '\n'.join(textwrap.wrap(line, width)) if line else line
