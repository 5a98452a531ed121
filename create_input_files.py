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

Each file gets its name when it is complete. The next run keeps the complete HDF5 files of a run that was stopped or
killed, and does nothing if all ten files are there. Of two runs on one folder the second waits for the first. Where
another program has files of these names, this one's get the base ``{dataset}-2_...``.

Where a sentence comes in one piece (``raw``), as Chinese does, ``--tokenizer`` splits it into words or characters. BLEU
counts sequences of these tokens, so compare it only between runs with the same tokenizer.

A picture in two splits is refused, since a test on training pictures says nothing about new ones. A copy or a link
under another name is not noticed.
"""

import argparse
import glob
import hashlib
import itertools
import json
import os
import posixpath
import random
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import h5py
from tqdm import tqdm

from lab.data import tokenizers
from lab.data.images import ImageFileError, load_image, open_images
from lab.data.vocabulary import build_word_map, encode_caption
from utils import atomic_path, one_process_in

SPLIT_OF = {"train": "TRAIN", "restval": "TRAIN", "val": "VAL", "test": "TEST"}
SPLITS = ("TRAIN", "VAL", "TEST")
FORMAT_VERSION = 2
AT_ONCE = 256  # pictures that are decoded before the next ones begin: so many wait in memory at most


class InputFilesError(ValueError):
    """Input that cannot be used, or an output folder that cannot be written; the message says what to do."""


def sha256(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


# --- Reading the input ---


class Picture(NamedTuple):
    """One entry of the Karpathy JSON.

    :ivar name: path in the image folder, with slashes; ``file``: the whole path
    :ivar split: TRAIN, VAL or TEST
    :ivar captions: all token lists; ``usable``: those of 1 to max_len words
    :ivar stamp: (bytes, modification time in ns) of the file; None if it is missing
    """

    name: str
    file: str
    split: str
    captions: list
    usable: list
    stamp: tuple | None


def read_karpathy(path, image_folder, max_len, cut=None):
    """
    :param cut: function that splits a sentence's ``raw`` into tokens; None: take its ``tokens``
    :return: list of ``Picture`` in the order of the JSON file, SHA-256 of the file
    """
    def tokens(sentence):
        found = cut(sentence["raw"]) if cut else sentence["tokens"]
        if not isinstance(found, (list, tuple)):
            raise TypeError(f"'tokens' is a {type(found).__name__}, no list")
        # tokens of raw.split(' ') may be empty or hold blanks and line breaks
        return [word for token in found for word in token.split()]

    try:
        content = Path(path).expanduser().read_bytes()
        data = json.loads(content)
    except OSError as error:
        raise InputFilesError(f"{path}: the Karpathy JSON cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputFilesError(f"{path}: this is not a valid JSON file in UTF-8 ({error})") from error
    pictures = []
    try:
        for entry in tqdm(data["images"], desc="checking images", unit="image", delay=2):
            # intern keeps each word in memory once
            captions = [[sys.intern(word) for word in tokens(sentence)] for sentence in entry["sentences"]]
            usable = [caption for caption in captions if 0 < len(caption) <= max_len]
            name = posixpath.normpath(posixpath.join(entry.get("filepath") or "", entry["filename"]))
            file = os.path.join(image_folder, name)
            status = os.stat(file) if os.path.isfile(file) else None
            stamp = status and (status.st_size, status.st_mtime_ns)
            pictures.append(Picture(name, file, SPLIT_OF[entry["split"]], captions, usable, stamp))
    except (AttributeError, KeyError, TypeError) as error:
        raise InputFilesError(
            f"{path}: images[{len(pictures)}] must have a 'filename', a 'split' ({', '.join(SPLIT_OF)}) and "
            f"'sentences', each with a list of words as 'tokens', or with a text as 'raw' for --tokenizer "
            f"({type(error).__name__}: {error})") from error
    return pictures, hashlib.sha256(content).hexdigest()


def sort_out(pictures, skip_bad):
    """Find what cannot be used, before any decoding begins.

    :return: usable pictures; bad ones, each with the reason; pictures without a usable caption
    """
    usable, bad, too_long = [], [], []
    for picture in pictures:
        reason = None
        if picture.stamp is None:
            reason = "the file is missing"
        elif picture.stamp[0] == 0:
            reason = "the file is empty (0 bytes)"
        elif not picture.captions:
            reason = "the JSON has no captions for it"
        if reason:
            bad.append((picture, reason))
        else:
            (usable if picture.usable else too_long).append(picture)
    if bad and not skip_bad:
        picture, reason = bad[0]
        raise InputFilesError(f"{picture.file}: {reason}; {len(bad)} of {len(pictures)} images are missing, empty or "
                              "without captions; correct this or leave them out with --skip-bad (skip_bad=True)")
    return usable, bad, too_long


def refuse_shared(pictures):
    """:raises InputFilesError: a picture is in two splits"""
    split_of = {}
    shared = {p.name: p for p in pictures if split_of.setdefault(p.name, p.split) != p.split}
    if shared:
        one = next(iter(shared.values()))
        raise InputFilesError(f"{one.file}: this image is in the splits {split_of[one.name]} and {one.split}; "
                              f"{len(shared)} of {len(split_of)} images are in two splits; leave each in one only, or "
                              "allow this with --allow-shared-images (allow_shared_images=True)")


# --- Writing the files ---


def write_json(path, content):
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8")


def decode(picture, image_size):
    """:return: (3, image_size, image_size) uint8, or why the file of a ``Picture`` cannot be decoded"""
    try:
        return load_image(picture.file, image_size)
    except ImageFileError as error:
        return str(error).removeprefix(f"{picture.file}: ")


def write_images(path, pictures, image_size, attributes, skip_bad, workers):
    """Write the HDF5 file of a split. If some images cannot be decoded, this is done once more without them.

    :param attributes: of the file, all but ``pictures``
    :param workers: threads that decode
    """
    shape, left_out = (3, image_size, image_size), {}  # number of a picture -> why it cannot be decoded
    while True:
        numbers = [number for number in range(len(pictures)) if number not in left_out]
        kept = [pictures[number] for number in numbers]
        if pictures and not kept:
            raise InputFilesError(f"no image of the split {pictures[0].split} can be decoded: {left_out[0]}")
        attributes = {**attributes, "pictures": sha256([FORMAT_VERSION, shape, [(p.name, p.stamp) for p in kept]])}
        strings = {"references": [json.dumps([c for c in picture.captions if c]) for picture in kept],
                   "names": [picture.name for picture in kept]}
        if left_out:
            strings["left_out"] = [json.dumps(pair) for pair in left_out.items()]
        bad = {}
        with (h5py.File(path, "w", locking=False) as file, ThreadPoolExecutor(workers) as pool,
              tqdm(desc="decoding", unit="image", total=len(kept)) as bar):
            file.attrs.update(attributes)
            for name, values in strings.items():
                file.create_dataset(name, data=values, dtype=h5py.string_dtype())
            images = file.create_dataset("images", (len(kept), *shape), "uint8")
            for start in range(0, len(kept), AT_ONCE):
                pixels = pool.map(partial(decode, image_size=image_size), kept[start:start + AT_ONCE])
                for row, found in enumerate(pixels, start):
                    if isinstance(found, str):
                        bad[numbers[row]] = found
                    else:
                        images[row] = found
                    bar.update()
        if not bad:
            return
        if not skip_bad:
            number, reason = next(iter(bad.items()))
            raise InputFilesError(f"{pictures[number].file}: {reason}; {len(bad)} of {len(kept)} images are damaged; "
                                  "replace them or leave them out with --skip-bad (skip_bad=True)")
        left_out |= bad


def read_header(path):
    """
    :return: fingerprint of a complete HDF5 file of this module ('' of another program's file, None where there is no
        HDF5 file), and dict number -> reason of the pictures left out of it
    """
    try:
        with open_images(path) as file:
            pairs = file["left_out"].asstr()[:] if "left_out" in file else []
            return file.attrs.get("fingerprint", ""), dict(map(json.loads, pairs))
    except (OSError, ValueError):
        return None, {}


class Files:
    """Paths of the ten: ``images``, ``captions``, ``lengths`` by split, ``word_map``; ``jsons`` are the last seven."""

    def __init__(self, folder, data_name):
        self.images, self.captions, self.lengths = (
            {split: folder / f"{split}_{kind}_{data_name}.{ending}" for split in SPLITS}
            for kind, ending in (("IMAGES", "hdf5"), ("CAPTIONS", "json"), ("CAPLENS", "json")))
        self.word_map = folder / f"WORDMAP_{data_name}.json"
        self.jsons = [*self.captions.values(), *self.lengths.values(), self.word_map]

    def of_another_program(self):
        """Whether one of these names belongs to a file that this module did not write."""
        fingerprints = [read_header(path)[0] for path in self.images.values()]
        return "" in fingerprints or not any(fingerprints) and any(path.exists() for path in self.jsons)


def choose_captions(picture, captions_per_image, seed):
    """Choose exactly ``captions_per_image`` captions: a random sample, or all of them and random repeats.

    The choice depends on the seed and the image alone, not on what other images there are.
    """
    captions = picture.usable
    rng = random.Random(f"{seed} {picture.name}")
    if len(captions) > captions_per_image:
        return rng.sample(captions, captions_per_image)
    return captions + rng.choices(captions, k=captions_per_image - len(captions))


# --- The whole run ---


def create_input_files(dataset, karpathy_json_path, image_folder, captions_per_image=5, min_word_freq=5,
                       output_folder=".", max_len=50, *, seed=123, workers=None, skip_bad=False, image_size=256,
                       allow_shared_images=False, tokenizer=None):
    """Create the ten input files; the top of this module describes them.

    :param dataset: a name for the set, such as ``flickr8k``; part of the file names
    :param karpathy_json_path: JSON file with images, splits and tokenised captions
    :param image_folder: folder with the images named in the JSON
    :param captions_per_image: captions per image; more are sampled, fewer are topped up with repeats
    :param min_word_freq: a word seen less often in the training captions becomes ``<unk>``
    :param output_folder: where to write; made if need be
    :param max_len: captions with more words are left out, and so is an image that has only such ones
    :param seed: for the choice of captions
    :param workers: threads that decode; None takes a few more than there are CPU cores
    :param skip_bad: leave bad images out (missing, empty, damaged or without captions) instead of stopping
    :param image_size: side of the square images in pixels
    :param allow_shared_images: accept pictures that are in two splits
    :param tokenizer: 'rjieba' or 'characters' splits each sentence's ``raw`` into Chinese words, or into single
        characters; None takes its ``tokens``
    :return: summary, dict with ``data_name`` (base), ``splits`` (per split ``images``, ``captions``,
        ``captions_left_out``, ``images_left_out``), ``vocab_size`` (with the four special tokens), ``bad_images`` (list
        of {image, split, reason}), ``too_long_images`` (names of images without a caption of 1 to max_len words) and
        ``already_there`` (True when nothing had to be done)
    :raises InputFilesError: bad input or output folder, a picture in two splits, too little disk space; nothing
        half-written is left
    """
    if captions_per_image < 1:
        raise InputFilesError(f"captions_per_image must be at least 1, not {captions_per_image}")
    folder, image_folder = Path(output_folder).expanduser(), Path(image_folder).expanduser()
    for number in itertools.count(1):
        name = dataset if number == 1 else f"{dataset}-{number}"
        data_name = f"{name}_{captions_per_image}_cap_per_img_{min_word_freq}_min_word_freq"
        files = Files(folder, data_name)
        if not files.of_another_program():
            break
        print(f"The files of {data_name} in {folder} may be another program's: they stay, this set gets another name.")

    try:
        cut = tokenizers.by_name(tokenizer) if tokenizer else None
    except ImportError as error:
        raise InputFilesError(str(error)) from None
    pictures, json_hash = read_karpathy(karpathy_json_path, image_folder, max_len, cut)
    usable, bad, too_long = sort_out(pictures, skip_bad)
    if not allow_shared_images:
        refuse_shared(usable)
    of_split = {split: [picture for picture in usable if picture.split == split] for split in SPLITS}
    if not of_split["TRAIN"]:
        raise InputFilesError(f"{karpathy_json_path}: there is no usable image in the training split")
    settings = [captions_per_image, min_word_freq, max_len, seed, image_size, skip_bad]
    fingerprint = sha256([FORMAT_VERSION, json_hash, [picture.stamp for picture in pictures], *map(int, settings),
                          *[tokenizer] * bool(tokenizer)])
    attributes = {"captions_per_image": captions_per_image, "fingerprint": fingerprint}

    def is_complete(split):
        return read_header(files.images[split])[0] == fingerprint

    already_there = all(map(is_complete, SPLITS)) and all(path.is_file() for path in files.jsons)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # two notebooks may be started at once: the second waits here, then finds the files of the first
        with nullcontext() if already_there else one_process_in(folder):
            for part in folder.glob(f".*_IMAGES_{glob.escape(data_name)}.hdf5.*.part"):  # of a run that was killed
                part.unlink()
            unfinished = [split for split in SPLITS if not is_complete(split)]
            total = sum(len(of_split[split]) for split in unfinished)
            needed, free = total * 3 * image_size ** 2, shutil.disk_usage(folder).free
            if needed > free:
                raise InputFilesError(f"{folder}: too little disk space, {needed / 1e9:.3f} GB are needed and "
                                      f"{free / 1e9:.3f} GB are free; make room or choose another output folder")
            for split in unfinished:
                with atomic_path(files.images[split]) as temporary:
                    write_images(temporary, of_split[split], image_size, attributes, skip_bad, workers)
                    for path in files.jsons:  # an older set with other settings ends here
                        path.unlink(missing_ok=True)

            left_out = {split: read_header(path)[1] for split, path in files.images.items()}
            kept = {split: [picture for number, picture in enumerate(of_split[split]) if number not in left_out[split]]
                    for split in SPLITS}
            words_from = (caption for picture in kept["TRAIN"] for caption in picture.captions)  # too long ones as well
            word_map = build_word_map(words_from, min_word_freq)
            if not already_there:
                for split in SPLITS:
                    captions = [caption for picture in kept[split]
                                for caption in choose_captions(picture, captions_per_image, seed)]
                    encoded = [encode_caption(caption, word_map, max_len) for caption in captions]
                    write_json(files.captions[split], encoded)
                    write_json(files.lengths[split], [len(caption) + 2 for caption in captions])
                write_json(files.word_map, word_map)
    except OSError as error:
        raise InputFilesError(f"{folder}: the output folder cannot be written ({error.strerror or error})") from error

    bad += [(of_split[split][number], reason) for split in SPLITS for number, reason in left_out[split].items()]
    summary = {"data_name": data_name, "splits": {}, "vocab_size": len(word_map), "already_there": already_there,
               "bad_images": [{"image": p.name, "split": p.split, "reason": reason} for p, reason in bad],
               "too_long_images": [picture.name for picture in too_long]}
    for split in SPLITS:
        unusable = [picture for picture in too_long if picture.split == split]
        summary["splits"][split] = {
            "images": len(kept[split]), "captions": len(kept[split]) * captions_per_image,
            "captions_left_out": sum(len(p.captions) - len(p.usable) for p in kept[split] + unusable),
            "images_left_out": len(unusable) + sum(picture.split == split for picture, _ in bad)}
    print_summary(summary, folder)
    return summary


def print_summary(summary, folder):
    print(f"{summary['data_name']} in {folder}", "(was already there)" if summary["already_there"] else "")
    for name, count in summary["splits"].items():
        print(f"  {name:5} {count['images']:7} images {count['captions']:7} captions; left out: "
              f"{count['images_left_out']} images, {count['captions_left_out']} captions (too long or empty)")
    hint = "; every word is <unk>, lower min_word_freq" if summary["vocab_size"] == 4 else ""
    print(f"  vocabulary: {summary['vocab_size']} entries, 4 of them special tokens{hint}")
    lines = [f"{bad['image']}: {bad['reason']}" for bad in summary["bad_images"]]
    lines += [f"{name}: all its captions are too long or empty" for name in summary["too_long_images"]]
    for line in lines[:20] + [f"and {len(lines) - 20} more"] * (len(lines) > 20):
        print(f"  left out: {line}")


def main(arguments=None):
    """Command line. :return: exit code, 0, or 1 after an error in the input"""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def option(name, **kwargs):
        parser.add_argument("--" + name, "--" + name.replace("-", "_"), dest=name.replace("-", "_"), **kwargs)

    option("dataset", required=True, help="a name for the set, such as flickr8k; part of the file names")
    option("karpathy-json-path", required=True, help="JSON file with images, splits and tokenised captions")
    option("image-folder", required=True, help="folder with the images named in the JSON")
    option("captions-per-image", type=int, default=5, help="default: %(default)s")
    option("min-word-freq", type=int, default=5, help="rarer words become <unk>; default: %(default)s")
    option("output-folder", default=".", help="where to write; default: here")
    option("max-len", type=int, default=50, help="longest caption, in words; default: %(default)s")
    option("seed", type=int, default=123, help="for the choice of captions; default: %(default)s")
    option("workers", type=int, help="threads that decode; default: a few more than there are CPU cores")
    option("skip-bad", action="store_true",
           help="leave bad images out instead of stopping: missing, empty, damaged or without captions")
    option("tokenizer", choices=tokenizers.NAMES,
           help="split each raw sentence into Chinese words (rjieba) or single characters; default: take its tokens")
    option("allow-shared-images", action="store_true", help="accept pictures that are in two splits")
    try:
        create_input_files(**vars(parser.parse_args(arguments)))
    except InputFilesError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
