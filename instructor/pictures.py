"""The figures of README.md, ASSIGNMENT.md and docs/photos.md, in English and Chinese: ``make pictures``, after a demo.

The Chinese handout has those of ``docs/images/zh``. They need a Chinese font: ``pip install mplfonts``.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

from instructor import handout
from instructor.assemble import ROOT
from instructor.cut import REFERENCE

DEMO = ROOT / 'build' / 'demo'
# run in a handout's folder that has the demo's runs
DRAW = """
from pathlib import Path
from lab.app import PHOTO_SEARCH
from lab.decode.evaluate import caption_image, find_picture
from lab.figures import plot_attention, plot_history, read_histories, save_figure
from lab.train.checkpoints import load_models

save_figure(plot_history(read_histories('runs/shapes')), 'drawn/history.png')
shapes, photos = load_models('runs/shapes', 'Attention'), load_models('', 'photos')
for name, picture, model, options in (
        ('attention', 4, shapes['Attention'], {}),
        *((f'photo_{language}', 'docs/images/surfer.jpg', photos[f'photos_{language}'], dict(search=PHOTO_SEARCH))
          for language in ('en', 'zh'))):
    _, pixels = find_picture(model, picture)
    found = caption_image(model, pixels, **options)
    print(name, ' '.join(found['caption']))
    more = dict(gate=found['gate']) if name == 'attention' else dict(scale='caption')
    figure = plot_attention(pixels.permute(1, 2, 0).numpy(), found['caption'], found['alphas'],
                            probabilities=found['probabilities'], **more)
    save_figure(figure, Path(f'drawn/{name}.png'))
"""


def draw(language):
    """Draw all of them with the lab in this language.

    :return: paths of the figures
    """
    folder = ROOT / 'build' / f'pictures_{language}'
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in {**handout.files(language), 'models.py': REFERENCE.read_bytes()}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name in ('data', 'runs'):
        (folder / name).symlink_to(DEMO / name)
    printed = subprocess.run([sys.executable, '-c', DRAW], cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    print(printed.stdout)
    if 'mplfonts' in printed.stdout:
        sys.exit('error: no Chinese font here')
    return sorted(Path(folder, 'drawn').glob('*.png'))


def save_small(file, path):
    """Save a figure with 256 colours, a quarter of the bytes: a clone holds every figure ever drawn.

    :param file, path: of a PNG, each a path or a file
    """
    figure = Image.open(file).convert('RGB')
    # the colours of few pixels count, too, as where a map is brightest; dithering would put specks there
    palette = figure.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2)
    palette.putpalette([255 if value > 248 else value for value in palette.getpalette()])  # the page is white
    figure.quantize(palette=palette, dither=Image.Dither.NONE).save(path, 'PNG', optimize=True)


def main():
    for language, folder in (('zh', 'docs/images/zh'), ('en', 'docs/images')):  # the font is missed first
        for path in draw(language):
            save_small(path, ROOT / folder / path.name)


if __name__ == '__main__':
    main()
