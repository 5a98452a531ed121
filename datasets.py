"""The files of ``create_input_files.py`` as a PyTorch ``Dataset``."""

import copy
import functools
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset  # noqa: F401, accelerate looks for the latter in `datasets`

from lab.data.images import open_images
from lab.data.vocabulary import RUN_AGAIN, in_language, languages_of, load_word_map
from utils import read_json


class CaptionDataset(Dataset):
    """One item per caption; the ``captions_per_image`` captions of an image follow one another.

    Items are ``(image, caption, caption length)``:

    * image: (3, 256, 256) uint8, or with ``features`` the encoder's grid (h, w, encoder_dim) float16. Pixels
      stay uint8 until they are on the device; ``models.Encoder`` normalises them there.
    * caption: (max_len + 2,) long; caption length: (1,) long, <start> and <end> counted

    :param data_folder: folder with the files of ``create_input_files``
    :param data_name: base name of the files, such as ``shapes_5_cap_per_img_1_min_word_freq``
    :param split: 'TRAIN', 'VAL' or 'TEST'
    :param features: files of ``features.encode_images`` to read instead of the images: of the images and, for
        ``flip``, of the mirrored ones
    :raises ValueError: another split, one without pictures, or files that are not there or cut
    """

    def __init__(self, data_folder, data_name, split, features=()):
        if split not in ('TRAIN', 'VAL', 'TEST'):
            raise ValueError(f"split is {split!r}; it must be 'TRAIN', 'VAL' or 'TEST'")
        folder = Path(data_folder).expanduser()
        self.split = split
        self.images_path = folder / f'{split}_IMAGES_{data_name}.hdf5'
        captions, caplens = (read_json(folder / f'{split}_{kind}_{data_name}.json', RUN_AGAIN)
                             for kind in ('CAPTIONS', 'CAPLENS'))
        with open_images(self.images_path) as file:
            self.cpi = int(file.attrs['captions_per_image'])
            self.pictures_digest = file.attrs['pictures']  # of the picture files
            self.names = file['names'].asstr()[:].tolist()
            references = [json.loads(tokens) for tokens in file['references'].asstr()[:]]
        word_map = load_word_map(folder, data_name)
        self.languages = languages_of(word_map)
        self.language = self.languages[0]
        self.word_maps = {language: in_language(word_map, language) for language in self.languages}
        self.references_in = {language: [those[language] if language else those for those in references]
                              for language in self.languages}
        if not captions:
            raise ValueError(f"{self.images_path} has no pictures: give some of them the split '{split.lower()}' in "
                             'the JSON file, and run create_input_files again')
        self.captions = torch.tensor(captions, dtype=torch.long)
        self.caplens = torch.tensor(caplens, dtype=torch.long).unsqueeze(1)
        self.features = features

    def __len__(self):
        return len(self.captions)

    @property
    def references(self):
        """Per picture a list of people's captions in ``language``, each a list of words."""
        return self.references_in[self.language]

    @property
    def word_map(self):
        """word -> index; ``<start>`` begins a caption in ``language``."""
        return self.word_maps[self.language]

    def in_language(self, language):
        """The same data set, with references and ``word_map`` in another of its languages, if it has that one."""
        other = copy.copy(self)
        other.language = language if language in self.languages else self.languages[0]
        return other

    def by_language(self):
        """This data set once for each of its languages."""
        return [self.in_language(language) for language in self.languages]

    def language_of(self, number):
        """The language of a caption: a picture has all captions in the first one, then those in the next."""
        return self.languages[number % self.cpi * len(self.languages) // self.cpi]

    @functools.cached_property
    def sided(self):
        """(images,) bool: whether a caption of the image speaks of left or right."""
        of_pictures = [sum(those, []) for those in zip(*self.references_in.values(), strict=True)]
        words = {word for captions in of_pictures for caption in captions for word in caption}
        words = {word for word in words if speaks_of_a_side(word)}
        return torch.tensor([any(not words.isdisjoint(caption) for caption in captions)
                             for captions in of_pictures], dtype=torch.bool)

    def image(self, number):
        """Image ``number`` (not caption ``number``), or its features."""
        return self.images(torch.tensor([number]))[0]

    def images(self, numbers, mirrored=False):
        """Images, or their features.

        :param numbers: (m,) long
        :param mirrored: the mirror images, but for pictures of which a caption speaks of left or right
        :return: (m, ...)
        """
        if self.features:
            return torch.from_numpy(self._features[mirrored][numbers.numpy()])
        images = torch.from_numpy(self._pixels[numbers.numpy()])
        if mirrored:
            turned = ~self.sided[numbers]
            images[turned] = images[turned].flip(3)
        return images

    # Files as arrays: the operating system reads what is indexed, and keeps it in memory where there is room.
    # (HDF5 itself takes several times as long for rows here and there, and an open file does not survive a fork.)
    @functools.cached_property
    def _pixels(self):
        with open_images(self.images_path) as file:
            images = file['images']
            return np.memmap(self.images_path, images.dtype, 'r', images.id.get_offset(), images.shape)

    @functools.cached_property
    def _features(self):
        return [np.load(path, mmap_mode='r') for path in self.features]

    def __getitem__(self, i):
        return self.image(i // self.cpi), self.captions[i], self.caplens[i]


def content_digest(data_folder, data_name, split):
    """Fingerprint of a split's captions, vocabulary and names of pictures (their pixels are not read), 16 hexadecimal
    digits."""
    folder = Path(data_folder).expanduser()
    digest = hashlib.sha256()
    for part in ('WORDMAP', f'{split}_CAPTIONS', f'{split}_CAPLENS'):
        digest.update((folder / f'{part}_{data_name}.json').read_bytes())
    with open_images(folder / f'{split}_IMAGES_{data_name}.hdf5') as file:
        for key in ('names', 'references'):
            digest.update(json.dumps(file[key].asstr()[:].tolist()).encode())
    return digest.hexdigest()[:16]


def speaks_of_a_side(word):
    """Whether a word speaks of left or right: "left", "Right-hand", "(right)", "左边"; but not "bright"."""
    return re.search(r'(?<![a-z])(left|right)|[左右]', word.lower()) is not None
