"""Texts of figures in Chinese, from ``labels.json`` beside this file. Both are in ``lab/`` of the Chinese handout.

The figures of the notes get it by ``notes/matplotlibrc``, all others by ``lab.figures``.
"""

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.category import StrCategoryFormatter
from matplotlib.text import Text
from matplotlib.ticker import Formatter, FuncFormatter

from lab import fonts  # noqa: F401, they are needed first

LABELS = Path(__file__).with_name('labels.json')  # English -> Chinese


def pattern_of(label):
    """{} stands for a number, {word} for any text, and lines may break at each blank."""
    pattern = re.escape(label)
    for part, kind in ((r'\{\}', r'([-\d.,%]+)'), (r'\{word\}', '(.+)'), (r'\ ', r'\s+')):
        pattern = pattern.replace(part, kind)
    return re.compile(pattern, re.DOTALL)


def translated(text):
    """A text of a figure or a decoder's name, in Chinese if there is a font."""
    return next((chinese.replace('{word}', '{}').format(*found.groups()) for pattern, chinese in IN_CHINESE.items()
                 if (found := pattern.fullmatch(text))), text)


class ChineseTicks(Formatter):
    """Tick labels in Chinese, but for single words: these are words of captions."""

    def __init__(self, formatter):
        self.formatter = formatter

    def __call__(self, x, pos=None):
        text = str(self.formatter(x, pos))
        return text if text.isalpha() else translated(text)


def draw_in_chinese(figure):
    """Have a figure's texts go through :func:`translated` when it is drawn."""
    draw = figure.draw

    def draw_it(renderer):
        tick_labels = set()
        for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
            tick_labels.update(axis.get_ticklabels())
            if isinstance(axis.get_major_formatter(), (FuncFormatter, StrCategoryFormatter)):
                axis.set_major_formatter(ChineseTicks(axis.get_major_formatter()))
        for text in set(figure.findobj(Text)) - tick_labels:
            text.set_text(translated(text.get_text()))
        draw(renderer)

    figure.draw = draw_it


IN_CHINESE = {}
if len(plt.rcParams['font.family']) > 1:
    labels = json.loads(LABELS.read_text(encoding='utf-8'))['figures']
    IN_CHINESE = {pattern_of(label): chinese for label, chinese in labels.items()}
    plt.rcParams['figure.hooks'] = ['lab.labels:draw_in_chinese']
else:
    print('图中的文字仍是英文，因为这里没有中文字体：请运行 pip install mplfonts，再重新启动内核。')
