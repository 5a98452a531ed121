"""A form for pictures of your own: drop or choose a file, and the models caption it word by word.

``caption.ipynb`` ends in it. ``python -m lab.app runs/shapes`` serves it as a page without code, through Voilà. Beside
your own models it has the lab's model of photos.
"""

import argparse
import json
import os
import sys
import tempfile
from base64 import b64encode
from functools import partial
from io import BytesIO
from pathlib import Path

import nbformat.v4
import numpy as np
import torch
from IPython.display import Javascript, display
from ipywidgets import HTML, Box, Checkbox, FileUpload, HBox, IntSlider, Layout, Play, VBox, jslink
from PIL import Image

from lab.data.images import open_image, squash
from lab.decode.beam_search import beam_search
from lab.decode.evaluate import caption_image
from lab.decode.rules import length_normalised, no_repeat_ngram
from lab.figures import label, overlay, read_histories
from lab.train.checkpoints import load_models
from utils import as_text, sentence

SHOWN = 320  # longest side of a picture on the page, in pixels
# Bytes of a file that gets through to Jupyter, whose messages end at 10 MiB, and to the page, which is set to more.
LARGEST, LARGEST_ON_PAGE = 10 ** 7, 10 ** 8
# for the model of photos, as validation chose: no two words twice, the best mean log-probability (docs/photos.md)
PHOTO_SEARCH = partial(beam_search, rules=[no_repeat_ngram(2)], rank=length_normalised)
SCRIPT = Path(__file__).with_name('app.js')
STYLES = "style-src 'self' 'unsafe-inline'"  # Voila's template asks a server far away for icons, and waits for it


def search_of(name):
    """The search of a model of ``checkpoints.load_models``: that of photos has rules of its own."""
    return PHOTO_SEARCH if name.startswith('photos') else beam_search


def describe(content, models, beam_size=3, file='this file'):
    """Caption one image file.

    :param content: the file's bytes
    :param models: dict name -> :class:`model.CaptionModel`
    :param beam_size: as for ``beam_search``
    :param file: what a message calls it
    :return: the picture, upright, (H, W, 3) uint8, no side longer than SHOWN; and a dict name -> what
        ``evaluate.caption_image`` returns: caption, score, finished, alphas, image
    :raises ValueError: the file is not a readable picture
    """
    picture = open_image(content, file)
    pixels = torch.from_numpy(squash(picture))
    picture.thumbnail((SHOWN, SHOWN))
    found = {}
    for name, model in models.items():
        found[name] = caption_image(model, pixels, beam_size, search=search_of(name))
    return np.asarray(picture), found


def figure_html(pixels, title, side):
    """
    :param pixels: (H, W, 3) uint8
    :param side: longest side on the page, in pixels of CSS
    :return: an HTML figure that holds its picture itself
    """
    file = BytesIO()
    Image.fromarray(pixels).save(file, 'jpeg', quality=85)
    return (f'<figure style="display: inline-block; margin: 0 8px 8px 0; text-align: center; line-height: 1.5">'
            f'<img style="display: block; max-width: {side}px; max-height: {side}px" '
            f'src="data:image/jpeg;base64,{b64encode(file.getvalue()).decode()}">'
            f'<figcaption>{as_text(title)}</figcaption></figure>')


class SpokenCaption(VBox):
    """A model's caption up to a word, and its attention maps up to this word: the picture, yellow where the decoder
    looked, with the word and the greatest weight in percent.

    :param found: of :func:`describe`, for one model
    :ivar words: the caption, a list of words
    """

    def __init__(self, title, picture, found):
        self.words, alphas = found['caption'], found['alphas']
        self.maps = [] if alphas is None else [
            HTML(figure_html(overlay(picture, alpha, float(alphas.max())), f'{word} {alpha.max():.0%}', 110))
            for word, alpha in zip(self.words, alphas, strict=True)]
        self.text, self.shown = HTML(), Box(layout=Layout(flex_flow='row wrap'))
        remark = ' (no maps: it sees the picture once, before its first word)' if alphas is None else ''
        super().__init__([HTML(f'<b>{as_text(title)}</b>{remark}'), self.text, self.shown],
                         layout=Layout(flex='1 1 240px', min_width='0'))

    def say(self, number):
        """Show the first ``number`` words."""
        self.text.value = f'<span style="font-size: 130%">{as_text(sentence(self.words[:number]))}</span>'
        self.shown.children = self.maps[:number]


def chosen_file(upload):
    """:return: name and bytes of the first file; ipywidgets 7, which Colab has, keeps them in another form"""
    file, *_ = upload.value.values() if isinstance(upload.value, dict) else upload.value
    return file.get('metadata', file)['name'], bytes(file['content'])


def form(models, largest=LARGEST):
    """The form: a picture, models and beam size to choose; below, a column for each chosen model.

    :param models: dict name -> :class:`model.CaptionModel`
    :param largest: bytes of a file that it takes
    :return: an ``ipywidgets`` box
    """
    upload = FileUpload(accept='image/*', description='Choose a picture', layout=Layout(width='180px'))
    tick = Layout(width='auto', margin='2px 12px')
    chosen = {name: Checkbox(True, description=label(name), indent=False, layout=tick) for name in models}
    beam_size = IntSlider(3, 1, 10, description='beam size', continuous_update=False)
    play = Play(interval=700, show_repeat=False)
    number = IntSlider(0, 0, 0, description='up to word')
    message = HTML('Or drop it here. A JPEG or PNG file: a photo of yours, a drawing, a screenshot.')
    picture = HTML()
    columns = Box(layout=Layout(flex='1 1 300px', flex_flow='row wrap'))
    jslink((play, 'value'), (number, 'value'))

    def show(_):
        for column in columns.children:
            column.say(number.value)

    def caption(_):
        if not upload.value:
            return
        play.playing, columns.children, picture.value = False, (), ''
        name, content = chosen_file(upload)
        message.value = as_text(f'The models look at {name} ...')
        ticked = {key: models[key] for key, box in chosen.items() if box.value}
        try:
            pixels, found = describe(content, ticked, beam_size.value, name)
            spoken = [SpokenCaption(heading(key, models[key]), pixels, captioned)
                      for key, captioned in found.items()]
        except Exception as error:  # raised in a form, nobody would see it
            message.value = as_text(error if isinstance(error, ValueError) else f'{type(error).__name__}: {error}')
            return
        message.value, picture.value, columns.children = '', figure_html(pixels, name, 240), spoken
        number.max = play.max = max((len(column.words) for column in columns.children), default=0)
        number.value = play.value = 0
        play.playing = True  # ipywidgets 7 ignores this: there a person presses the button

    number.observe(show, 'value')
    for widget in (upload, beam_size, *chosen.values()):
        widget.observe(caption, 'value')
    row = Layout(flex_flow='row wrap')
    whole = VBox([HBox([upload, *chosen.values(), beam_size], layout=row), HBox([play, number], layout=row),
                  message, Box([picture, columns], layout=row)],
                 layout=Layout(border='1px dashed #999', padding='8px'))
    whole.add_class('own-picture')
    message.add_class('own-message')
    too_large = f'it has more than {largest // 10 ** 6} MB, which do not get through; take a smaller file'
    display(Javascript(f'{SCRIPT.read_text(encoding="utf-8")}({largest}, {json.dumps(too_large)})'))
    return whole


def heading(name, model):
    """A model's name for people; a model of shapes says what it is, since it calls everything by their names."""
    shapes_only = model.settings['data_name'].startswith('shapes')
    return label(name) + (' (knows only shapes: for photos take the model of photos)' if shapes_only else '')


def with_photos(models):
    """These models, and behind them those of photos, which run in your ``DecoderWithAttention`` after TODO 3 and 4.

    :param models: dict name -> :class:`model.CaptionModel`
    """
    try:
        photos = load_models('', 'photos')
        caption_image(next(iter(photos.values())), torch.zeros(3, 256, 256, dtype=torch.uint8), max_len=1)
    except Exception as error:  # a TODO that is open or half done; a package of its encoder
        print(f'The model of photos is left out: {error}')
        return models
    return models | photos


def main():
    parser = argparse.ArgumentParser(description='A page that captions pictures of your own.')
    parser.add_argument('run_folder', nargs='?', default='runs/shapes', help='output_folder of the training')
    parser.add_argument('--port', type=int, default=8866)
    parser.add_argument('--no-browser', action='store_true', help='open no browser window')
    arguments = parser.parse_args()
    names = list(read_histories(arguments.run_folder))
    if not with_photos(load_models(arguments.run_folder, names)):  # errors come here, not in the browser
        sys.exit(f'there is no trained model in {arguments.run_folder} either: run train_rnn.ipynb or '
                 'train_attention.ipynb first')

    from voila.app import Voila  # caption.ipynb needs none
    title = 'Look at a picture, say what you see'
    page = nbformat.v4.new_notebook(metadata=dict(title=title), cells=[
        nbformat.v4.new_markdown_cell(f'# {title}\n\nEach model captions your picture word by word. A map is yellow '
                                      'where the decoder looked for its word, on one scale for the whole caption. '
                                      'Beside the word stands the greatest weight of a cell, in percent of all '
                                      'attention.'),
        nbformat.v4.new_code_cell(f'import os\n\nos.chdir({os.getcwd()!r})\n'
                                  'from lab.app import form, with_photos\n'
                                  'from lab.train.checkpoints import load_models\n\n'
                                  f'form(with_photos(load_models({arguments.run_folder!r}, {names})), '
                                  f'{LARGEST_ON_PAGE})')])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'page.ipynb'
        nbformat.write(page, path)
        Voila.launch_instance([str(path)], port=arguments.port, open_browser=not arguments.no_browser,
                              tornado_settings=dict(websocket_max_message_size=LARGEST_ON_PAGE + 2 ** 20,
                                                    headers={'Content-Security-Policy': STYLES}))


if __name__ == '__main__':
    try:
        main()
    except ValueError as error:
        sys.exit(f'{error}')
