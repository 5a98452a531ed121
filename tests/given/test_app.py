"""Pictures of one's own: the function behind the form, the form without a browser, and its page in a real one."""

import re
import socket
import subprocess
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import ipywidgets
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from programs import needs

from lab import app
from lab.data.images import ImageFileError
from lab.decode.evaluate import caption_image
from lab.figures import lit
from lab.train.checkpoints import load_models
from report.render import find_browser
from solver import train

ROOT = Path(__file__).resolve().parents[2]
RED, BLUE = (220, 30, 30), (30, 30, 220)
NO_PICTURES = {'notes.txt': b'no picture', 'empty.jpg': b'', 'film.mp4': b'\0\0\0\x18ftypmp42' + bytes(99)}


@pytest.fixture(scope='module')
def run_folder(tiny_data, tmp_path_factory):
    """Both decoders, trained for as long as it takes to end their captions."""
    folder = tmp_path_factory.mktemp('trained')
    for attention in (False, True):
        train(dict(**tiny_data, encoder='shapes_cnn', encoded_image_size=4, embed_dim=12, decoder_dim=16,
                   attention_dim=10, attention=attention, epochs=12, batch_size=20, decoder_lr=2e-2, device='cpu',
                   output_folder=str(folder)))
    return folder


@pytest.fixture(scope='module')
def models(run_folder):
    return load_models(run_folder, app.trained(run_folder), 'cpu')


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


def test_the_models_are_found_the_plain_one_first(models, tmp_path):
    assert list(models) == ['NoAttention', 'Attention']
    assert app.trained(tmp_path) == []


def test_a_phone_photo(models, phone_photo):
    picture, found = app.describe(phone_photo.read_bytes(), models, beam_size=2)
    assert picture.shape == (320, 240, 3)
    assert abs(picture[40, 120].astype(int) - RED).max() < 6 and abs(picture[280, 120].astype(int) - BLUE).max() < 6
    for name, model in models.items():
        alone = caption_image(model, phone_photo, 2)
        assert found[name]['caption'] == alone['caption'] and found[name]['score'] == alone['score']
    assert found['NoAttention']['alphas'] is None
    assert found['Attention']['alphas'].shape == (len(found['Attention']['caption']), 4, 4)


def test_the_maps_lie_over_the_picture():
    picture = np.full((320, 240, 3), 200, np.uint8)
    alphas = torch.tensor([[[0, 0], [1, 0]], [[0, .6], [.4, 0]]])
    (first, title), (second, _) = app.attention_maps(picture, dict(caption=['a', 'star'], alphas=alphas))
    assert title == 'a 100%' and first.shape == picture.shape
    assert (first[300, 20] == 200).all() and (first[20, 20] == 50).all() and (first[300, 220] == 50).all()
    assert (second[20, 220] == 200).all() and 100 < second[300, 20, 0] < 200
    assert app.attention_maps(picture, dict(caption=['a'], alphas=None)) == []


@pytest.mark.parametrize('name', NO_PICTURES)
def test_what_is_no_picture_is_refused_in_a_sentence(models, name):
    with pytest.raises(ImageFileError, match=f'^{name}: this image cannot be decoded: it is no picture.*PNG$'):
        app.describe(NO_PICTURES[name], models, file=name)


@pytest.mark.parametrize('brand', [b'heic', b'mif1'])
def test_heic_is_told_how_to_convert(models, brand):
    with pytest.raises(ImageFileError, match='^IMG_1.HEIC: .* it is a HEIC photo, .* export it as JPEG$'):
        app.describe(b'\0\0\0\x18ftyp' + brand + bytes(99), models, file='IMG_1.HEIC')


# --- The form ---


def parts(box, kind):
    """All widgets of a kind in a box, from top to bottom."""
    return [found for child in getattr(box, 'children', ()) for found in [child, *parts(child, kind)]
            if isinstance(found, kind)]


def choose(form, name, content):
    upload, = parts(form, ipywidgets.FileUpload)
    upload.value = [dict(name=name, type='', size=len(content), content=memoryview(content),
                         last_modified=datetime.now())]


def said(form):
    return ' '.join(part.value for part in parts(form, ipywidgets.HTML))


def test_the_caption_comes_word_by_word_with_its_maps(models, phone_photo):
    form = app.form(models)
    number, play = (parts(form, kind)[-1] for kind in (ipywidgets.IntSlider, ipywidgets.Play))
    choose(form, 'phone.jpg', phone_photo.read_bytes())
    _, found = app.describe(phone_photo.read_bytes(), models)
    plain, attention = parts(form, app.SpokenCaption)
    assert play.playing and number.max == play.max == max(len(one['caption']) for one in found.values())
    for shown in [*range(1, number.max + 1), 1]:
        number.value = shown
        for column, one in zip((plain, attention), found.values(), strict=True):
            assert f'>{" ".join(one["caption"][:shown])}<' in said(column)
        titles = re.findall('<figcaption>(.*?) ', said(attention))
        assert titles == found['Attention']['caption'][:shown]
        assert '<figure' not in said(plain)


def test_model_and_beam_size_are_chosen(models, phone_photo):
    form = app.form(models)
    choose(form, 'phone.jpg', phone_photo.read_bytes())
    parts(form, ipywidgets.Checkbox)[1].value = False
    for beam_size in (3, 1):
        parts(form, ipywidgets.IntSlider)[0].value = beam_size
        column, = parts(form, app.SpokenCaption)
        assert 'plain LSTM' in said(column)
        assert column.words == caption_image(models['NoAttention'], phone_photo, beam_size)['caption']


def test_a_broken_file_takes_the_place_of_an_earlier_picture(models, phone_photo):
    form = app.form(models)
    choose(form, 'phone.jpg', phone_photo.read_bytes())
    choose(form, '<b>.jpg', phone_photo.read_bytes()[:9999])
    assert '&lt;b&gt;.jpg: this image cannot be decoded, is it truncated?' in said(form)
    assert not parts(form, app.SpokenCaption) and '<figure' not in said(form)


def test_an_error_of_a_decoder_is_seen(models, phone_photo, monkeypatch):
    def mistaken(*_):
        raise RuntimeError('shapes <4> and <5>')

    def without_numbers(picture, _):
        return lit(picture, [[np.nan]])

    for name, function, message in (('caption_image', mistaken, 'RuntimeError: shapes &lt;4&gt; and &lt;5&gt;'),
                                    ('lit', without_numbers, 'ValueError: the attention weights hold NaN')):
        with monkeypatch.context() as patch:
            patch.setattr(app, name, function)
            form = app.form(models)
            choose(form, 'phone.jpg', phone_photo.read_bytes())
            assert message in said(form) and not parts(form, app.SpokenCaption)


def test_a_file_as_ipywidgets_7_gives_it():
    upload = SimpleNamespace(value={'a.jpg': dict(metadata=dict(name='a.jpg'), content=b'pixels')})
    assert app.chosen_file(upload) == ('a.jpg', b'pixels')


# --- The page ---


def test_without_a_trained_model_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr('sys.argv', ['app', str(tmp_path)])
    with pytest.raises(SystemExit, match='there is no trained model in .* yet: run train_rnn.ipynb'):
        app.main()


@pytest.fixture
def browser():
    playwright = pytest.importorskip('playwright.sync_api', reason='no Playwright here: pip install playwright')
    with playwright.sync_playwright() as started, closing(started.chromium.launch(
            executable_path=find_browser(), args=['--no-sandbox'])) as browser:
        yield browser


@pytest.fixture
def address(run_folder):
    """Of the page, once it is served."""
    with socket.create_server(('localhost', 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, '-m', 'lab.app', str(run_folder), '--port', str(port), '--no-browser'],
                          cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            next(line for line in server.stdout if f':{port}' in line)
            yield f'http://localhost:{port}'
        finally:
            server.terminate()
            server.stdout.read()


@needs('browser')
def test_the_page_in_a_browser(browser, address, models, phone_photo, tmp_path):
    (tmp_path / 'notes.jpg').write_text('no picture')
    page = browser.new_page(viewport=dict(width=390, height=800))  # a phone's
    page.set_default_timeout(60_000)
    far = []  # where there is no internet, or not all of it, nothing may be waited for
    page.route(lambda url: not url.startswith(address), lambda route: far.append(route.request.url))
    page.goto(address)
    upload = page.get_by_role('button', name='Choose a picture')

    def give(path):
        with page.expect_file_chooser() as chooser:
            upload.click()
        chooser.value.set_files(path)

    upload.wait_for()
    assert 'load_models' not in page.content()  # no code
    give(phone_photo)
    _, found = app.describe(phone_photo.read_bytes(), models)
    words, maps = found['Attention']['caption'], page.locator('figure:visible')
    page.wait_for_function('document.querySelectorAll("figure").length == 2')  # the picture, and the first word's
    assert page.get_by_text(words[0], exact=True).count() and not page.get_by_text(' '.join(words)).count()
    maps.nth(len(words)).wait_for()
    captions = [' '.join(one['caption']) for one in found.values()]
    assert [page.get_by_text(one, exact=True).count() for one in captions] == list(map(captions.count, captions))
    assert all(size > 50 for size in maps.locator('img').evaluate_all('all => all.map(one => one.clientHeight)'))
    assert page.evaluate('document.documentElement.scrollWidth') <= 390
    give(tmp_path / 'notes.jpg')
    page.get_by_text('notes.jpg: this image cannot be decoded: it is no picture').wait_for()
    assert maps.count() == 0
    Image.new('RGB', (40, 30), RED).save(tmp_path / 'dropped.png')
    page.evaluate("""pixels => {
        const dropped = new DataTransfer()
        dropped.items.add(new File([Uint8Array.from(pixels)], 'dropped.png'))
        document.querySelector('.own-picture').dispatchEvent(
            new DragEvent('drop', {dataTransfer: dropped, bubbles: true, cancelable: true}))
    }""", list((tmp_path / 'dropped.png').read_bytes()))
    page.get_by_text('dropped.png', exact=True).wait_for()
    maps.nth(1).wait_for()
    with (tmp_path / 'film.mp4').open('wb') as film:
        film.truncate(app.LARGEST_ON_PAGE + 1)
    give(tmp_path / 'film.mp4')
    page.get_by_text('film.mp4: it has more than 100 MB, which do not get through').wait_for()
    give(phone_photo)
    page.get_by_text('phone.jpg', exact=True).wait_for()
    assert [url for url in far if url.startswith('http')] == []
