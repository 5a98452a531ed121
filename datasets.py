"""The files of ``create_input_files.py`` as a PyTorch ``Dataset``."""

import functools
import hashlib
import json
import re
from pathlib import Path

import torch
from torch.utils.data import Dataset

from lab.data import row_file
from lab.data.vocabulary import SPECIAL_TOKENS, encode_caption, load_word_map
from utils import read_json


class CaptionDataset(Dataset):
    """One item per caption; the ``captions_per_image`` captions of an image follow one another.

    Items are ``(image, caption, caption length)`` for training, and ``(image, caption, caption length,
    all captions of the image)`` for validation and test:

    * image: (3, 256, 256) uint8, or with ``features`` the encoder's grid (h, w, encoder_dim) float16. Pixels
      stay uint8 until they are on the device; ``models.Encoder`` normalises them there.
    * caption: (max_len + 2,) long; caption length: (1,) long, <start> and <end> counted;
      all captions: (captions_per_image, max_len + 2) long

    Images are read from the file's bytes (``row_file.py``).

    :param data_folder: folder with the files of ``create_input_files``
    :param data_name: base name of the files, such as ``shapes_5_cap_per_img_1_min_word_freq``
    :param split: 'TRAIN', 'VAL' or 'TEST'
    :param transform: applied to the uint8 image, if given
    :param features: HDF5 file of ``features.encode_images`` to read instead of the images
    :param mirrored: features of the mirrored images, for ``flip``
    :raises ValueError: another split, files that are cut, that another program wrote, or that do not belong together
    :raises FileNotFoundError: files that are not there
    """

    def __init__(self, data_folder, data_name, split, transform=None, features=None, mirrored=None):
        if split not in ('TRAIN', 'VAL', 'TEST'):
            raise ValueError(f"split is {split!r}; it must be 'TRAIN', 'VAL' or 'TEST'")
        folder = Path(data_folder).expanduser()
        self.split, self.transform = split, transform
        self.images_path = self.path_of_images(folder, data_name, split)
        paths = [self.images_path] + [folder / f'{split}_{kind}_{data_name}.json' for kind in ('CAPTIONS', 'CAPLENS')]
        for path in paths:
            if not path.exists():
                raise FileNotFoundError(f'{path} is not there: run create_input_files first, or correct '
                                        'data_folder and data_name')
        captions, caplens = (read_json(path, 'delete it and run create_input_files again') for path in paths[1:])
        with row_file.open_hdf5(self.images_path) as file:
            if 'fingerprint' not in file.attrs:
                raise ValueError(f'{self.images_path} was not written by create_input_files of this lab, but by '
                                 'another program with the same file names: run create_input_files, which leaves this '
                                 'file as it is, and set data_name to the name that it prints')
            self.cpi = int(file.attrs['captions_per_image'])
            self.names = file['names'].asstr()[:].tolist()
            self.references = [json.loads(tokens) for tokens in file['references'].asstr()[:]]
        if not belong_together(captions, caplens, self.references, load_word_map(folder, data_name)):
            raise ValueError(f'the files of {data_name} in {folder} come from different runs of create_input_files: '
                             'delete them and run it again')
        self.captions = torch.tensor(captions, dtype=torch.long)
        self.caplens = torch.tensor(caplens, dtype=torch.long).unsqueeze(1)
        self.sources, self.key = [self.images_path], 'images'
        self.in_memory = None  # all features, see use_features
        self._rows = {}  # of each source, from the first item on
        if features:
            self.use_features(features, mirrored)

    def __len__(self):
        return len(self.captions)

    @staticmethod
    def path_of_images(data_folder, data_name, split):
        """:return: path of a split's HDF5 file of images, whether or not it is there"""
        return Path(data_folder).expanduser() / f'{split}_IMAGES_{data_name}.hdf5'

    def use_features(self, features, mirrored=None, in_memory=None):
        """Read features in place of images, see the parameters of the class.

        :param in_memory: all of them, (images, h, w, encoder_dim), those of the mirrored images last
        """
        self.sources, self.key, self._rows = [features, mirrored], 'features', {}
        self.in_memory = in_memory

    @property
    def has_features(self):
        """Whether it gives features in place of images."""
        return self.key == 'features'

    def replace_captions(self, path, word_map):
        """Take the captions of a file of ``distillation.py`` in place of people's; ``references`` stay.

        :raises ValueError: one of other pictures, or with another number of captions or longer ones
        """
        content = read_json(path, 'make it again by distillation.py')
        names, captions = content['names'], content['captions']
        longest = self.captions.shape[1] - 2
        if names != self.names or len(captions) != len(names) or any(
                len(those) != self.cpi or max(map(len, those)) > longest for those in captions):
            raise ValueError(f'{path} has the captions of other pictures, or another number of them, than '
                             f'{self.images_path}: make it again from a teacher that was trained on these')
        rows = [encode_caption(caption, word_map, longest) for those in captions for caption in those]
        self.captions = torch.tensor(rows, dtype=torch.long)
        self.caplens = torch.tensor([len(caption) + 2 for those in captions for caption in those]).unsqueeze(1)

    @functools.cached_property
    def sided(self):
        """(images,) bool: whether a caption of the image speaks of left or right."""
        words = {word for captions in self.references for caption in captions for word in caption}
        words = {word for word in words if speaks_of_a_side(word)}
        return torch.tensor([any(not words.isdisjoint(caption) for caption in captions)
                             for captions in self.references], dtype=torch.bool)

    @property
    def first_captions(self):
        """Indices of items that go through each image once."""
        return range(0, len(self), self.cpi)

    def image(self, number):
        """Image ``number`` (not caption ``number``), or its features."""
        return self.images(torch.tensor([number]))[0]

    def images(self, numbers):
        """Images, or their features; ``number + len(names)`` is the mirror image of ``number``.

        :param numbers: (m,) long, ascending
        :return: (m, ...), on the device where they are in memory
        """
        if self.in_memory is not None:
            return self.in_memory[numbers.to(self.in_memory.device)]
        images = [self._read(mirror, chosen) for mirror in (False, True)
                  if len(chosen := numbers[(numbers >= len(self.names)) == mirror] % len(self.names))]
        return images[0] if len(images) == 1 else torch.cat(images)

    def expect(self, mirror, start, stop):
        """Images ``start`` to ``stop``, or their features, are wanted soon: see ``row_file.Rows.expect``."""
        self._rows_of(mirror).expect(start, stop)

    def _rows_of(self, mirror):
        source = self.sources[mirror and self.key == 'features']
        if source not in self._rows:
            self._rows[source] = row_file.Rows(source, self.key)
        return self._rows[source]

    def _read(self, mirror, numbers):
        images = torch.from_numpy(self._rows_of(mirror)[numbers.numpy()])
        if self.key == 'features':
            return images
        images = images.flip(3) if mirror else images
        return torch.stack([self.transform(image) for image in images]) if self.transform else images

    def __getitem__(self, i):
        number = i // self.cpi
        item = self.image(number), self.captions[i], self.caplens[i]
        if self.split == 'TRAIN':
            return item
        return *item, self.captions[number * self.cpi:(number + 1) * self.cpi]

    def __getstate__(self):
        return {**self.__dict__, '_rows': {}}


def belong_together(captions, caplens, references, word_map):
    """Whether the first caption of each picture is one of its references, in the numbers of this vocabulary.

    :param captions: lists of max_len + 2 indices, as many for each picture
    :param caplens: their lengths, words + 2
    :param references: per picture a list of captions, each a list of words
    """
    per_picture = len(captions) // max(len(references), 1)
    if not (len(captions) == len(caplens) == per_picture * len(references) and {*SPECIAL_TOKENS} <= {*word_map}):
        return False
    firsts = zip(captions[::per_picture or 1], caplens[::per_picture or 1], references, strict=True)
    return all(any(length == len(words) + 2 and caption == encode_caption(words, word_map, len(caption) - 2)
                   for words in of_picture) for caption, length, of_picture in firsts)


def content_digest(data_folder, data_name, split):
    """Fingerprint of a split's captions, vocabulary and names of pictures (their pixels are not read), 16 hexadecimal
    digits."""
    folder, digest = Path(data_folder).expanduser(), hashlib.sha256()
    for part in ('WORDMAP', f'{split}_CAPTIONS', f'{split}_CAPLENS'):
        digest.update((folder / f'{part}_{data_name}.json').read_bytes())
    with row_file.open_hdf5(CaptionDataset.path_of_images(folder, data_name, split)) as file:
        for key in ('names', 'references'):
            digest.update(json.dumps(file[key].asstr()[:].tolist()).encode())
    return digest.hexdigest()[:16]


def speaks_of_a_side(word):
    """Whether a word speaks of left or right: "left", "Right-hand", "(right)", "左边"; but not "bright"."""
    return re.search(r'(?<![a-z])(left|right)|[左右]', word.lower()) is not None
