"""Fetching a data set, from a server on this machine that breaks off, sends wrong bytes, or knows no ranges."""

import hashlib
import io
import json
import shlex
import shutil
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image

import create_input_files
from lab.data import download
from lab.data.download import Source, main

NAMES = [f'COCO_{split}_{number:012d}.jpg' for split in ('train2014', 'val2014') for number in range(12)]
BOXES = ('annotations/instances_train2014.json', 'annotations/instances_val2014.json')


class Server(ThreadingHTTPServer):
    """Serves ``files``, path -> bytes.

    :ivar ranges: it can begin in the middle of a file
    :ivar breaks: after how many bytes its next answers break off; None: not
    :ivar asked: (path, Range) of each request
    """

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Answer)
        self.files, self.ranges, self.breaks, self.asked = {}, True, [], []
        self.address = f'http://127.0.0.1:{self.server_port}'


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append((self.path, self.headers['Range']))
        if self.path not in self.server.files:
            self.send_error(404)
            return
        content, start = self.server.files[self.path], 0
        if self.headers['Range'] and self.server.ranges:
            start = int(self.headers['Range'].removeprefix('bytes=').rstrip('-'))
        self.send_response(206 if start else 200)
        if content.startswith(b'<html>'):
            self.send_header('Content-Type', 'text/html; charset=utf-8')
        else:
            self.send_header('Content-Length', str(len(content) - start))
        self.end_headers()
        stop = self.server.breaks.pop(0) if self.server.breaks else None
        self.wfile.write(content[start:] if stop is None else content[start:start + stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def zip_of(files):
    """:param files: name -> bytes; :return: the bytes of a zip, not compressed"""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w') as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return buffer.getvalue()


def picture(number):
    buffer = io.BytesIO()
    Image.new('RGB', (40 + number, 30), (10 * number, 90, 30)).save(buffer, 'JPEG')
    return buffer.getvalue()


@pytest.fixture
def coco(server, tmp_path, monkeypatch):
    """A small COCO on the server; what runs take as arguments."""
    splits = ['train', 'train', 'train', 'restval', 'val', 'test']
    images = [dict(filepath=name[5:-17], filename=name, split=splits[number % 6],
                   sentences=[dict(tokens=['a', 'cat', f'n{number}'])] * 5) for number, name in enumerate(NAMES)]
    pixels = {f'{name[5:-17]}/{name}': picture(number) for number, name in enumerate(NAMES)}
    archives = {
        '/split/caption_datasets.zip': ('', {'dataset_coco.json': json.dumps(dict(images=images)), 'other.json': '{}'}),
        '/zips/train2014.zip': ('train2014', {**{k: v for k, v in pixels.items() if 'train' in k},
                                              'train2014/not_in_the_split.jpg': b'x', '__MACOSX/._a.jpg': b'x'}),
        '/zips/val2014.zip': ('val2014', {k: v for k, v in pixels.items() if 'val' in k}),
        '/boxes.zip': ('', {**dict.fromkeys(BOXES, '{}'), 'annotations/captions_train2014.json': '{}'})}
    server.files = {path: zip_of(files) for path, (_, files) in archives.items()}
    files_of = {'/split/caption_datasets.zip': ('dataset_coco.json',), '/boxes.zip': BOXES}
    monkeypatch.setitem(download.SOURCES, 'coco', tuple(
        Source(path.rpartition('/')[2], 1000, len(server.files[path]),
               f'sha256:{hashlib.sha256(server.files[path]).hexdigest()}', server.address + path,
               files_of.get(path, ()), filepath) for path, (filepath, _) in archives.items()))
    monkeypatch.setattr(download, 'PAUSE', 0)
    monkeypatch.setattr(download, 'CHUNK', 100)
    download.pictures.cache_clear()
    return ['coco', '--folder', str(tmp_path)]


def files_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}


ALL = {'dataset_coco.json', *BOXES, *(f'images/{name[5:-17]}/{name}' for name in NAMES)}


def test_the_command_that_it_prints_takes_what_it_fetched(coco, tmp_path, capsys, monkeypatch):
    assert main(['coco', '--folder', str(tmp_path / 'my data')]) == 0
    assert files_in(tmp_path / 'my data/coco') == ALL
    *_, command = capsys.readouterr().out.strip().splitlines()
    monkeypatch.chdir(tmp_path)
    assert create_input_files.main([*shlex.split(command)[2:], '--min-word-freq', '1']) == 0
    printed = capsys.readouterr().out
    assert 'TRAIN      16 images' in printed and 'TEST        4 images' in printed and 'left out: 0' in printed


def test_what_is_there_is_not_fetched_again(coco, tmp_path, server, capsys):
    main(coco)
    server.asked.clear()
    (tmp_path / 'coco/images/val2014' / NAMES[-1]).unlink()
    assert main([*coco, '--check']) == 1 and server.asked == []
    printed = capsys.readouterr().out
    assert 'images/val2014: 11 of 12 there; missing: images/val2014/' + NAMES[-1] in printed
    assert main(coco) == 0 and main([*coco, '--check']) == 0
    assert server.asked == [('/zips/val2014.zip', None)] and files_in(tmp_path / 'coco') == ALL


@pytest.mark.parametrize('ranges', [True, False])
def test_a_file_that_breaks_off(coco, tmp_path, server, ranges, capsys):
    server.ranges, server.breaks = ranges, [None, 1000, 500]
    assert main(coco) == 0
    assert files_in(tmp_path / 'coco') == ALL
    # a server without ranges sends all anew; the 500 bytes of its second answer take the place of the 1,000
    begun = ['bytes=1000-', 'bytes=1500-' if ranges else 'bytes=500-']
    assert server.asked[1:4] == [('/zips/train2014.zip', begin) for begin in (None, *begun)]


def test_of_two_runs_at_once_one_fetches(coco, tmp_path, server):
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(main, [coco, coco])) == [0, 0]
    assert files_in(tmp_path / 'coco') == ALL and len(server.asked) == 4


def test_another_run_goes_on(coco, tmp_path, server, monkeypatch, capsys):
    monkeypatch.setattr(download, 'ATTEMPTS', 1)
    server.breaks = [None, 1000, 0]
    assert main(coco) == 1
    assert 'train2014.zip cannot be fetched' in capsys.readouterr().err
    assert files_in(tmp_path / 'coco') == {'dataset_coco.json', 'train2014.zip.part'}
    server.asked.clear()
    assert main(coco) == 0
    assert server.asked[0] == ('/zips/train2014.zip', 'bytes=1000-') and files_in(tmp_path / 'coco') == ALL


def test_it_gives_up_in_the_end(coco, server, capsys):
    server.breaks = [0] * 100
    assert main(coco) == 1
    assert len(server.asked) == download.ATTEMPTS
    assert 'on a cluster: the login node' in capsys.readouterr().err


def test_damage_on_the_way(coco, tmp_path, server, capsys):
    right = server.files['/zips/val2014.zip']
    server.files['/zips/val2014.zip'] = right[:2000] + b'?' + right[2001:]
    assert main(coco) == 1
    assert 'came damaged (its sha256 is' in capsys.readouterr().err
    assert not [name for name in files_in(tmp_path / 'coco') if 'val2014' in name]
    server.files['/zips/val2014.zip'] = right
    assert main(coco) == 0 and files_in(tmp_path / 'coco') == ALL


@pytest.mark.parametrize('content', [b'<html>Please log in.</html>', b'a file of another size'])
def test_something_else_in_place_of_the_file(coco, tmp_path, server, capsys, content):
    server.files['/zips/train2014.zip'] = content
    assert main(coco) == 1
    assert '/zips/train2014.zip is not the file of' in capsys.readouterr().err
    assert files_in(tmp_path / 'coco') == {'dataset_coco.json'}


def test_a_file_that_is_gone_can_be_brought_by_hand(coco, tmp_path, server, capsys):
    content = server.files.pop('/zips/train2014.zip')
    assert main(coco) == 1
    wanted = tmp_path / 'coco/train2014.zip'
    assert f'answers 404 Not Found; fetch it in another way, put it as {wanted}' in capsys.readouterr().err
    wanted.write_bytes(content[:900] + b'??' + content[902:])  # not what a checksum sees: it has the right name
    assert main(coco) == 1
    assert f'{wanted} is damaged (Bad CRC-32' in capsys.readouterr().err
    assert not [name for name in files_in(tmp_path / 'coco') if name.endswith('.part')]
    wanted.write_bytes(content)
    assert main(coco) == 0 and files_in(tmp_path / 'coco') == ALL


def test_a_mirror_comes_first(coco, tmp_path, server, capsys):
    server.files['/mirror/zips/val2014.zip'] = server.files.pop('/zips/val2014.zip')
    assert main([*coco, '--mirror', f'{server.address}/mirror/']) == 0
    assert [path for path, _ in server.asked] == [
        '/mirror/split/caption_datasets.zip', '/split/caption_datasets.zip', '/mirror/zips/train2014.zip',
        '/zips/train2014.zip', '/mirror/zips/val2014.zip', '/mirror/boxes.zip', '/boxes.zip']


def test_a_mirror_that_is_down_is_left_for_the_usual_source(coco, server, capsys):
    assert main([*coco, '--mirror', 'http://localhost:1']) == 0
    assert capsys.readouterr().out.count('http://localhost:1/') == 4  # once for each archive
    assert [path for path, _ in server.asked] == [
        '/split/caption_datasets.zip', '/zips/train2014.zip', '/zips/val2014.zip', '/boxes.zip']


def test_stopped_while_it_unpacks(coco, tmp_path, server, monkeypatch, capsys):
    copied, copy = [], shutil.copyfileobj

    def stop_at_the_fifth(packed, file):
        copied.append(packed.name)
        file.write(packed.read(20))
        if len(copied) == 5:
            raise KeyboardInterrupt
        copy(packed, file)

    monkeypatch.setattr(shutil, 'copyfileobj', stop_at_the_fifth)
    assert main(coco) == 1
    assert 'the same command goes on from here' in capsys.readouterr().err
    there = files_in(tmp_path / 'coco')
    assert there == {'dataset_coco.json', 'train2014.zip', *(f'images/{name}' for name in copied[1:4])}
    assert main(coco) == 0
    assert len(copied) == 1 + len(ALL)  # the fifth twice
    assert [path for path, _ in server.asked].count('/zips/train2014.zip') == 1


def test_pictures_behind_a_form(server, coco, tmp_path, monkeypatch, capsys):
    split, train, val, _ = download.SOURCES['coco']
    monkeypatch.setitem(download.SOURCES, 'coco', (split, Source('photos.zip', 4000, by_hand='ask their owner')))
    images = tmp_path / 'coco/images'
    assert download.needed_space('coco', tmp_path / 'coco') == (split.size, max(split.size + 1000, 5000))
    assert main(coco) == 1
    error = capsys.readouterr().err
    assert f'ask their owner. Then put the zip as {tmp_path}/coco/photos.zip, or all .jpg files into {images}' in error
    photos = {f'any/folder/{name}': picture(number) for number, name in enumerate(NAMES)}
    (tmp_path / 'coco/photos.zip').write_bytes(zip_of(dict(list(photos.items())[1:])))
    assert main(coco) == 1
    assert f'lacks 1 of 24 files, such as {NAMES[0]}' in capsys.readouterr().err
    (tmp_path / 'coco/photos.zip').write_bytes(zip_of(photos))
    assert main(coco) == 0 and (tmp_path / 'coco/photos.zip').exists()


def test_too_little_disk_space(coco, tmp_path, server, monkeypatch, capsys):
    size, folder = {source.archive: source.size for source in download.SOURCES['coco']}, tmp_path / 'coco'
    needed = 3000 + size['val2014.zip']  # 1,000 for each that is unpacked, this one too
    assert download.needed_space('coco', folder) == (sum(size.values()), needed)
    usage = shutil.disk_usage(tmp_path)._replace(free=needed - 1)
    monkeypatch.setattr(shutil, 'disk_usage', lambda _: usage)
    assert main(coco) == 1
    assert 'too little disk space' in capsys.readouterr().err and server.asked == []
    (folder / 'val2014.zip.part').write_bytes(server.files['/zips/val2014.zip'][:100])
    assert download.needed_space('coco', folder) == (sum(size.values()) - 100, needed - 100)
    assert main(coco) == 0 and download.needed_space('coco', folder) == (0, 0)


def test_every_source_has_a_whole_checksum():
    digits = {'sha256': 64, 'md5': 32}
    for source in (source for sources in download.SOURCES.values() for source in sources):
        algorithm, _, digest = source.checksum.partition(':')
        assert bool(source.url) == bool(digest) == bool(source.size) == (not source.by_hand)
        assert not source.url or len(bytes.fromhex(digest)) * 2 == digits[algorithm]
