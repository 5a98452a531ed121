"""Fonts with Chinese characters for matplotlib: those of the system, or that of the package mplfonts."""

import re
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.font_manager import fontManager

CHINESE = re.compile('[\u3000-\u9fff\uff00-\uffef]')
# matplotlib takes a character that the first font lacks from the next one
FONTS = ('Noto Sans CJK SC', 'Noto Sans CJK JP', 'Source Han Sans SC', 'Source Han Sans CN', 'PingFang SC',
         'Hiragino Sans GB', 'Microsoft YaHei', 'SimHei', 'WenQuanYi Micro Hei', 'WenQuanYi Zen Hei')
if package := find_spec('mplfonts'):
    for path in Path(package.origin).parent.glob('fonts/NotoSansCJK*'):
        fontManager.addfont(path)
plt.rcParams['font.family'] = ['sans-serif', *(name for name in FONTS if name in fontManager.get_font_names())]
