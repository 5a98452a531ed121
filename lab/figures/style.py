"""One style for all figures; it holds from the import on, for figures of your own as well."""

import json
import re
import textwrap
import warnings
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.font_manager import fontManager
from matplotlib.text import Text

from utils import atomic_path

WIDTH = 7.0  # inches: the text's width on A4, so that letters of 8 points are 8 points on paper
# Okabe and Ito 2008, "Color Universal Design": colour-blind people tell them apart. Their yellow is left out, which is
# faint on white.
COLORS = ('#0072b2', '#e69f00', '#009e73', '#d55e00', '#56b4e9', '#cc79a7', '#000000')
MARKERS = 'osD^vPX<>h'  # in grey these tell the lines apart
# matplotlib takes a character that the first font lacks from the next one
CHINESE_FONTS = ('Noto Sans CJK SC', 'Noto Sans CJK JP', 'Source Han Sans SC', 'Source Han Sans CN', 'PingFang SC',
                 'Hiragino Sans GB', 'Microsoft YaHei', 'SimHei', 'WenQuanYi Micro Hei', 'WenQuanYi Zen Hei')
if package := find_spec('mplfonts'):
    for path in Path(package.origin).parent.glob('fonts/NotoSansCJK*'):
        fontManager.addfont(path)
plt.rcParams.update({
    'font.family': ['sans-serif', *(name for name in CHINESE_FONTS if name in fontManager.get_font_names())],
    'font.size': 8, 'axes.titlesize': 8, 'figure.titlesize': 9, 'legend.fontsize': 7.5,
    'axes.prop_cycle': plt.cycler(color=COLORS, marker=MARKERS[:len(COLORS)]), 'lines.markersize': 3.5,
    'lines.linewidth': 1.3, 'axes.spines.top': False, 'axes.spines.right': False, 'axes.grid': True, 'grid.alpha': 0.3,
    'axes.axisbelow': True, 'figure.constrained_layout.use': True, 'figure.dpi': 110, 'savefig.dpi': 150})

DECODER_NAMES = {'NoAttention': 'plain LSTM', 'Attention': 'soft attention',
                 'DecoderWithSpatialAttention': 'spatial attention',
                 'DecoderWithAdaptiveAttention': 'adaptive attention',
                 'DecoderWithBahdanauAttention': 'Bahdanau attention',
                 'DecoderWithCell': 'plain decoder with another cell', 'Ensemble': 'ensemble'}
CHINESE = re.compile('[\u3000-\u9fff\uff00-\uffef]')
LABELS = Path(__file__).parents[1] / 'labels.json'  # the Chinese lab's: English -> Chinese


def pattern_of(label):
    """{} stands for a number, {word} for any text, and lines may break at each blank."""
    pattern = re.escape(label)
    for part, kind in ((r'\{\}', r'([-\d.,%]+)'), (r'\{word\}', '(.+)'), (r'\ ', r'\s+')):
        pattern = pattern.replace(part, kind)
    return re.compile(pattern, re.DOTALL)


def said(text):
    """A text of a figure or a decoder's name, in Chinese if the lab and a font here are."""
    return next((chinese.replace('{word}', '{}').format(*found.groups()) for pattern, chinese in IN_CHINESE.items()
                 if (found := pattern.fullmatch(text))), text)


def draw_in_chinese(figure):
    """Have a figure's texts go through :func:`said` when it is drawn, but for words below an axis: these are data."""
    draw = figure.draw

    def draw_it(renderer):
        words = {text for axes in figure.axes for text in (*axes.get_xticklabels(), *axes.get_yticklabels())
                 if text.get_text().isalpha()}
        for text in set(figure.findobj(Text)) - words:
            text.set_text(said(text.get_text()))
        draw(renderer)

    figure.draw = draw_it


IN_CHINESE = {}
if LABELS.exists():
    if len(plt.rcParams['font.family']) > 1:
        labels = json.loads(LABELS.read_text(encoding='utf-8'))['figures']
        IN_CHINESE = {pattern_of(label): chinese for label, chinese in labels.items()}
        plt.rcParams['figure.hooks'] = ['lab.figures.style:draw_in_chinese']
    else:
        print('Figures stay English, as no font here has Chinese characters: pip install mplfonts, then restart the '
              'kernel.')


def label(name):
    """A decoder's name for people: 'plain LSTM', 'soft attention', or the class of a decoder of your own; of several
    languages 'soft attention, zh'."""
    own, _, language = name.rpartition('_')
    if own in DECODER_NAMES:
        return f'{said(DECODER_NAMES[own])}, {language}'
    return said(DECODER_NAMES.get(name, name))


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
