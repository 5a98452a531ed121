"""Turn a caption dataset in Karpathy's JSON form into the ten files that training and evaluation read.

With base = ``{dataset}_{k}_cap_per_img_{min_word_freq}_min_word_freq``, and for each of TRAIN (splits train and
restval), VAL and TEST:

- ``TRAIN_IMAGES_{base}.hdf5``: ``images`` (N, 3, 256, 256) uint8 RGB, squashed to a square; ``references`` (N,)
  strings, each a JSON list of the tokens of all non-empty captions of the image, for BLEU; ``names`` (N,) strings,
  path inside the image folder; attributes ``captions_per_image``, ``fingerprint`` of all that the ten files are made
  of, and ``pictures``, of the images alone;
- ``TRAIN_CAPTIONS_{base}.json``: N * k lists of max_len + 2 indices, ``<start> words <end> <pad> ...``; the k rows of
  one image are adjacent;
- ``TRAIN_CAPLENS_{base}.json``: N * k lengths, words + 2;
- ``WORDMAP_{base}.json``: word -> index; ``<pad>`` is 0, then the words, ``<unk>``, ``<start>``, ``<end>``.

The ten files get their names when all are complete; until then, older ones stay as they are. A run does nothing if
they are there and were made from the same input. Of two runs on one folder the second waits for the first. HDF5 files
that another program has there under these names stop it.

Where a sentence comes in one piece (``raw``), as Chinese does, ``--tokenizer`` splits it into words or characters. BLEU
counts sequences of these tokens, so compare it only between runs with the same tokenizer.

Captions in several languages, each in a JSON file of its own with the same pictures and splits, make one data set:

    --karpathy-json-path en=dataset_flickr8k.json zh=dataset_flickr8k_zh.json --tokenizer zh=rjieba

A picture then has k captions in each language, one language after the other. A caption begins with the start token of
its language, ``<start:en>`` or ``<start:zh>``, and ``references`` are dicts of such lists.

A picture in two splits is refused, since a test on training pictures says nothing about new ones. A copy or a link
under another name is not noticed.
"""

import argparse
import hashlib
import json
import os
import posixpath
import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import h5py
from filelock import FileLock
from tqdm import tqdm

from lab.data import tokenizers
from lab.data.images import SIDE, load_image, open_images
from lab.data.vocabulary import build_word_map, encode_caption, in_language, is_special
from utils import atomic_path, read_json

SPLIT_OF = {"train": "TRAIN", "restval": "TRAIN", "val": "VAL", "test": "TEST"}
SPLITS = ("TRAIN", "VAL", "TEST")
FORMAT_VERSION = 2
SEED = 123  # for the choice of captions
AT_ONCE = 256  # pictures that are decoded before the next ones begin: so many wait in memory at most


def sha256(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


# --- Reading the input ---


class Picture(NamedTuple):
    """A picture of the Karpathy JSON.

    :ivar name: path in the image folder, with slashes; ``file``: the whole path
    :ivar split: TRAIN, VAL or TEST
    :ivar captions: dict language -> all token lists; ``usable``: those of 1 to max_len words; None is the only language
    :ivar stamp: (bytes, modification time in ns) of the file; None if it is missing
    :ivar problem: why the picture cannot be used, as far as this is seen before decoding; None if it can
    """

    name: str
    file: str
    split: str
    captions: dict
    usable: dict
    stamp: tuple | None
    problem: str | None


def read_karpathy(paths, image_folder, max_len, cuts):
    """
    :param paths: dict language -> JSON file
    :param cuts: dict language -> function that splits a sentence's ``raw`` into tokens; else its ``tokens`` are taken
    :return: list of ``Picture`` in the order of the JSON files, fingerprints of these
    """
    pictures, digests = {}, []
    for language, path in paths.items():
        data = read_json(path, "it must be JSON in UTF-8")
        number = 0
        digests.append(hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest())
        try:
            for number, entry in enumerate(tqdm(data["images"], desc="checking images", unit="image", delay=2)):  # noqa: B007
                name, split, captions = read_entry(entry, cuts.get(language))
                of_split, of_languages = pictures.setdefault(name, (split, {}))
                if of_split != split:
                    raise ValueError(f"{path}: {name} is in the splits {of_split} and {split}; leave it in one only")
                of_languages.setdefault(language, []).extend(captions)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: images[{number}] must have a 'filename', a 'split' ({', '.join(SPLIT_OF)}) and 'sentences', "
                f"each with a list of words as 'tokens', or with a text as 'raw' for --tokenizer "
                f"({type(error).__name__}: {error})") from error
    return [as_picture(name, image_folder, *found, paths, max_len) for name, found in pictures.items()], digests


def read_entry(entry, cut):
    """:return: name, split and captions of one of the JSON's ``images``"""
    captions = []
    for sentence in entry["sentences"]:
        tokens = cut(sentence["raw"]) if cut else sentence["tokens"]
        if isinstance(tokens, str):
            raise TypeError("'tokens' is a text, no list")
        # tokens of raw.split(' ') may be empty or hold blanks and line breaks; intern keeps each word in memory once
        captions.append([sys.intern(word) for token in tokens for word in token.split()])
    name = posixpath.normpath(posixpath.join(entry.get("filepath") or "", entry["filename"]))
    return name, SPLIT_OF[entry["split"]], captions


def as_picture(name, image_folder, split, captions, languages, max_len):
    """:return: ``Picture``, with its ``problem`` if it has one; ``captions``: language -> token lists"""
    usable = {language: [words for words in those if 0 < len(words) <= max_len] for language, those in captions.items()}
    file = os.path.join(image_folder, name)
    stamp = problem = None
    if os.path.isfile(file):
        status = os.stat(file)
        stamp = status.st_size, status.st_mtime_ns
    if stamp is None:
        problem = "the file is missing"
    elif stamp[0] == 0:
        problem = "the file is empty (0 bytes)"
    elif captions.keys() != languages.keys():
        problem = "the JSON of another language lacks it"
    elif not all(captions.values()):
        problem = "the JSON has no captions for it"
    return Picture(name, file, split, captions, usable, stamp, problem)


def refuse_bad(bad, pictures):
    """:raises ValueError: some of these pictures cannot be used"""
    if bad:
        raise ValueError(f"{bad[0].file}: {bad[0].problem}; {len(bad)} of {len(pictures)} images cannot be used; "
                         "correct this or leave them out with --skip-bad (skip_bad=True)")


def choose_captions(picture, language, captions_per_image):
    """Choose exactly ``captions_per_image`` captions: a random sample, or all of them and random repeats.

    The choice depends on the image alone, not on what other images there are.
    """
    captions = picture.usable[language]
    rng = random.Random(f"{SEED} {picture.name}")
    if len(captions) > captions_per_image:
        return rng.sample(captions, captions_per_image)
    return captions + rng.choices(captions, k=captions_per_image - len(captions))


# --- Writing the files ---


def decode(picture):
    """:return: (3, SIDE, SIDE) uint8, or why the file of a ``Picture`` cannot be decoded"""
    try:
        return load_image(picture.file)
    except ValueError as error:
        return str(error).removeprefix(f"{picture.file}: ")


def references_of(picture):
    """All captions of a ``Picture`` but the empty ones: a list, or a dict of lists where languages have names."""
    captions = {language: [words for words in those if words] for language, those in picture.captions.items()}
    return captions.get(None, captions)


def write_images(path, pictures, attributes):
    """Write the HDF5 file of a split. Damaged pictures are left out; as many rows at the end of ``images`` stay empty.

    :param attributes: of the file, all but ``pictures``
    :return: the pictures in it, and those that are damaged, with the reason as ``problem``: two lists
    """
    whole, damaged = [], []
    with (h5py.File(path, "w", locking=False) as file, ThreadPoolExecutor() as pool,
          tqdm(desc="decoding", unit="image", total=len(pictures)) as bar):
        images = file.create_dataset("images", (len(pictures), 3, SIDE, SIDE), "uint8")
        for start in range(0, len(pictures), AT_ONCE):
            those = pictures[start:start + AT_ONCE]
            for picture, found in zip(those, pool.map(decode, those), strict=True):
                if isinstance(found, str):
                    damaged.append(picture._replace(problem=found))
                else:
                    images[len(whole)] = found
                    whole.append(picture)
                bar.update()
        fingerprint = sha256([FORMAT_VERSION, images.shape[1:], [(picture.name, picture.stamp) for picture in whole]])
        file.attrs.update({**attributes, "pictures": fingerprint})
        strings = {"references": [json.dumps(references_of(picture)) for picture in whole],
                   "names": [picture.name for picture in whole]}
        for name, values in strings.items():
            file.create_dataset(name, data=values, dtype=h5py.string_dtype())
    return whole, damaged


def fingerprint_of(path):
    """
    :return: fingerprint of a complete HDF5 file of this module; None if there is none
    :raises ValueError: it is of another program
    """
    try:
        with open_images(path) as file:
            return file.attrs["fingerprint"]
    except KeyError:
        raise ValueError(f"{path} was written by another program: choose another output folder") from None
    except ValueError:
        return None


# --- The whole run ---


def create_input_files(dataset, karpathy_json_path, image_folder, captions_per_image=5, min_word_freq=5,
                       output_folder=".", max_len=50, *, skip_bad=False, tokenizer=None):
    """Create the ten input files; the top of this module describes them.

    :param dataset: a name for the set, such as ``flickr8k``; part of the file names
    :param karpathy_json_path: JSON file with images, splits and tokenised captions; of several languages a dict:
        ``{'en': 'dataset.json', 'zh': 'dataset_zh.json'}``
    :param image_folder: folder with the images named in the JSON
    :param captions_per_image: captions per image and language; more are sampled, fewer are topped up with repeats
    :param min_word_freq: a word seen less often in the training captions becomes ``<unk>``
    :param output_folder: where to write; made if need be
    :param max_len: captions with more words are left out, and so is an image that has only such ones
    :param skip_bad: leave bad images out (missing, empty, damaged or without captions) instead of stopping
    :param tokenizer: 'rjieba' or 'characters' splits each sentence's ``raw`` into Chinese words, or into single
        characters; None takes its ``tokens``; of several languages a dict: ``{'zh': 'rjieba'}``
    :return: base, which is the setting ``data_name`` of a training
    :raises ValueError: bad input, a picture in two splits
    :raises OSError: the JSON file cannot be read, the output folder cannot be written, too little disk space
    """
    folder, image_folder = Path(output_folder).expanduser(), Path(image_folder).expanduser()
    data_name = f"{dataset}_{captions_per_image}_cap_per_img_{min_word_freq}_min_word_freq"
    images = {split: folder / f"{split}_IMAGES_{data_name}.hdf5" for split in SPLITS}
    captions = {split: folder / f"{split}_CAPTIONS_{data_name}.json" for split in SPLITS}
    lengths = {split: folder / f"{split}_CAPLENS_{data_name}.json" for split in SPLITS}
    vocabulary = folder / f"WORDMAP_{data_name}.json"
    jsons = [*captions.values(), *lengths.values(), vocabulary]

    paths = karpathy_json_path if isinstance(karpathy_json_path, dict) else {None: karpathy_json_path}
    cuts = tokenizer if isinstance(tokenizer, dict) else dict.fromkeys(paths, tokenizer)
    cuts = {language: tokenizers.by_name(name) for language, name in cuts.items() if name}
    languages = [language for language in paths if language]
    pictures, digests = read_karpathy(paths, image_folder, max_len, cuts)
    bad = [picture for picture in pictures if picture.problem]
    if not skip_bad:
        refuse_bad(bad, pictures)
    usable = [picture for picture in pictures if not picture.problem and all(picture.usable.values())]
    bad += [picture._replace(problem="all its captions are too long or empty") for picture in pictures
            if not picture.problem and not all(picture.usable.values())]
    of_split = {split: [picture for picture in usable if picture.split == split] for split in SPLITS}
    if not of_split["TRAIN"]:
        raise ValueError(f"{', '.join(map(str, paths.values()))}: there is no usable image in the training split")
    settings = [captions_per_image, min_word_freq, max_len, SEED, SIDE, skip_bad]
    fingerprint = sha256([FORMAT_VERSION, "".join(digests), [picture.stamp for picture in pictures],
                          *map(int, settings), *[tokenizer] * bool(tokenizer), *languages])

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock", mode=0o666), ExitStack() as stack:
        for part in folder.glob(f".*_{data_name}.*.part"):  # of a run that was killed
            part.unlink()
        if [*map(fingerprint_of, images.values())] == [fingerprint] * 3 and all(path.is_file() for path in jsons):
            print(f"{data_name} in {folder} (was already there)")
            return data_name
        # A stack is emptied from its end: the HDF5 files, which stand for a complete set, get their names last.
        parts = {path: stack.enter_context(atomic_path(path)) for path in (*images.values(), *jsons)}
        attributes = {"captions_per_image": captions_per_image * len(paths), "fingerprint": fingerprint}
        kept = {}
        for split, whole in of_split.items():
            kept[split], damaged = write_images(parts[images[split]], whole, attributes)
            if not skip_bad:
                refuse_bad(damaged, whole)
            bad += damaged
        words_from = (caption for picture in kept["TRAIN"] for those in picture.captions.values()
                      for caption in those)  # too long as well
        word_map = build_word_map(words_from, min_word_freq, languages)
        maps = {language: in_language(word_map, language) for language in paths}
        contents = {vocabulary: word_map}
        for split in SPLITS:
            chosen = [(maps[language], caption) for picture in kept[split] for language in paths
                      for caption in choose_captions(picture, language, captions_per_image)]
            contents[captions[split]] = [encode_caption(caption, own, max_len) for own, caption in chosen]
            contents[lengths[split]] = [len(caption) + 2 for _, caption in chosen]
        for path, content in contents.items():
            parts[path].write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    print(f"{data_name} in {folder}")
    print_counts(pictures, kept, attributes["captions_per_image"], word_map)
    for picture in bad[:20]:  # the counts above are of all
        print(f"  left out: {picture.name}: {picture.problem}")
    return data_name


def print_counts(pictures, kept, captions_per_image, word_map):
    """
    :param pictures: all of the JSON; ``kept``: dict split -> those in its files
    """
    for split, whole in kept.items():
        of_split = [picture for picture in pictures if picture.split == split]
        captions = sum(len(those) - len(picture.usable[language]) for picture in of_split
                       for language, those in picture.captions.items())
        print(f"  {split:5} {len(whole):7} images {len(whole) * captions_per_image:7} captions; left out: "
              f"{len(of_split) - len(whole)} images, {captions} captions (too long or empty)")
    size, special = len(word_map), sum(map(is_special, word_map))
    hint = "; every word is <unk>, lower min_word_freq" if size == special else ""
    print(f"  vocabulary: {size} entries, {special} of them special tokens{hint}")


def of_languages(texts):
    """['en=a.json', 'zh=b.json'] is a dict, ['a.json'] is 'a.json'. A language has two letters, as in ISO 639-1."""
    pairs = [re.fullmatch('([a-z]{2})=(.+)', text) for text in texts or []]
    if len(pairs) > 1 and not all(pairs):
        sys.exit(f"error: {texts[pairs.index(None)]} has no language before it, such as en=")
    return dict(pair.groups() for pair in pairs) if pairs and all(pairs) else texts and texts[0]


def main(arguments=None):
    """Command line. :return: exit code, 0, or 1 after an error in the input"""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--dataset", required=True, help="a name for the set, such as flickr8k; part of the file names")
    option("--karpathy-json-path", required=True, nargs="+", metavar="FILE",
           help="JSON file with images, splits and tokenised captions; of several languages en=FILE zh=FILE")
    option("--image-folder", required=True, help="folder with the images named in the JSON")
    option("--captions-per-image", type=int, default=5, help="default: %(default)s")
    option("--min-word-freq", type=int, default=5, help="rarer words become <unk>; default: %(default)s")
    option("--output-folder", default=".", help="where to write; default: here")
    option("--max-len", type=int, default=50, help="longest caption, in words; default: %(default)s")
    option("--skip-bad", action="store_true",
           help="leave bad images out instead of stopping: missing, empty, damaged or without captions")
    option("--tokenizer", nargs="+", metavar="NAME",
           help="split each raw sentence into Chinese words (rjieba) or single characters; of several languages "
                "zh=rjieba; default: take its tokens")
    arguments = parser.parse_args(arguments)
    arguments.karpathy_json_path = of_languages(arguments.karpathy_json_path)
    arguments.tokenizer = of_languages(arguments.tokenizer)
    try:
        create_input_files(**vars(arguments))
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
