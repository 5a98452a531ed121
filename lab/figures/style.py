"""One style for all figures; it holds from the import on, for figures of your own as well."""

import textwrap
import warnings
from pathlib import Path

import matplotlib.pyplot as plt

from lab.fonts import CHINESE
from utils import atomic_path

try:
    from lab.labels import translated  # only the Chinese lab has it
except ModuleNotFoundError:
    translated = str

WIDTH = 7.0  # inches: the text's width on A4, so that letters of 8 points are 8 points on paper
# Okabe and Ito 2008, "Color Universal Design": colour-blind people tell them apart. Their yellow is left out, which is
# faint on white.
COLORS = ('#0072b2', '#e69f00', '#009e73', '#d55e00', '#56b4e9', '#cc79a7', '#000000')
MARKERS = 'osD^vPX<>h'  # in grey these tell the lines apart
plt.rcParams.update({
    'font.size': 8, 'axes.titlesize': 8, 'figure.titlesize': 9, 'legend.fontsize': 7.5,
    'axes.prop_cycle': plt.cycler(color=COLORS, marker=MARKERS[:len(COLORS)]), 'lines.markersize': 3.5,
    'lines.linewidth': 1.3, 'axes.spines.top': False, 'axes.spines.right': False, 'axes.grid': True, 'grid.alpha': 0.3,
    'axes.axisbelow': True, 'figure.constrained_layout.use': True, 'figure.dpi': 110, 'savefig.dpi': 150})

DECODER_NAMES = {'NoAttention': 'plain LSTM', 'Attention': 'soft attention',
                 'DecoderWithSpatialAttention': 'spatial attention',
                 'DecoderWithAdaptiveAttention': 'adaptive attention',
                 'DecoderWithBahdanauAttention': 'Bahdanau attention',
                 'DecoderWithCell': 'plain decoder with another cell', 'Ensemble': 'ensemble',
                 'photos': 'model of photos'}


def label(name):
    """A decoder's name for people: 'plain LSTM', 'soft attention', or the class of a decoder of your own; of several
    languages 'soft attention, zh'."""
    own, _, language = name.rpartition('_')
    if own in DECODER_NAMES:
        return f'{translated(DECODER_NAMES[own])}, {language}'
    return translated(DECODER_NAMES.get(name, name))


def line_styles(names):
    """Name -> colour and marker of its line. The markers of 20 lines differ, so they can be told apart in grey as well.
    The lab's own two decoders look the same in every figure.
    """
    ours = ['NoAttention', 'Attention'] if {'NoAttention', 'Attention'} & {*names} else []
    return {name: dict(color=COLORS[i % len(COLORS)], marker=MARKERS[i % len(MARKERS)],
                       fillstyle='full' if i < len(MARKERS) else 'none')
            for i, name in enumerate(dict.fromkeys([*ours, *names])) if name in names}


def drawable(texts, width=None, indent=''):
    """Captions, words and names as text for a figure. matplotlib takes what stands between two $ for a formula, unless
    they are escaped.

    :param texts: list of str
    :param width: break longer lines; in Latin letters, a Chinese character is as wide as two. None: break none
    :param indent: before each line that goes on
    :return: list of str
    """
    texts = list(texts)
    if len(plt.rcParams['font.family']) == 1 and CHINESE.search(''.join(texts)):
        warnings.warn('no font here has Chinese characters: pip install mplfonts, then restart the kernel',
                      stacklevel=2)
        warnings.filterwarnings('ignore', 'Glyph.*missing')  # matplotlib's own, one for each character
    if width is not None:
        texts = ['\n'.join(textwrap.fill(line, width // (2 if CHINESE.search(text) else 1), subsequent_indent=indent)
                           for line in text.splitlines()) for text in texts]
    return [text.replace('$', r'\$') for text in texts]


def save_figure(figure, path):
    """Write a figure as PNG and beside it as PDF, which LaTeX takes. In the PDF lines and letters are sharp at any
    size, and pictures as fine as in the PNG.

    :param path: of the PNG; its folder is made if need be
    """
    for kind in ('png', 'pdf'):
        with atomic_path(Path(path).with_suffix(f'.{kind}')) as temporary:
            figure.savefig(temporary, format=kind)
        figure.set_layout_engine('none')  # the layout is done once, since it takes long
