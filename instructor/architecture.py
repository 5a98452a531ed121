"""The two decoders as figures for ASSIGNMENT.md: ``python -m instructor.architecture``.

They hold names of layers, symbols and shapes only, so that one figure serves every language.
"""

import itertools
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from instructor.assemble import ROOT
from instructor.pictures import save_small
from lab.data.shapes import draw_scene

LAYER, STATE, DATA = '#cfe3f5', '#fbe3c0', '#f2f2f2'  # what is learnt, what is carried on, what goes in or comes out


class Drawing:
    """Boxes and arrows in units of one line of text."""

    def __init__(self, width, height):
        self.figure = plt.figure(figsize=(width / 3, height / 3))
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
        self.axes.axis('off')

    def box(self, x, y, text, color=LAYER, width=4.2, height=1.4, size=11):
        """A box with its middle at (x, y)."""
        self.axes.add_patch(FancyBboxPatch((x - width / 2, y - height / 2), width, height, facecolor=color,
                                           edgecolor='#444444', boxstyle='round,pad=0,rounding_size=0.25'))
        self.text(x, y, text, size)

    def text(self, x, y, text, size=10, **options):
        self.axes.text(x, y, text, size=size, ha='center', va='center', **options)

    def number(self, x, y, number):
        """The number of a step, as the TODO has it, at the corner of a box."""
        self.text(x, y, number, 8, color='white', weight='bold', bbox=dict(boxstyle='circle,pad=0.2', color='#444444'))

    def frame(self, left, bottom, width, height):
        """A dashed one, around boxes that are one module."""
        self.axes.add_patch(Rectangle((left, bottom), width, height, fill=False, edgecolor='#444444', linestyle='--'))

    def arrow(self, *points, text='', shift=(0, 0.4)):
        """Through these points, with a text near the middle of the last piece."""
        for i, (begin, end) in enumerate(zip(points, points[1:], strict=False)):
            style = '-|>' if i == len(points) - 2 else '-'
            self.axes.add_patch(FancyArrowPatch(begin, end, arrowstyle=style, mutation_scale=11, color='#444444',
                                                shrinkA=0, shrinkB=0, linewidth=1.2))
        if text:
            self.text((begin[0] + end[0]) / 2 + shift[0], (begin[1] + end[1]) / 2 + shift[1], text, 10)

    def grid(self, x, y, side, image, cells=4):
        """A picture with its middle at (x, y), cut into cells."""
        left, bottom = x - side / 2, y - side / 2
        self.axes.imshow(image, extent=(left, left + side, bottom, bottom + side), aspect='auto', zorder=1)
        for i in range(cells * cells):
            self.axes.add_patch(Rectangle((left + i % cells * side / cells, bottom + i // cells * side / cells),
                                          side / cells, side / cells, fill=False, edgecolor='white', linewidth=0.8))

    def save(self, name):
        drawn = BytesIO()
        self.figure.savefig(drawn, format='png', dpi=110)
        plt.close(self.figure)
        save_small(drawn, ROOT / 'docs/images' / name)


def plain_decoder(image):
    """x_{-1} is the picture; then the LSTM reads a word at each step and scores the next one."""
    d = Drawing(40.5, 15.5)
    d.grid(2.4, 7.2, 3.6, image)
    d.arrow((2.4, 5.4), (2.4, 2.9))
    d.box(2.4, 2.2, 'CNN', width=2.8)
    for x, name in ((8.3, 'mean'), (12.2, 'init'), (16.1, 'bn')):
        d.box(x, 2.2, name, DATA if name == 'mean' else LAYER, width=2.8)
    d.arrow((3.8, 2.2), (6.9, 2.2), text=r'$a_1 \dots a_L$', shift=(0, 0.6))
    d.arrow((9.7, 2.2), (10.8, 2.2), text=r'$\bar a$', shift=(0, 0.6))
    d.arrow((13.6, 2.2), (14.7, 2.2))
    columns = [(18.9, r'$x_{-1}$', '', ''), (23.4, r'$x_0$', '<start>', 'a'), (27.9, r'$x_1$', 'a', 'red'),
               (32.4, r'$x_2$', 'red', 'star'), (36.9, r'$x_3$', 'star', '<end>')]
    for i, (x, symbol, word, scored) in enumerate(columns):
        d.box(x, 7.2, 'decode_step\n(LSTMCell)', width=3.4, height=1.7, size=9.5)
        if i:
            d.text(x, 0.7, f'$S_{i - 1}$ = {word}', 11)
            d.arrow((x, 1.2), (x, 1.8))
            d.box(x, 2.5, 'embedding', width=3.6)
            d.arrow((x, 3.2), (x, 6.3), text=symbol, shift=(0.6, 0))
            d.arrow((x, 8.05), (x, 9.4), text=f'$h_{i - 1}$', shift=(0.55, 0.25))
            d.box(x, 10.1, 'dropout', DATA, width=3.6)
            d.arrow((x, 10.8), (x, 11.5))
            d.box(x, 12.2, 'fc', width=3.6)
            d.arrow((x, 12.9), (x, 14.1))
            d.text(x, 14.7, scored, 11, weight='bold')
        else:
            d.arrow((17.5, 2.2), (x, 2.2), (x, 6.3), text=symbol, shift=(0.7, 0))
        if i < 4:
            d.arrow((x + 1.7, 7.2), (x + 2.8, 7.2))
            d.box(x + 2.25, 8.7, f'$h_{{{i - 1}}}, c_{{{i - 1}}}$', STATE, width=2.3, height=0.9, size=9.5)
    d.box(14.4, 7.2, '$0, 0$', STATE, width=2.2)
    d.arrow((15.5, 7.2), (17.2, 7.2))
    d.save('plain_decoder.png')


def attention_decoder(image, weights):
    """One step: look with the old h, read the word, score the next.

    :param weights: (4, 4) alpha, shown as brightness
    """
    d = Drawing(42.5, 19)
    d.grid(3, 15.4, 3.8, image)
    d.arrow((4.9, 15.4), (6.6, 15.4))
    d.box(8, 15.4, 'CNN', width=2.8)
    d.frame(12, 10.5, 27.3, 7.2)
    d.text(25.6, 17.0, 'Attention', 12, style='italic')
    d.arrow((9.4, 15.4), (12.6, 15.4), text=r'$a_1 \dots a_L$', shift=(-0.3, -0.7))
    d.box(14.9, 15.4, 'encoder_att', width=4.6)
    d.box(14.9, 11.6, 'decoder_att', width=4.6)
    d.box(19.8, 15.4, '+', DATA, width=1.4)
    d.arrow((17.2, 15.4), (19.1, 15.4), text='keys')
    d.arrow((17.2, 11.6), (19.8, 11.6), (19.8, 14.7), text='query', shift=(-1.3, 0))
    d.box(22.8, 15.4, 'ReLU', DATA, width=2.4)
    d.box(26.4, 15.4, 'att', width=2.6)
    d.box(30.6, 15.4, 'softmax', DATA, width=3.4)
    d.arrow((20.5, 15.4), (21.6, 15.4))
    d.arrow((24.0, 15.4), (25.1, 15.4))
    d.arrow((27.7, 15.4), (28.9, 15.4), text='$e_{ti}$')
    d.grid(36, 15.4, 3.8, np.repeat(weights[..., np.newaxis], 3, axis=2))
    d.arrow((32.3, 15.4), (34.1, 15.4), text=r'$\alpha_{ti}$')
    d.box(36, 11.6, r'$z_t = \sum_i \alpha_{ti}\, a_i$', DATA, width=5.4)
    d.arrow((36, 13.5), (36, 12.3))
    d.arrow((10.6, 15.4), (10.6, 18.3), (40.6, 18.3), (40.6, 11.6), (38.7, 11.6), text='$a_i$', shift=(0.3, 0.5))
    d.box(3, 5.6, '$h_{t-1}, c_{t-1}$', STATE, width=4.4)
    d.text(3, 4.2, r'at first from $\bar a$', 10)
    d.arrow((3, 6.3), (3, 11.6), (12.6, 11.6), text='$h_{t-1}$', shift=(-1.5, 0.5))
    d.box(20.5, 8.7, 'f_beta', width=3)
    d.box(25, 8.7, 'sigmoid', DATA, width=3.2)
    d.arrow((3, 8.7), (19, 8.7))
    d.arrow((22, 8.7), (23.4, 8.7))
    d.box(30.4, 8.7, r'$\beta_t \odot z_t$', DATA, width=3.2)
    d.arrow((26.6, 8.7), (28.8, 8.7), text=r'$\beta_t$')
    d.arrow((36, 10.9), (36, 8.7), (32, 8.7), text='$z_t$')
    d.box(30.4, 5.6, r'$[\,x_t\,;\;\beta_t \odot z_t\,]$', DATA, width=5)
    d.arrow((30.4, 8.0), (30.4, 6.3))
    d.text(37.6, 2.9, '$S_t$', 11)
    d.box(37.6, 5.6, 'embedding', width=3.8)
    d.arrow((37.6, 3.5), (37.6, 4.9))
    d.arrow((35.7, 5.6), (32.9, 5.6), text='$x_t$')
    d.box(17.5, 5.6, 'decode_step\n(LSTMCell)', width=4.6, height=1.9)
    d.arrow((5.2, 5.6), (15.2, 5.6))
    d.arrow((27.9, 5.6), (19.8, 5.6))
    d.box(3, 1.6, '$h_t, c_t$', STATE, width=4.4)
    d.arrow((16.5, 4.65), (16.5, 1.6), (5.2, 1.6))
    d.arrow((18.5, 4.65), (18.5, 1.6), (21, 1.6), text='$h_t$')
    d.box(22.8, 1.6, 'dropout', DATA, width=3.6)
    d.arrow((24.6, 1.6), (26, 1.6))
    d.box(27.4, 1.6, 'fc', width=2.8)
    d.arrow((28.8, 1.6), (31, 1.6))
    d.text(33, 1.6, 'predictions', 11)
    for number, (x, y) in enumerate([(12, 17.7), (19, 9.4), (15.2, 6.55), (21, 2.3)], 1):
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
