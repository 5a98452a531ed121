"""Chinese in figures: fonts, and in the Chinese lab the texts themselves, from ``labels.json`` beside this file.

The figures of the notes get it by ``notes/matplotlibrc``, all others by ``lab.figures``.
"""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.category import StrCategoryFormatter
from matplotlib.font_manager import fontManager
from matplotlib.text import Text
from matplotlib.ticker import Formatter, FuncFormatter

LABELS = Path(__file__).with_name('labels.json')  # English -> Chinese; the English lab has none
CHINESE = re.compile('[\u3000-\u9fff\uff00-\uffef]')
# matplotlib takes a character that the first font lacks from the next one
CHINESE_FONTS = ('Noto Sans CJK SC', 'Noto Sans CJK JP', 'Source Han Sans SC', 'Source Han Sans CN', 'PingFang SC',
                 'Hiragino Sans GB', 'Microsoft YaHei', 'SimHei', 'WenQuanYi Micro Hei', 'WenQuanYi Zen Hei')
if package := find_spec('mplfonts'):
    for path in Path(package.origin).parent.glob('fonts/NotoSansCJK*'):
        fontManager.addfont(path)
plt.rcParams['font.family'] = ['sans-serif', *(name for name in CHINESE_FONTS if name in fontManager.get_font_names())]


def pattern_of(label):
    """{} stands for a number, {word} for any text, and lines may break at each blank."""
    pattern = re.escape(label)
    for part, kind in ((r'\{\}', r'([-\d.,%]+)'), (r'\{word\}', '(.+)'), (r'\ ', r'\s+')):
        pattern = pattern.replace(part, kind)
    return re.compile(pattern, re.DOTALL)


def translated(text):
    """A text of a figure or a decoder's name, in Chinese if the lab and a font here are."""
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
if LABELS.exists():
    if len(plt.rcParams['font.family']) > 1:
        labels = json.loads(LABELS.read_text(encoding='utf-8'))['figures']
        IN_CHINESE = {pattern_of(label): chinese for label, chinese in labels.items()}
        plt.rcParams['figure.hooks'] = ['lab.labels:draw_in_chinese']
    else:
        print('Figures stay English, as no font here has Chinese characters: pip install mplfonts, then restart the '
              'kernel.')
