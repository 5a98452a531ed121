"""Pictures of one's own: the function behind the form, the form without a browser, and its page in a real one."""

import base64
import io
import re
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from datetime import datetime
from types import SimpleNamespace

import ipywidgets
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from programs import BROWSERS, needs

from lab import app
from lab.decode.evaluate import caption_image
from lab.figures import read_histories
from lab.figures.attention import HEAT, VIOLET, YELLOW
from lab.train.checkpoints import load_models
from lab.train.source import ROOT

RED, BLUE = (220, 30, 30), (30, 30, 220)


@pytest.fixture(scope='module')
def models(well_trained):
    return load_models(well_trained, list(read_histories(well_trained)), 'cpu')


@pytest.fixture(scope='module')
def phone_photo(tmp_path_factory):
    """12 megapixels, taken upright, stored lying; the upper half is red, the lower one blue."""
    photo = Image.new('RGB', (3024, 4032), BLUE)
    ImageDraw.Draw(photo).rectangle((0, 0, 3024, 2016), RED)
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path_factory.mktemp('photos') / 'phone.jpg'
    photo.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    return path


def test_a_phone_photo(models, phone_photo):
    picture, found = app.describe(phone_photo.read_bytes(), models, beam_size=2)
    assert picture.shape == (320, 240, 3)
    assert abs(picture[40, 120].astype(int) - RED).max() < 6 and abs(picture[280, 120].astype(int) - BLUE).max() < 6
    assert list(found) == ['NoAttention', 'Attention']  # the plain one first
    for name, model in models.items():
        alone = caption_image(model, phone_photo, 2)
        assert found[name]['caption'] == alone['caption'] and found[name]['score'] == alone['score']
    assert found['NoAttention']['alphas'] is None
    assert found['Attention']['alphas'].shape == (len(found['Attention']['caption']), 4, 4)


def test_the_maps_lie_over_the_picture():
    picture = np.full((320, 240, 3), 200, np.uint8)
    alphas = torch.tensor([[[0, 0], [1, 0]], [[0, .6], [.4, 0]]])
    column = app.SpokenCaption('mine', picture, dict(caption=['a', 'star'], alphas=alphas))
    column.say(2)
    assert re.findall('<figcaption>(.*?)<', text_of(column)) == ['a 100%', 'star 60%']
    first, second = (np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).astype(int)[..., 1]
                     for data in re.findall('base64,([^"]*)', text_of(column)))  # green: yellow has more than violet
    yellow, of_60, of_40, violet = ((200 + 255 * HEAT(VIOLET + weight * (YELLOW - VIOLET))[1]) / 2
                                    for weight in (1, 0.6, 0.4, 0))  # one scale for both
    assert first.shape == (320, 240) and [first[300, 20], first[20, 20]] == pytest.approx([yellow, violet], abs=5)
    assert second[20, 220] == pytest.approx(of_60, abs=5) and second[300, 20] == pytest.approx(of_40, abs=5)


@pytest.mark.parametrize(('content', 'hint'), [
    (b'no picture', 'PNG'), (b'', 'PNG'), (b'\0\0\0\x18ftypheic' + bytes(99), 'HEIC.*JPEG')])
def test_what_is_no_picture_is_refused(models, content, hint):
    with pytest.raises(ValueError, match=f'^IMG_1.jpg: .*{hint}'):
        app.describe(content, models, file='IMG_1.jpg')


# --- The form ---


def parts(box, kind):
    """All widgets of a kind in a box, from top to bottom."""
    return [found for child in getattr(box, 'children', ()) for found in [child, *parts(child, kind)]
            if isinstance(found, kind)]


def choose(form, name, content):
    upload, = parts(form, ipywidgets.FileUpload)
    upload.value = [dict(name=name, type='', size=len(content), content=memoryview(content),
                         last_modified=datetime.now())]


def text_of(form):
    return ' '.join(part.value for part in parts(form, ipywidgets.HTML))


@pytest.fixture
def form(models, phone_photo):
    """With a picture chosen."""
    form = app.form(models)
    choose(form, 'phone.jpg', phone_photo.read_bytes())
    return form


def test_the_caption_comes_word_by_word_with_its_maps(form, models, phone_photo):
    number, play = (parts(form, kind)[-1] for kind in (ipywidgets.IntSlider, ipywidgets.Play))
    _, found = app.describe(phone_photo.read_bytes(), models)
    plain, attention = parts(form, app.SpokenCaption)
    assert play.playing and number.max == play.max == max(len(one['caption']) for one in found.values())
    for shown in [*range(1, number.max + 1), 1]:
        number.value = shown
        for column, one in zip((plain, attention), found.values(), strict=True):
            assert f'>{" ".join(one["caption"][:shown])}<' in text_of(column)
        titles = re.findall('<figcaption>(.*?) ', text_of(attention))
        assert titles == found['Attention']['caption'][:shown] and '<figure' not in text_of(plain)


def test_model_and_beam_size_are_chosen(form, models, phone_photo):
    parts(form, ipywidgets.Checkbox)[1].value = False
    for beam_size in (3, 1):
        parts(form, ipywidgets.IntSlider)[0].value = beam_size
        column, = parts(form, app.SpokenCaption)
        assert 'plain LSTM' in text_of(column)
        assert column.words == caption_image(models['NoAttention'], phone_photo, beam_size)['caption']


def test_an_error_takes_the_place_of_an_earlier_picture(form, phone_photo, monkeypatch):
    """Of the file or of a decoder: raised in a form, nobody would see it."""
    photo = phone_photo.read_bytes()
    for function, content, message in ((app.caption_image, photo[:9999], '&lt;b&gt;.jpg: '),
                                       (lambda *_, **__: [][0], photo, 'IndexError')):
        monkeypatch.setattr(app, 'caption_image', function)
        choose(form, '<b>.jpg', content)
        assert re.search(message, text_of(form))
        assert not parts(form, app.SpokenCaption) and '<figure' not in text_of(form)


def test_a_file_as_ipywidgets_7_gives_it():
    upload = SimpleNamespace(value={'a.jpg': dict(metadata=dict(name='a.jpg'), content=b'pixels')})
    assert app.chosen_file(upload) == ('a.jpg', b'pixels')


# --- The page ---


def test_the_model_of_photos_stands_behind_ones_own(models):
    assert list(app.with_photos(models)) == [*models, 'photos_en', 'photos_zh']


def test_without_any_model_the_page_says_what_to_do(tmp_path, monkeypatch, capsys):
    def open_todo(self, *args, **kwargs):
        raise NotImplementedError('TODO 4 is still to do')

    monkeypatch.setattr('models.DecoderWithAttention.__init__', open_todo)
    monkeypatch.setattr('sys.argv', ['app', str(tmp_path)])
    with pytest.raises(SystemExit, match='train_rnn.ipynb'):
        app.main()
    assert 'TODO 4' in capsys.readouterr().out


@pytest.fixture
def page(well_trained):
    """The page in a real browser, as wide as a phone's, and without the internet."""
    playwright = pytest.importorskip('playwright.sync_api', reason='no Playwright here: pip install playwright')
    with socket.create_server(('localhost', 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, '-m', 'lab.app', str(well_trained), '--port', str(port), '--no-browser']
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            next(line for line in server.stdout if f':{port}' in line)
            with playwright.sync_playwright() as started, closing(started.chromium.launch(
                    executable_path=next(filter(None, map(shutil.which, BROWSERS))), args=['--no-sandbox'])) as browser:
                page = browser.new_page(viewport=dict(width=390, height=800))
                page.set_default_timeout(60_000)
                page.route(lambda url: not url.startswith(f'http://localhost:{port}'), lambda route: None)
                page.goto(f'http://localhost:{port}')
                yield page
        finally:
            server.terminate()
            server.stdout.read()


@needs('browser')
def test_the_page_in_a_browser(page, models, phone_photo, tmp_path):
    upload, maps = page.get_by_role('button', name='Choose a picture'), page.locator('figure:visible')

    def give(path):
        with page.expect_file_chooser() as chooser:
            upload.click()
        chooser.value.set_files(path)

    upload.wait_for()
    assert 'load_models' not in page.content()  # no code
    give(phone_photo)
    _, found = app.describe(phone_photo.read_bytes(), models)
    for one in found.values():
        page.get_by_text(' '.join(one['caption']), exact=True).first.wait_for()
    maps.nth(len(found['Attention']['caption'])).wait_for()  # the picture, and a map for each word
    assert page.evaluate('document.documentElement.scrollWidth') <= 390
    Image.new('RGB', (40, 30), RED).save(tmp_path / 'dropped.png')
    page.evaluate("""pixels => {
        const dropped = new DataTransfer()
        dropped.items.add(new File([Uint8Array.from(pixels)], 'dropped.png'))
        document.querySelector('.own-picture').dispatchEvent(
            new DragEvent('drop', {dataTransfer: dropped, bubbles: true, cancelable: true}))
    }""", list((tmp_path / 'dropped.png').read_bytes()))
    page.get_by_text('dropped.png', exact=True).wait_for()
    with (tmp_path / 'film.mp4').open('wb') as film:
        film.truncate(app.LARGEST_ON_PAGE + 1)
    give(tmp_path / 'film.mp4')
    page.get_by_text('film.mp4: it has more than 100 MB').wait_for()
    give(phone_photo)
    page.get_by_text('phone.jpg', exact=True).wait_for()
