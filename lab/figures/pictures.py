"""Sheets of pictures with their captions."""

import matplotlib.pyplot as plt

from lab.figures.style import WIDTH, drawable


def plot_captions(images, titles, columns=3):
    """A sheet of pictures with text above each.

    :param images: list of (H, W, 3) uint8
    :param titles: list of str, one per image; long lines are broken
    """
    rows = [slice(start, start + columns) for start in range(0, len(images), columns)]
    return plot_sheet([('', images[row], titles[row]) for row in rows], columns)


def plot_sheet(rows, columns=3):
    """A sheet of pictures with text above each, and a name before each row.

    :param rows: list of (name, images, titles): the row's name, list of (H, W, 3) uint8, list of str, one per image
    """
    texts = iter(drawable([text for name, _, titles in rows for text in (name, *titles)], 38))
    rows = [(next(texts), images, [next(texts) for _ in titles]) for _, images, titles in rows]
    lines = [max([len(title.splitlines()) for title in titles], default=0) for _, _, titles in rows]
    heights = [WIDTH / columns + 0.145 * count for count in lines]
    figure, axes = plt.subplots(len(rows), columns, figsize=(WIDTH, sum(heights)), height_ratios=heights, squeeze=False)
    for of_row, (name, images, titles) in zip(axes, rows, strict=True):
        for ax in of_row:
            ax.set(xticks=[], yticks=[], frame_on=False, anchor='S')
        of_row[0].set_ylabel(name if images else f'{name}: none', fontsize=9)
        for ax, image, title in zip(of_row, images, titles, strict=False):
            ax.imshow(image)
            ax.set_title(title, fontsize=7.5, loc='left')
    return figure


def plot_side_by_side(images, texts):
    """A row per picture: the picture, and beside it its captions.

    :param images: list of (H, W, 3) uint8
    :param texts: list of str, one per image; long lines are broken
    """
    texts = drawable(texts, 100, indent='    ')
    heights = [max(1.4, 0.3 + 0.135 * len(text.splitlines())) for text in texts]
    figure, axes = plt.subplots(len(images), 2, figsize=(WIDTH, sum(heights)), squeeze=False, width_ratios=[2, 8],
                                height_ratios=heights)
    for (left, right), image, text in zip(axes, images, texts, strict=True):
        left.imshow(image)
        right.text(0, 0.5, text, va='center', fontsize=7.5)
        left.axis('off')
        right.axis('off')
    return figure
