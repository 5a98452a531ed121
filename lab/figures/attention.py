"""Where a decoder looks: a map per word, and means over many captions."""

import matplotlib.pyplot as plt
import numpy as np
from skimage.color import rgb2gray
from skimage.filters import gaussian
from skimage.transform import resize

from lab.figures.style import COLORS, WIDTH, drawable
from utils import sentence

HEAT, VIOLET, YELLOW = plt.colormaps['inferno'], 0.15, 0.95  # without its ends, which are nearly black and white


def overlay(image, alpha, highest=None):
    """A faded picture under a heat map of attention: yellow where the attention is, violet elsewhere.

    :param image: (H, W, 3) uint8
    :param alpha: (h, w) attention weights
    :param highest: the weight that is yellow; 0 is violet. None: the greatest weight of this map, and its least
    :return: (H, W, 3) uint8
    """
    alpha = np.asarray(alpha, dtype=float)
    cell = np.divide(image.shape[:2], alpha.shape)  # in pixels
    smooth = gaussian(resize(alpha, image.shape[:2], order=1, mode='edge'), cell / 4)
    smooth *= alpha.max() / max(smooth.max(), 1e-12)  # the peak stays as high
    low, high = (smooth.min(), smooth.max()) if highest is None else (0, highest)
    below = ((high - smooth) / max(high - low, 1e-12)).clip(0, 1)
    heat = HEAT(YELLOW + (VIOLET - YELLOW) * below)[..., :3]
    faded = (image / 255 + rgb2gray(image)[..., np.newaxis]) / 2  # with half of its colours
    return (255 * (faded + heat) / 2).astype(np.uint8)


def plot_attention(image, words, alphas, sentinel=False, probabilities=None, gate=None, scale='word'):
    """One map per word: yellow is where the decoder looked for that word.

    The title of a map has the word, its probability p, and the greatest weight in percent ("peak"; uniform attention
    has 100 / number of cells). A panel below has a bar per word: 1 - beta, the weight that a visual sentinel leaves to
    the picture. Another has the mean beta of the gate of *Show, Attend and Tell*, sec. 4.2.1.

    :param image: (H, W, 3) uint8
    :param words: list of str
    :param alphas: (len(words), h, w) attention weights
    :param sentinel: whether the decoder has one; its panel is drawn even if the picture has all of the attention
    :param probabilities: (len(words),), or None
    :param gate: (len(words),) beta, its mean over the channels, or None
    :param scale: 'word': each map has its own; 'caption': one for all maps, from 0 to the greatest weight of all
    """
    rows = -(-(len(words) + 1) // 5)  # of at most five maps, no row much shorter than another
    columns = -(-(len(words) + 1) // rows)
    alphas = np.asarray(alphas)
    caption = drawable([sentence(words)], 20 * columns)[0]
    words = drawable(words)
    highest = None if scale == 'word' or not words else alphas.max()
    maps = [overlay(image, alpha, highest) for alpha in alphas]
    bars = [(visual_grounding(alphas, sentinel), '1 - β', 'how much it looks'),
            (gate, 'mean β', 'how open the gate is when it says the word')]
    bars = [bar for bar in bars if bar[0] is not None]
    heights = [rows * (0.36 + WIDTH / 5 * image.shape[0] / image.shape[1]), *[1.5] * len(bars)]
    figure = plt.figure(figsize=(WIDTH * columns / 5, 0.2 + sum(heights)))
    above, *below = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights).flat
    axes = above.subplots(rows, columns, squeeze=False).flat
    for ax in axes:
        ax.set(xticks=[], yticks=[], frame_on=False)
    axes[0].imshow(image)
    scales = 'each map: own scale' if highest is None else f'one scale: 0 to {highest:.0%}'
    axes[0].set_title(f'picture\n{scales}')
    chances = [''] * len(words) if probabilities is None else [f'p {p:.2f}, ' for p in probabilities]
    for ax, word, shown, alpha, chance in zip(axes[1:], words, maps, alphas, chances, strict=False):
        ax.imshow(shown)
        ax.set_title(f'{word}\n{chance}peak {alpha.max():.0%}')
    for part, (values, ylabel, title) in zip(below, bars, strict=True):
        ax = part.subplots()
        ax.bar(range(len(words)), values, color=COLORS[0])
        ax.set_xticks(range(len(words)), words, rotation=45, ha='right', rotation_mode='anchor')
        ax.set(ylim=(0, 1), ylabel=ylabel, title=title)
        ax.grid(axis='x', visible=False)
    figure.suptitle(caption)
    return figure


def visual_grounding(alphas, sentinel=False):
    """1 - beta of each word: the sum of its attention weights over the picture. The visual sentinel has the rest
    (Lu et al. 2017, sec. 5.3).

    :param alphas: (words, h, w), or None
    :param sentinel: whether the decoder has a sentinel. False: it has one if a sum of the alphas is below 1
    :return: (words,), or None for a decoder without attention or without a sentinel
    """
    if alphas is None or not len(alphas):
        return None
    grounding = np.asarray(alphas, dtype=float).reshape(len(alphas), -1).sum(axis=1)
    return grounding if sentinel or (grounding < 1 - 1e-3).any() else None


def plot_visual_grounding(captions, visual, at_least=10):
    """Mean 1 - beta of each word (Lu et al. 2017, fig. 6), visual words in one colour and all others in another.
    The legend gives the mean over all words of each kind.

    :param captions: list of dicts of ``evaluate.caption_split``, of a decoder with a visual sentinel
    :param visual: the names of things and of colours
    :param at_least: words that occur less often are left out, unless all words do
    """
    per_word = {}
    for c in captions:
        for word, alpha in zip(c['caption'], c['alphas'], strict=True):
            per_word.setdefault(word, []).append(float(alpha.sum()))
    figure, axes, means = places_for_words(per_word, at_least)
    for part, color, name in ((True, COLORS[0], 'shapes and colours'), (False, COLORS[1], 'other words')):
        chosen = [(i, mean) for i, (word, (mean,)) in enumerate(means.items()) if (word in visual) == part]
        if chosen:
            every = [value for word, values in per_word.items() if (word in visual) == part for value in values]
            axes.bar(*zip(*chosen, strict=True), color=color, label=f'{name}: {np.mean(every):.2f}')
    axes.set(ylabel='mean 1 - β', title='how much it looks, word by word')
    figure.legend(loc='outside lower right', ncols=2)
    return figure


def plot_pointing(per_word, at_least=5):
    """How often the attention of a word peaks in the box of what the word names, and how often it would by chance. The
    legend gives both for all words together.

    :param per_word: dict word -> list of (hit, chance), see ``shapes.points_at``
    :param at_least: words that occur less often are left out, unless all words do
    """
    figure, axes, means = places_for_words(per_word, at_least)
    hits, chances = np.transpose(list(means.values()))
    hit, chance = np.mean([pair for pairs in per_word.values() for pair in pairs], axis=0)
    axes.bar(range(len(hits)), hits, color=COLORS[4], label=f'peak in the box: {hit:.0%} of all words')
    axes.hlines(chances, np.arange(len(hits)) - 0.4, np.arange(len(hits)) + 0.4, color='black', linewidth=2,
                label=f'by chance: {chance:.0%}')
    axes.set(ylabel='share of peaks in the box', title='does it look at what it names?')
    figure.legend(loc='outside lower right', ncols=2)
    return figure


def places_for_words(per_word, at_least):
    """A figure with a place for each word that occurs often enough, or for all if none does.

    :return: figure, axes, and dict word -> array of the means of its values, the greatest first
    """
    often = {word: values for word, values in per_word.items() if len(values) >= at_least} or per_word
    means = {word: np.atleast_1d(np.mean(values, axis=0)) for word, values in often.items()}
    means = dict(sorted(means.items(), key=lambda item: -item[1][0]))
    names = drawable(f'{word} ({len(per_word[word])})' for word in means)
    figure, axes = plt.subplots(figsize=(np.clip(0.22 * len(means) + 0.8, 4, WIDTH), 2.8))
    axes.set_xticks(range(len(means)), names, rotation=60, ha='right', rotation_mode='anchor')
    axes.set(ylim=(0, 1), xlabel='word (how often it is said)' if often is per_word
             else f'word (how often it is said, at least {at_least} times)')
    axes.grid(axis='x', visible=False)
    return figure, axes, means
