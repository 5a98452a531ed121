"""Fetch a data set with Karpathy's split: ``python -m lab.data.download flickr8k``.

``flickr8k-cn`` is Flickr8k with the captions in English and, by native speakers, in Chinese.

It comes as ``create_input_files.py`` takes it, here for COCO (the others have no ``train2014``)::

    data/raw/coco/dataset_coco.json              captions and split (Karpathy and Li 2015, arXiv 1412.2306)
    data/raw/coco/images/train2014/*.jpg         the pictures that the JSON names

Each file is complete or not there. A download that was stopped resumes where it was. An archive is deleted when all
that is wanted of it is unpacked.
"""

import argparse
import hashlib
import os
import posixpath
import shutil
import sys
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import requests
from tqdm import tqdm

from utils import atomic_path, read_json, write_json


class Source(NamedTuple):
    """An archive, and what is wanted of it.

    :ivar archive: its name; of a plain file its own, and ``files`` names it, too
    :ivar size: of the archive, in bytes
    :ivar checksum: of the archive, 'algorithm:digest'
    :ivar url: None: no program can fetch it, ``by_hand`` says where it is
    :ivar files: paths in the set's folder; empty: the pictures of the JSON whose paths begin with ``filepath``
    """

    archive: str
    size: int = 0
    checksum: str = ''
    url: str | None = None
    files: tuple = ()
    filepath: str = ''
    by_hand: str = ''


def karpathy(name):
    """The split of one data set. Its archive holds those of all three."""
    return Source('caption_datasets.zip', 36_745_453,
                  'sha256:4cfd70132527b80933105e5829dc9034eaab9573482e2e680abbab6130244817',
                  'https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip',
                  (f'dataset_{name}.json',))


CHINESE = 'flickr8kzhc.caption.txt'  # the sentences of Flickr8K-CN by native speakers
# COCO's sizes and checksums are those of TensorFlow Datasets (url_checksums/coco.txt), Flickr8k's MD5 that of R's
# torchvision (dataset-flickr.R). What a person puts there is checked by the CRC that a zip has of each file.
SOURCES = {
    'coco': (
        karpathy('coco'),
        Source('train2014.zip', 13_510_573_713,
               'sha256:ede4087e640bddba550e090eae701092534b554b42b05ac33f0300b984b31775',
               'http://images.cocodataset.org/zips/train2014.zip', filepath='train2014'),
        Source('val2014.zip', 6_645_013_297,
               'sha256:fe9be816052049c34717e077d9e34aa60814a55679f804cd043e3cbee3b9fde0',
               'http://images.cocodataset.org/zips/val2014.zip', filepath='val2014')),
    'flickr8k': (
        karpathy('flickr8k'),
        Source('Flickr8k_Dataset.zip', 1_115_419_746, 'md5:f18a1e2920de5bd84dae7cf08ec78978',
               'https://github.com/jbrownlee/Datasets/releases/download/Flickr8k/Flickr8k_Dataset.zip')),
    'flickr30k': (
        karpathy('flickr30k'),
        Source('flickr30k-images.zip',
               by_hand='ask for them at https://shannon.cs.illinois.edu/DenotationGraph (a form), or take them from '
                       'https://www.kaggle.com/datasets/hsankesara/flickr-image-dataset (a login)')),
}
SOURCES['flickr8k-cn'] = *SOURCES['flickr8k'], Source(
    CHINESE, 2_420_330, 'sha256:298918f03fb332911df3cda128a7a56f1f47c0513531c4f22eeecbea7d780bbb',
    f'https://raw.githubusercontent.com/li-xirong/flickr8kcn/a19b9aa4a7ad2a42741460d9f47385637ae270cd/data/{CHINESE}',
    (CHINESE,))
TIMEOUT = 30  # seconds without a byte
CHUNK = 2 ** 14  # bytes; where a connection breaks off, the last, incomplete chunk is lost


def wanted(source, json_path):
    """What is to be taken out of a source's archive: list of paths in the set's folder.

    :param json_path: the data set's Karpathy JSON
    """
    if source.files:
        return source.files
    entries = read_json(json_path, 'delete it and run this again')['images']
    paths = [posixpath.join(entry.get('filepath') or '', entry['filename']) for entry in entries]
    return [f'images/{path}' for path in paths if path.startswith(source.filepath)]


def bytes_of(path):
    return path.stat().st_size if path.exists() else 0


def receive(url, part, size):
    """Fetch what is missing of a file, in one request. The rest of a file that breaks off comes with the next call.

    :raises requests.RequestException: no answer, a refusal, or the connection broke
    :raises ValueError: this is another file
    """
    start = bytes_of(part)
    headers = {'Accept-Encoding': 'identity', **({'Range': f'bytes={start}-'} if start else {})}
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        response.raise_for_status()
        if response.status_code != 206:  # the server cannot begin in the middle
            start = 0
        if start + int(response.headers.get('Content-Length', 0)) != size:
            raise ValueError(f'{url} is not the file of {size:,} bytes: something else is there now, or a page that '
                             'asks for a login')
        with open(part, 'ab' if start else 'wb') as file, tqdm(desc=part.stem, total=size, initial=start, unit='B',
                                                              unit_scale=True, unit_divisor=1000) as bar:
            for chunk in response.iter_content(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
    if bytes_of(part) < size:
        raise requests.ConnectionError('it ends too early')


def fetch(source, archive, part):
    """Fetch an archive. It gets its name when it is complete and its checksum is right.

    :param part: the file that holds what has come so far
    :raises ValueError: it cannot be had
    """
    while (before := bytes_of(part)) < source.size:
        try:
            receive(source.url, part, source.size)
        except requests.RequestException as error:
            if bytes_of(part) <= before:
                raise ValueError(f'{source.url} cannot be fetched ({error}): run this again where there is internet '
                                 '(on a cluster: the login node), or fetch it in another way and put it as '
                                 f'{archive}') from error
            print(f'{archive.name} broke off, going on')
    algorithm, _, digest = source.checksum.partition(':')
    print(f'checking {archive.name}')
    with open(part, 'rb') as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != digest:
        part.unlink()
        raise ValueError(f'{source.url} arrived damaged (its {algorithm} is {found}, not {digest}) and is deleted: '
                         'run this again')
    part.rename(archive)


def unpack(archive, missing, folder):
    """Take files out of a zip, each by its name, in whatever folder of the zip it lies.

    :param missing: the paths that they get in ``folder``
    :raises ValueError: the zip is damaged or lacks one
    """
    path_of = {posixpath.basename(path): path for path in missing}
    try:
        with zipfile.ZipFile(archive) as zipped:
            members = {name: member for member in zipped.infolist()
                       if (name := posixpath.basename(member.filename)) in path_of}
            for name, member in tqdm(members.items(), desc=f'unpacking {archive.name}', unit='file'):
                with (zipped.open(member) as packed, atomic_path(folder / path_of[name]) as temporary,
                      open(temporary, 'wb') as file):
                    shutil.copyfileobj(packed, file)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f'{archive} is damaged ({error}): delete it and run this again') from error
    if lacking := path_of.keys() - members.keys():
        raise ValueError(f'{archive} lacks {len(lacking):,} of {len(path_of):,} files, such as {min(lacking)}: '
                         'delete it, it is another archive, and run this again')


def download(name, folder):
    """Fetch and unpack all that is missing of a data set.

    :param name: one of ``SOURCES``
    :param folder: of this set, such as data/raw/coco
    :raises ValueError: a source cannot be had or is damaged
    """
    json_path = folder / f'dataset_{folder.name}.json'
    for source in SOURCES[name]:
        paths = wanted(source, json_path)
        missing = [path for path in paths if not os.path.isfile(folder / path)]
        print(f'{folder}: {len(paths) - len(missing):,} of {len(paths):,} files of {source.archive} are there')
        if not missing:
            continue
        archive = folder / source.archive
        part = archive.with_name(archive.name + '.part')
        if not archive.exists() and source.url is None:
            raise ValueError(f'a program cannot fetch these pictures: {source.by_hand}. Then put the zip as '
                             f'{archive}, or all .jpg files into {folder / "images"} (if it is no zip), and run '
                             'this again')
        if not archive.exists():
            fetch(source, archive, part)
        if source.files == (source.archive,):  # a plain file
            continue
        unpack(archive, missing, folder)
        if source.url:  # what a person brought stays
            archive.unlink()
    if name == 'flickr8k-cn':
        write_chinese(folder)


def write_chinese(folder):
    """Write ``dataset_flickr8k_zh.json``: Karpathy's JSON with the Chinese sentences of Flickr8K-CN as ``raw`` (Li et
    al. 2016, doi 10.1145/2911996.2912049)."""
    of_picture = {}
    for line in (folder / CHINESE).read_text(encoding='utf-8').splitlines():  # 'name.jpg#zhc#0 sentence'
        place, _, sentence = line.partition(' ')
        of_picture.setdefault(place.partition('#')[0], []).append(dict(raw=sentence.strip()))
    images = [dict(filename=image['filename'], split=image['split'], sentences=of_picture[image['filename']])
              for image in read_json(folder / 'dataset_flickr8k.json', 'delete it and run this again')['images']]
    write_json(folder / 'dataset_flickr8k_zh.json', dict(images=images), indent=None)


def main(arguments=None):
    """Command line. :return: exit code, 0, or 1 if something is missing"""
    parser = argparse.ArgumentParser(prog='python -m lab.data.download', description=__doc__.splitlines()[0])
    parser.add_argument('name', choices=SOURCES)
    parser.add_argument('--folder', default='data/raw', help='the set gets a folder in it; default: %(default)s')
    options = parser.parse_args(arguments)
    name = options.name.partition('-')[0]  # flickr8k-cn has the pictures of flickr8k
    folder = Path(options.folder).expanduser() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        download(options.name, folder)
    except (OSError, ValueError) as error:
        sys.exit(f'error: {error}')
    except KeyboardInterrupt:
        sys.exit('stopped; the same command goes on from here')
    jsons = f'"{folder / f"dataset_{name}.json"}"'
    if options.name == 'flickr8k-cn':
        jsons = f'en={jsons} zh="{folder / "dataset_flickr8k_zh.json"}" --tokenizer zh=rjieba'
    print(f'\nNext:\n  python create_input_files.py --dataset {name} --karpathy-json-path {jsons} '
          f'--image-folder "{folder / "images"}" --output-folder data/{options.name}')


if __name__ == '__main__':
    main()
