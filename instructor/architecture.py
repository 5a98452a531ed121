"""The two decoders as figures for ASSIGNMENT.md: ``python -m instructor.architecture``.

They hold names of layers, symbols and shapes only, so that one figure serves every language.
"""

import itertools

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from instructor.assemble import ROOT
from lab.data.shapes import draw_scene
from utils import atomic_path

LAYER, STATE, DATA = '#cfe3f5', '#fbe3c0', '#f2f2f2'  # what is learnt, what is carried on, what goes in or comes out


class Drawing:
    """Boxes and arrows in units of one line of text."""

    def __init__(self, width, height):
        self.figure = plt.figure(figsize=(width / 3, height / 3))
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
        self.axes.axis('off')

    def box(self, x, y, text, color=LAYER, width=4.2, height=1.4, size=10):
        """A box with its middle at (x, y)."""
        self.axes.add_patch(FancyBboxPatch((x - width / 2, y - height / 2), width, height, facecolor=color,
                                           edgecolor='#444444', boxstyle='round,pad=0,rounding_size=0.25'))
        self.text(x, y, text, size)

    def text(self, x, y, text, size=10, **options):
        self.axes.text(x, y, text, size=size, ha='center', va='center', **options)

    def number(self, x, y, number):
        """The number of a step, as the TODO has it, at the corner of a box."""
        self.text(x, y, number, 8, color='white', weight='bold', bbox=dict(boxstyle='circle,pad=0.2', color='#444444'))

    def arrow(self, *points, text='', shift=(0, 0.4)):
        """Through these points, with a text near the middle of the last piece."""
        for i, (begin, end) in enumerate(zip(points, points[1:], strict=False)):
            style = '-|>' if i == len(points) - 2 else '-'
            self.axes.add_patch(FancyArrowPatch(begin, end, arrowstyle=style, mutation_scale=11, color='#444444',
                                                shrinkA=0, shrinkB=0, linewidth=1.2))
        if text:
            self.text((begin[0] + end[0]) / 2 + shift[0], (begin[1] + end[1]) / 2 + shift[1], text, 9)

    def grid(self, x, y, side, image, cells=4):
        """A picture with its middle at (x, y), cut into cells."""
        left, bottom = x - side / 2, y - side / 2
        self.axes.imshow(image, extent=(left, left + side, bottom, bottom + side), aspect='auto', zorder=1)
        for i in range(cells * cells):
            self.axes.add_patch(Rectangle((left + i % cells * side / cells, bottom + i // cells * side / cells),
                                          side / cells, side / cells, fill=False, edgecolor='white', linewidth=0.8))

    def save(self, name):
        with atomic_path(ROOT / 'docs/images' / name) as temporary:
            self.figure.savefig(temporary, format='png', dpi=110)
        plt.close(self.figure)


def plain_decoder(image):
    """x_{-1} is the picture; then the LSTM reads a word at each step and scores the next one."""
    d = Drawing(40.5, 15.5)
    d.grid(3, 2.2, 3.6, image)
    d.text(3, 4.5, r'$a_1 \dots a_L$', 11)
    for x, name in ((8.3, 'mean'), (12.2, 'init'), (16.1, 'bn')):
        d.box(x, 2.2, name, DATA if name == 'mean' else LAYER, width=2.8)
    d.arrow((4.8, 2.2), (6.9, 2.2))
    d.arrow((9.7, 2.2), (10.8, 2.2), text=r'$\bar a$', shift=(0, 0.6))
    d.arrow((13.6, 2.2), (14.7, 2.2))
    columns = [(18.9, r'$x_{-1}$', '', ''), (23.4, r'$x_0$', '<start>', 'a'), (27.9, r'$x_1$', 'a', 'red'),
               (32.4, r'$x_2$', 'red', 'star'), (36.9, r'$x_3$', 'star', '<end>')]
    for i, (x, symbol, word, scored) in enumerate(columns):
        d.box(x, 7.2, 'LSTMCell', width=3.4, height=1.7)
        if i:
            d.text(x, 0.7, word, 11)
            d.arrow((x, 1.2), (x, 1.8))
            d.box(x, 2.5, 'embedding', width=3.6)
            d.arrow((x, 3.2), (x, 6.3), text=symbol, shift=(0.6, 0))
            d.arrow((x, 8.05), (x, 9.4), text=f'$h_{i - 1}$', shift=(0.6, 0.3))
            d.box(x, 10.1, 'dropout', DATA, width=3.6)
            d.arrow((x, 10.8), (x, 11.5))
            d.box(x, 12.2, 'fc', width=3.6)
            d.arrow((x, 12.9), (x, 14.1))
            d.text(x, 14.7, scored, 11, weight='bold')
        else:
            d.arrow((17.5, 2.2), (x, 2.2), (x, 6.3), text=symbol, shift=(0.7, 0))
        if i < 4:
            d.arrow((x + 1.7, 7.2), (x + 2.8, 7.2))
            d.box(x + 2.25, 8.5, f'$h_{{{i - 1}}}, c_{{{i - 1}}}$', STATE, width=2.2, height=0.7, size=8)
    d.box(14.4, 7.2, '$0, 0$', STATE, width=2.2)
    d.arrow((15.5, 7.2), (17.2, 7.2))
    d.save('plain_decoder.png')


def attention_decoder(image, weights):
    """One step: look with the old h, read the word, score the next.

    :param weights: (4, 4) alpha, shown as brightness
    """
    d = Drawing(36, 17)
    d.grid(3, 13.6, 3.8, image)
    d.text(3, 11.1, r'$a_1 \dots a_L$', 11)
    d.box(9.3, 13.6, 'encoder_att', width=4.6)
    d.arrow((4.9, 13.6), (7.0, 13.6))
    d.box(9.3, 10.2, 'decoder_att', width=4.6)
    d.box(14.2, 13.6, '+', DATA, width=1.4)
    d.arrow((11.6, 13.6), (13.5, 13.6), text='keys')
    d.arrow((11.6, 10.2), (14.2, 10.2), (14.2, 12.9), text='query', shift=(-1.2, 0))
    d.box(17.2, 13.6, 'ReLU', DATA, width=2.4)
    d.box(20.8, 13.6, 'att', width=2.6)
    d.box(25.0, 13.6, 'softmax', DATA, width=3.4)
    d.arrow((14.9, 13.6), (16.0, 13.6))
    d.arrow((18.4, 13.6), (19.5, 13.6))
    d.arrow((22.1, 13.6), (23.3, 13.6), text='$e_{ti}$')
    d.grid(31, 13.6, 3.8, np.repeat(weights[..., np.newaxis], 3, axis=2))
    d.arrow((26.7, 13.6), (29.1, 13.6), text=r'$\alpha_{ti}$')
    d.box(31, 9.4, r'$z_t = \sum_i \alpha_{ti}\, a_i$', DATA, width=5.4)
    d.arrow((31, 11.7), (31, 10.1))
    d.arrow((3, 15.5), (3, 16.4), (35, 16.4), (35, 9.4), (33.7, 9.4), text='$a_i$', shift=(-0.1, 0.5))
    d.box(3, 6.2, '$h_{t-1}, c_{t-1}$', STATE, width=4.4)
    d.arrow((3, 6.9), (3, 10.2), (7.0, 10.2), text='$h_{t-1}$')
    d.box(16.2, 9.4, 'f_beta', width=3)
    d.box(20.3, 9.4, 'sigmoid', DATA, width=3.2)
    d.arrow((3, 8.2), (16.2, 8.2), (16.2, 8.7))
    d.arrow((17.7, 9.4), (18.7, 9.4))
    d.box(25.2, 9.4, r'$\beta_t \odot z_t$', DATA, width=3.2)
    d.arrow((21.9, 9.4), (23.6, 9.4), text=r'$\beta_t$')
    d.arrow((28.3, 9.4), (26.8, 9.4), text='$z_t$')
    d.box(25.2, 6.2, r'$[\,x_t\,;\;\beta_t \odot z_t\,]$', DATA, width=5)
    d.arrow((25.2, 8.7), (25.2, 6.9))
    d.text(32.6, 3.6, '$S_t$', 11)
    d.box(32.6, 6.2, 'embedding', width=3.8)
    d.arrow((32.6, 4.2), (32.6, 5.5))
    d.arrow((30.7, 6.2), (27.7, 6.2), text='$x_t$')
    d.box(14.2, 6.2, 'LSTMCell', width=4.6, height=1.7)
    d.arrow((5.2, 6.2), (11.9, 6.2))
    d.arrow((22.7, 6.2), (16.5, 6.2))
    d.box(3, 2.0, '$h_t, c_t$', STATE, width=4.4)
    d.arrow((13.2, 5.35), (13.2, 2.0), (5.2, 2.0))
    d.arrow((15.2, 5.35), (15.2, 2.0), (17.6, 2.0), text='$h_t$')
    d.box(19.4, 2.0, 'dropout', DATA, width=3.6)
    d.arrow((21.2, 2.0), (22.6, 2.0))
    d.box(24, 2.0, 'fc', width=2.8)
    d.arrow((25.4, 2.0), (28, 2.0))
    d.text(31.2, 2.0, 'predictions (scores)', 11)
    d.text(17.5, 15.3, 'Attention', 11, style='italic')
    for number, (x, y) in enumerate([(7.0, 14.3), (14.7, 10.1), (11.9, 7.0), (17.6, 2.7)], 1):
        d.number(x, y, number)
    d.save('attention_decoder.png')


def main():
    image, scene = next(drawn for drawn in map(draw_scene, map(np.random.default_rng, itertools.count()))
                        if [(item['color'], item['shape']) for item in drawn[1]['objects']] == [('red', 'star')])
    x0, y0, x1, y1 = scene['objects'][0]['box']
    star = np.zeros((256, 256))
    star[y0:y1, x0:x1] = 1
    weights = star.reshape(4, 64, 4, 64).mean(axis=(1, 3))
    plain_decoder(image)
    attention_decoder(image, weights)


if __name__ == '__main__':
    main()
