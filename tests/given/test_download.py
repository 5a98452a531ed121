"""Fetching a data set, from a server on this machine that breaks off, sends wrong bytes, or knows no ranges."""

import hashlib
import io
import json
import re
import shlex
import shutil
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

import create_input_files
from lab.data import download
from lab.data.download import Source

NAMES = [f'{split}/COCO_{split}_{number:012d}.jpg' for split in ('train2014', 'val2014') for number in range(12)]
ALL = {'dataset_coco.json', *(f'images/{name}' for name in NAMES)}
TRAIN, VAL = '/zips/train2014.zip', '/zips/val2014.zip'


def error_of(arguments):
    """What a run says when it fails."""
    try:
        download.main(arguments)
    except SystemExit as stop:
        return stop.code


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        server, start = self.server, 0
        server.asked.append((self.path, self.headers['Range']))
        if self.path not in server.files:
            self.send_error(404)
            return
        content = server.files[self.path]
        if self.headers['Range'] and server.ranges:
            start = int(self.headers['Range'].removeprefix('bytes=').rstrip('-'))
        self.send_response(206 if start else 200)
        if not content.startswith(b'<html>'):
            self.send_header('Content-Length', str(len(content) - start))
        self.end_headers()
        stop = server.breaks.pop(0) if server.breaks else None
        self.wfile.write(content[start:] if stop is None else content[start:start + stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(('127.0.0.1', 0), Answer) as server:
        server.files, server.ranges = {}, True  # path -> bytes; whether it can begin in the middle of a file
        server.breaks = []  # after how many bytes the next answers break off; None: not
        server.asked = []  # (path, Range) of each request
        server.address = f'http://127.0.0.1:{server.server_port}'
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def zip_of(files):
    """:param files: name -> bytes; :return: the bytes of a zip, not compressed"""
    with zipfile.ZipFile(buffer := io.BytesIO(), 'w') as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return buffer.getvalue()


def offer(server, path, content, **wanted):
    """:return: the source of this file, which the server has from now on"""
    server.files[path] = content
    checksum = f'sha256:{hashlib.sha256(content).hexdigest()}'
    return Source(Path(path).name, len(content), checksum, server.address + path, **wanted)


@pytest.fixture
def coco(server, tmp_path, monkeypatch):
    """A small COCO on the server; what runs take as arguments."""
    images = [dict(filepath='', filename=name, split=['train', 'train', 'train', 'restval', 'val', 'test'][number % 6],
                   sentences=[dict(tokens=['a', 'cat', f'n{number}'])] * 5) for number, name in enumerate(NAMES)]
    Image.new('RGB', (40, 30)).save(picture := io.BytesIO(), 'JPEG')
    train, val = (dict.fromkeys(names, picture.getvalue()) for names in (NAMES[:12], NAMES[12:]))
    sources = [offer(server, path, zip_of(files), **wanted) for path, wanted, files in (
            ('/caption_datasets.zip', dict(files=('dataset_coco.json',)),
             {'dataset_coco.json': json.dumps(dict(images=images)), 'other.json': '{}'}),
            (TRAIN, dict(filepath='train2014'), {**train, 'train2014/not_in_the_split.jpg': b'x', '_/._a.jpg': b'x'}),
            (VAL, dict(filepath='val2014'), val))]
    monkeypatch.setitem(download.SOURCES, 'coco', sources)
    monkeypatch.setattr(download, 'CHUNK', 100)
    return ['coco', '--folder', str(tmp_path)]


def files_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}


def test_the_command_that_it_prints_takes_what_it_fetched(coco, tmp_path, capsys, monkeypatch):
    assert error_of(['coco', '--folder', str(tmp_path / 'my data')]) is None
    assert files_in(tmp_path / 'my data/coco') == ALL
    command = capsys.readouterr().out.strip().splitlines()[-1]
    monkeypatch.chdir(tmp_path)
    create_input_files.main([*shlex.split(command)[2:], '--min-word-freq', '1'])
    printed = capsys.readouterr().out
    assert '16 images' in printed and '4 images' in printed and 'left out: 0' in printed


def test_flickr8k_with_the_chinese_captions(server, tmp_path, capsys, monkeypatch):
    """Its captions are lines of a text; a second run fetches nothing."""
    pytest.importorskip('rjieba')
    names = [f'{number}.jpg' for number in range(6)]
    images = [dict(filename=name, split=split, sentences=[dict(tokens=['a', 'dog'])])
              for name, split in zip(names, ['train'] * 4 + ['val', 'test'], strict=True)]
    Image.new('RGB', (40, 30)).save(picture := io.BytesIO(), 'JPEG')
    lines = ''.join(f'{name}#zhc#{k} 一只狗在草地上。\n' for k in range(2) for name in [*names, 'not_in_the_split.jpg'])
    captions = zip_of({'dataset_flickr8k.json': json.dumps(dict(images=images))})
    sources = [offer(server, '/caption_datasets.zip', captions, files=('dataset_flickr8k.json',)),
               offer(server, '/pictures.zip', zip_of(dict.fromkeys(names, picture.getvalue()))),
               offer(server, '/flickr8kzhc.caption.txt', lines.encode(), files=('flickr8kzhc.caption.txt',))]
    monkeypatch.setitem(download.SOURCES, 'flickr8k-cn', sources)
    for _ in range(2):
        assert error_of(['flickr8k-cn', '--folder', str(tmp_path)]) is None
    assert len(server.asked) == 3
    command = capsys.readouterr().out.strip().splitlines()[-1]
    monkeypatch.chdir(tmp_path)
    create_input_files.main([*shlex.split(command)[2:], '--min-word-freq', '1'])
    words = json.loads(next(tmp_path.glob('data/flickr8k-cn/WORDMAP*')).read_text())
    assert {'dog', '狗', '<start:en>', '<start:zh>'} <= words.keys() and '。' not in words


def test_what_is_there_is_not_fetched_again(coco, tmp_path, server, capsys):
    assert error_of(coco) is None
    server.asked.clear()
    (tmp_path / 'coco/images' / NAMES[-1]).unlink()
    assert error_of(coco) is None and '11 of 12' in capsys.readouterr().out
    assert server.asked == [(VAL, None)] and files_in(tmp_path / 'coco') == ALL


@pytest.mark.parametrize('ranges', [True, False])
def test_a_file_that_breaks_off(coco, tmp_path, server, ranges):
    server.ranges, server.breaks = ranges, [None, 500, 1000]
    assert error_of(coco) is None and files_in(tmp_path / 'coco') == ALL
    # a server without ranges sends all anew; the 1,000 bytes of its second answer take the place of the 500
    begun = ['bytes=500-', 'bytes=1500-' if ranges else 'bytes=1000-']
    assert server.asked[1:4] == [(TRAIN, begin) for begin in (None, *begun)]


def test_it_gives_up_when_nothing_comes_and_another_run_goes_on(coco, tmp_path, server):
    server.breaks = [None, 1000, 0]
    assert 'train2014.zip' in error_of(coco) and server.breaks == []
    assert files_in(tmp_path / 'coco') == {'dataset_coco.json', 'train2014.zip.part'}
    server.asked.clear()
    assert error_of(coco) is None and files_in(tmp_path / 'coco') == ALL
    assert server.asked[0] == (TRAIN, 'bytes=1000-')


@pytest.mark.parametrize(('change', 'message'), [
    (lambda right: right[:2000] + b'?' + right[2001:], 'train2014.zip.*sha256'),
    (lambda right: b'<html>Please log in.</html>', 'train2014.zip is not the file'),
    (lambda right: b'a file of another size', 'train2014.zip is not the file')])
def test_wrong_bytes(coco, tmp_path, server, change, message):
    right = server.files[TRAIN]
    server.files[TRAIN] = change(right)
    assert re.search(message, error_of(coco)) and files_in(tmp_path / 'coco') == {'dataset_coco.json'}
    server.files[TRAIN] = right
    assert error_of(coco) is None and files_in(tmp_path / 'coco') == ALL


def test_a_file_that_is_gone_can_be_brought_by_hand(coco, tmp_path, server):
    content, wanted = server.files.pop(TRAIN), tmp_path / 'coco/train2014.zip'
    assert str(wanted) in (error := error_of(coco)) and '404' in error
    wanted.write_bytes(content)
    assert error_of(coco) is None and files_in(tmp_path / 'coco') == ALL


def test_stopped_while_it_unpacks(coco, tmp_path, server, monkeypatch):
    def stop_at_the_fifth(packed, file):
        if packed.name == NAMES[4]:
            file.write(packed.read(20))
            raise KeyboardInterrupt
        copy(packed, file)

    copy = shutil.copyfileobj
    with monkeypatch.context() as patch:
        patch.setattr(shutil, 'copyfileobj', stop_at_the_fifth)
        assert error_of(coco)
    there = {'dataset_coco.json', 'train2014.zip', *(f'images/{name}' for name in NAMES[:4])}
    assert files_in(tmp_path / 'coco') == there
    times = {name: (tmp_path / 'coco' / name).stat().st_mtime_ns for name in there if name in ALL}
    assert error_of(coco) is None and files_in(tmp_path / 'coco') == ALL
    assert times == {name: (tmp_path / 'coco' / name).stat().st_mtime_ns for name in times}
    assert [path for path, _ in server.asked].count(TRAIN) == 1


def test_pictures_behind_a_form(coco, tmp_path, monkeypatch):
    split, *_ = download.SOURCES['coco']
    monkeypatch.setitem(download.SOURCES, 'coco', (split, Source('photos.zip', by_hand='ask their owner')))
    wanted = tmp_path / 'coco/photos.zip'
    assert 'ask their owner' in (error := error_of(coco)) and str(wanted) in error
    photos = {f'any/folder/{name}': b'x' for name in NAMES}
    wanted.write_bytes(zip_of({name: content for name, content in photos.items() if not name.endswith(NAMES[5])}))
    assert '1 of 24' in (error := error_of(coco)) and Path(NAMES[5]).name in error
    wanted.write_bytes(zip_of(photos))
    assert error_of(coco) is None and wanted.exists()
