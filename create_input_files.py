"""Turn a caption dataset in Karpathy's JSON form into the ten files that training and evaluation read.

With base = ``{dataset}_{k}_cap_per_img_{min_word_freq}_min_word_freq``, and for each of TRAIN (splits train
and restval), VAL and TEST:

- ``TRAIN_IMAGES_{base}.hdf5``: ``images`` (N, 3, 256, 256) uint8 RGB, squashed to a square; ``references``
  (N,) strings, each a JSON list of the tokens of all non-empty captions of the image, for BLEU; ``names``
  (N,) strings, path inside the image folder; attributes ``captions_per_image``, ``fingerprint`` of all that
  the ten files are made of, and ``pictures``, of the images alone;
- ``TRAIN_CAPTIONS_{base}.json``: N * k lists of max_len + 2 indices, ``<start> words <end> <pad> ...``; the
  k rows of one image are adjacent;
- ``TRAIN_CAPLENS_{base}.json``: N * k lengths, words + 2;
- ``WORDMAP_{base}.json``: word -> index; ``<pad>`` is 0, then the words, ``<unk>``, ``<start>``, ``<end>``.

A run that was stopped or killed keeps the splits whose images were all decoded; a run whose ten files are there does
nothing.
"""

import argparse
import hashlib
import itertools
import json
import multiprocessing
import operator
import os
import posixpath
import random
import re
import shutil
import signal
import stat
import sys
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import h5py
from tqdm import tqdm

# No torch here, nor utils, which has it: every decoding process imports this module, torch takes seconds.
from lab.data import row_file
from lab.data.images import ImageFileError, load_image
from lab.data.locks import locked
from lab.data.row_file import first_row, open_rows, sync
from lab.data.vocabulary import build_word_map, encode_caption

SPLIT_OF = {"train": "TRAIN", "restval": "TRAIN", "val": "VAL", "test": "TEST"}
SPLITS = ("TRAIN", "VAL", "TEST")
FORMAT_VERSION = 2
AT_ONCE = 8  # images that a decoding process is given at once
IN_FLIGHT = 8  # such tasks per process, so that none waits


class InputFilesError(ValueError):
    """Input that cannot be used, or an output folder that cannot be written; the message says what to do."""


class Picture(NamedTuple):
    """One entry of the Karpathy JSON.

    :ivar name: posix path in the image folder
    :ivar split: TRAIN, VAL or TEST
    :ivar captions: all token lists
    :ivar stamp: [bytes, modification time in ns] of the file; None as long as nobody has looked
    """

    name: str
    split: str
    captions: list
    stamp: list | None = None

    def usable_captions(self, max_len):
        return [caption for caption in self.captions if 0 < len(caption) <= max_len]


# --- Reading the input ---


def only_needed(entry):
    """What is read of a JSON object, each word of a caption once in memory; the rest would take more room than this."""
    entry = {key: entry[key] for key in ("images", "filename", "filepath", "split", "sentences", "tokens")
             if key in entry}
    if isinstance(entry.get("tokens"), list):
        entry["tokens"] = [sys.intern(token) if type(token) is str else token for token in entry["tokens"]]
    return entry


def read_karpathy(path):
    """:return: list of ``Picture`` in the order of the JSON file, SHA-256 of the file"""
    try:
        text = Path(path).read_bytes()
        digest = hashlib.sha256(text).hexdigest()
        text = text.decode(json.detect_encoding(text), "surrogatepass")  # as json.loads would, which keeps both
        data = json.loads(text, object_hook=only_needed)
        del text
    except OSError as error:
        raise InputFilesError(f"{path}: the Karpathy JSON cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputFilesError(f"{path}: this is not a valid JSON file ({error})") from error

    def get(entry, key, kind, where):
        value = entry.get(key) if isinstance(entry, dict) else None
        if not isinstance(value, kind):
            raise InputFilesError(f"{path}: {where}: the key '{key}' is missing or no {kind.__name__}")
        return value

    pictures = []
    for number, entry in enumerate(get(data, "images", list, "top level")):
        filename = get(entry, "filename", str, f"images[{number}]")
        where = f"images[{number}] ({filename})"
        folder = get(entry, "filepath", str, where) if entry.get("filepath") else ""
        split = get(entry, "split", str, where)
        if split not in SPLIT_OF:
            raise InputFilesError(f"{path}: {where}: unknown split '{split}'; use {', '.join(SPLIT_OF)}")
        captions = [get(s, "tokens", list, where) for s in get(entry, "sentences", list, where)]
        if not all(isinstance(token, str) for caption in captions for token in caption):
            raise InputFilesError(f"{path}: {where}: every token of a caption must be a string")
        name = posixpath.normpath(posixpath.join(folder, filename))
        pictures.append(Picture(name, SPLIT_OF[split], captions))
    return pictures, digest


@lru_cache(maxsize=10000)  # nearly all images share a few folders
def is_inside(path, folder):
    return Path(os.path.realpath(path)).is_relative_to(folder)


def find_image(folder, name):
    """:return: [bytes, modification time in ns] of a file or None; why the file is of no use, or None"""
    path = os.path.join(folder, name)
    try:
        name.encode()  # half a surrogate pair could not be stored
        inside = name != ".." and is_inside(os.path.dirname(path), folder)
        if inside and os.path.islink(path):
            inside = is_inside(path, folder)
        status = os.stat(path) if inside else None
    except (OSError, ValueError):
        return None, "the file is missing"
    if not inside:
        raise InputFilesError(f"{name}: this image path leaves the image folder {folder}; correct the JSON")
    if not stat.S_ISREG(status.st_mode):
        return None, "this is not a file"
    return [status.st_size, status.st_mtime_ns], None if status.st_size else "the file is empty (0 bytes)"


def select_pictures(pictures, image_folder, max_len, skip_bad):
    """Sort out what cannot be used, before any decoding begins.

    :return: usable pictures; bad images, as list of {image, split, reason}; pictures without a caption of 1
        to max_len words; size and time of every file
    """
    if not Path(image_folder).is_dir():
        raise InputFilesError(f"{image_folder}: there is no such image folder")
    is_inside.cache_clear()
    usable, bad, too_long, stamps = [], [], [], []
    for picture in tqdm(pictures, desc="checking images", unit="image", delay=2):
        stamp, reason = find_image(os.path.realpath(image_folder), picture.name)
        stamps.append(stamp)
        picture = picture._replace(stamp=stamp)
        reason = reason or (None if picture.captions else "the JSON has no captions for it")
        if reason:
            bad.append({"image": picture.name, "split": picture.split, "reason": reason})
        else:
            (usable if picture.usable_captions(max_len) else too_long).append(picture)
    if bad and not skip_bad:
        first = f"{os.path.join(image_folder, bad[0]['image'])}: {bad[0]['reason']}"
        raise InputFilesError(f"{first}; {len(bad)} of {len(pictures)} images are missing, empty or without "
                              "captions; correct this or leave them out with --skip-bad (skip_bad=True)")
    return usable, bad, too_long, stamps


# --- Decoding, in several processes ---


def decode_rows(paths, image_size, part, offset):
    """Decode images and write each to its row of a file, so that pixels need not travel between processes.

    :param part: the file; ``offset``: of the first image's row, in bytes
    :return: per image None, or the error that leaves its row empty
    """
    errors = []
    with open(part, "r+b") as rows:
        for number, path in enumerate(paths):
            try:
                image = load_image(path, image_size)
            except ImageFileError as error:
                errors.append(error)
                continue
            rows.seek(offset + number * image.nbytes)
            rows.write(image.tobytes())
            errors.append(None)
    return errors


def start_worker():
    """Leave Ctrl-C to the main process, and end when that is killed (a pool's process would wait forever)."""
    def follow_parent():
        multiprocessing.parent_process().join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=follow_parent, daemon=True).start()


def decode_all(tasks, workers):
    """Do ``decode_rows`` with every task's arguments; yield what it returns, image by image, in order."""
    if workers == 1:
        for task in tasks:
            yield from decode_rows(*task)
        return
    # spawn: the start method that every system has and that is safe beside torch's and notebooks' threads
    pool = ProcessPoolExecutor(min(workers, 61), multiprocessing.get_context("spawn"), start_worker)
    in_flight = deque()
    try:
        for task in tasks:
            in_flight.append(pool.submit(decode_rows, *task))
            if len(in_flight) >= IN_FLIGHT * workers:
                yield from in_flight.popleft().result()
        while in_flight:
            yield from in_flight.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


# --- The image files ---


def with_ending(path, ending):
    return path.with_name(path.name + ending)


def read_stamp(path):
    """:return: fingerprint of one of our HDF5 files and its [index, reason] of bad images, or None and []"""
    try:
        with h5py.File(path, "r") as file:
            bad = file["left_out"].asstr()[:] if "left_out" in file else []
            return file.attrs["fingerprint"], [json.loads(pair) for pair in bad]
    except (OSError, KeyError):
        return None, []


class SplitFile:
    """One split's HDF5 file in the making.

    ``.part`` has its full size and all its strings from the start; then rows are written (see ``row_file.py``). The
    complete file is called ``.ready``.

    :param path: final name
    :param pictures: usable pictures of the split, one row each
    """

    def __init__(self, path, pictures, fingerprint, captions_per_image, image_size):
        self.path, self.pictures, self.fingerprint = path, pictures, fingerprint
        self.captions_per_image, self.shape = captions_per_image, (3, image_size, image_size)
        self.row_bytes = 3 * image_size * image_size
        self.work_files = [with_ending(path, ending) for ending in (".part", ".new", ".ready")]
        self.part, self.new, self.ready = self.work_files
        stamps = dict([read_stamp(self.ready), read_stamp(path)])
        self.finished = fingerprint in stamps
        self.bad = stamps.get(fingerprint, [])  # [index, reason] of pictures that cannot be decoded

    @property
    def kept(self):
        bad = {index for index, _ in self.bad}
        return [picture for index, picture in enumerate(self.pictures) if index not in bad]

    def discard(self):
        for file in self.work_files:
            file.unlink(missing_ok=True)

    def create(self, path, pictures):
        """Write everything but the image rows."""
        strings = {"references": [json.dumps([c for c in p.captions if c]) for p in pictures],
                   "names": [picture.name for picture in pictures]}
        if self.bad:
            strings["left_out"] = [json.dumps(pair) for pair in self.bad]
        images = json.dumps([FORMAT_VERSION, self.shape, [(picture.name, picture.stamp) for picture in pictures]])
        attributes = {"captions_per_image": self.captions_per_image, "fingerprint": self.fingerprint,
                      "pictures": hashlib.sha256(images.encode()).hexdigest()}
        row_file.create(path, "images", (len(pictures), *self.shape), "uint8", attributes, strings)

    def tasks(self, image_folder):
        """Make the file; :return: arguments of ``decode_rows`` for its rows"""
        self.create(self.part, self.pictures)
        begin, paths = first_row(self.part, "images"), [os.path.join(image_folder, p.name) for p in self.pictures]
        return [(paths[i:i + AT_ONCE], self.shape[1], self.part, begin + i * self.row_bytes)
                for i in range(0, len(paths), AT_ONCE)]

    def finish(self):
        """Name the complete file ``.ready``; where images were left out, first copy it without their rows."""
        with open(self.part, "r+b") as rows:
            sync(rows)
        if self.bad:
            self.create(self.new, self.kept)
            bad = {index for index, _ in self.bad}
            with open_rows(self.part, "images") as source, open_rows(self.new, "images") as target:
                for index in tqdm(range(len(self.pictures)), desc="closing the gaps", unit="image", delay=2):
                    row = source.read(self.row_bytes)
                    if index not in bad:
                        target.write(row)
                sync(target)
            os.replace(self.new, self.ready)
        else:
            os.replace(self.part, self.ready)
        self.finished = True


def write_images(splits, image_folder, image_size, workers, skip_bad):
    """Decode all pictures not decoded yet, into the splits' ``.ready`` files."""
    unfinished = [split for split in splits if not split.finished]
    total = sum(len(split.pictures) for split in unfinished)
    if workers is None:  # for few images it is not worth starting processes
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(cores, 16, 1 + total // 200)
    tasks = [task for split in unfinished for task in split.tasks(image_folder)]
    with closing(decode_all(tasks, workers)) as errors, \
            tqdm(total=total, desc="decoding", unit="image") as bar:
        for split in unfinished:
            for index, picture in enumerate(split.pictures):
                error = next(errors)
                if error is not None and not skip_bad:
                    raise InputFilesError(f"{error}; replace it or use --skip-bad (skip_bad=True)")
                if error is not None:
                    split.bad.append([index, str(error).partition(picture.name + ": ")[2]])
                bar.update()
            split.finish()


# --- Captions ---


def choose_captions(picture, captions_per_image, max_len, seed):
    """Choose exactly ``captions_per_image`` captions: a random sample, or all of them and random repeats.

    The choice depends on the seed and the image alone, not on what other images there are.
    """
    captions = picture.usable_captions(max_len)
    rng = random.Random(f"{seed} {picture.name}")
    if len(captions) > captions_per_image:
        return rng.sample(captions, captions_per_image)
    return captions + rng.choices(captions, k=captions_per_image - len(captions))


def write_captions(path, lengths_path, captions, word_map, max_len):
    """Write encoded captions and their lengths, two JSON lists, in parts: all of COCO at once would fill the memory."""
    captions = iter(captions)
    with open(path, "w") as file, open(lengths_path, "w") as lengths_file:
        separator = "["
        while part := list(itertools.islice(captions, 1000)):
            encoded = [encode_caption(caption, word_map, max_len) for caption in part]
            file.write(separator + json.dumps(encoded)[1:-1])
            lengths_file.write(separator + json.dumps([len(caption) + 2 for caption in part])[1:-1])
            separator = ", "
        for one in (file, lengths_file):
            one.write("]" if separator == ", " else "[]")
            sync(one)


# --- The whole run ---


def check_parameters(dataset, seed, **at_least_one):
    if not (isinstance(dataset, str) and re.fullmatch(r"[A-Za-z0-9._-]+", dataset)):
        raise InputFilesError(f"dataset must be a name of letters, digits, '.', '_' and '-', not {dataset!r}")
    for name, value in {"seed": seed, **at_least_one}.items():
        try:
            if isinstance(value, bool) or (operator.index(value) < 1 and name != "seed"):
                raise TypeError
        except TypeError:
            limit = "" if name == "seed" else " of at least 1"
            raise InputFilesError(f"{name} must be a whole number{limit}, not {value!r}") from None


@contextmanager
def one_run_at_a_time(folder):
    """Hold a lock on the folder."""
    def another():
        raise InputFilesError(f"{folder}: another run is writing to this folder; wait until it has ended")

    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(folder / ".create_input_files.lock", another))
        except OSError as error:
            raise InputFilesError(f"{folder}: the output folder cannot be written ({error.strerror})") from error
        yield


def check_disk_space(folder, splits, text_bytes, skip_bad):
    """Compare what is still to be written with the free space."""
    missing = [len(split.pictures) * split.row_bytes for split in splits if not split.finished]
    # leaving images out means one copy of that split's file
    copy = max(len(split.pictures) * split.row_bytes for split in splits) if skip_bad and any(missing) else 0
    needed, free = sum(missing) + copy + text_bytes, shutil.disk_usage(folder).free
    if needed > free:
        raise InputFilesError(f"{folder}: too little disk space, {needed / 1e9:.3f} GB are needed and "
                              f"{free / 1e9:.3f} GB are free; make room or choose another output folder")


def publish(splits, json_paths):
    """Give all files their final names.

    An older set's images go first and the new images come last, so whenever all ten names are there the
    ten belong together; a kill in between leaves ``.ready`` files from which the next run starts again.
    """
    ready = [split for split in splits if split.ready.exists()]
    for split in ready:
        split.path.unlink(missing_ok=True)
    for path in json_paths:
        os.replace(with_ending(path, ".part"), path)
    for split in ready:
        os.replace(split.ready, split.path)
    for split in splits:
        split.discard()


@contextmanager
def nothing_left_after_errors(folder, splits, json_paths):
    """Remove unfinished files after an error; a kill, Ctrl-C and a lost process leave what is complete."""
    try:
        yield
    except BrokenProcessPool as error:
        raise InputFilesError(
            "a decoding process ended: either the memory is full, or the script lacks the line "
            "if __name__ == '__main__': above its call. Run it again, with workers=1 if need be") from error
    except (InputFilesError, OSError) as error:
        for split in splits:
            split.discard()
        for path in json_paths:
            with_ending(path, ".part").unlink(missing_ok=True)
        if isinstance(error, InputFilesError):
            raise
        raise InputFilesError(f"{folder}: writing failed ({error.strerror or error})") from error


def create_input_files(dataset, karpathy_json_path, image_folder, captions_per_image=5, min_word_freq=5,
                       output_folder=".", max_len=50, *, seed=123, workers=None, skip_bad=False,
                       image_size=256):
    """Create the ten input files; the top of this module describes them.

    :param dataset: a name for the set, such as ``flickr8k``; part of the file names
    :param karpathy_json_path: JSON file with images, splits and tokenised captions
    :param image_folder: folder with the images named in the JSON
    :param captions_per_image: captions per image; more are sampled, fewer are topped up with repeats
    :param min_word_freq: a word seen less often in the training captions becomes ``<unk>``
    :param output_folder: where to write; made if need be
    :param max_len: captions with more words are left out, and so is an image that has only such ones
    :param seed: for the choice of captions
    :param workers: decoding processes; 1 decodes in this process, None is one per CPU core, 16 at most
    :param skip_bad: leave bad images out (missing, empty, damaged or without captions) instead of stopping
    :param image_size: side of the square images in pixels
    :return: summary, dict with ``data_name`` (base), ``splits`` (per split ``images``, ``captions``,
        ``captions_left_out``, ``images_left_out``), ``vocab_size`` (with the four special tokens),
        ``bad_images`` (list of {image, split, reason}), ``too_long_images`` (names of images without a
        caption of 1 to max_len words) and ``already_there`` (True when nothing had to be done)
    :raises InputFilesError: bad input, parameters or output folder, too little disk space; nothing is left
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit(1)  # a decoding process that runs the caller's unguarded script again; its parent explains
    check_parameters(dataset, seed, captions_per_image=captions_per_image, min_word_freq=min_word_freq,
                     max_len=max_len, image_size=image_size, workers=1 if workers is None else workers)
    data_name = f"{dataset}_{captions_per_image}_cap_per_img_{min_word_freq}_min_word_freq"
    folder = Path(output_folder)
    pictures, json_hash = read_karpathy(karpathy_json_path)
    usable, bad_images, too_long, stamps = select_pictures(pictures, image_folder, max_len, skip_bad)
    settings = [captions_per_image, min_word_freq, max_len, seed, image_size, skip_bad]
    settings = [FORMAT_VERSION, json_hash, stamps, *map(int, settings)]
    fingerprint = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    word_map_path = folder / f"WORDMAP_{data_name}.json"
    captions_paths, lengths_paths, image_paths = (
        [folder / f"{split}_{kind}_{data_name}.{ending}" for split in SPLITS]
        for kind, ending in (("CAPTIONS", "json"), ("CAPLENS", "json"), ("IMAGES", "hdf5")))
    json_paths = [*captions_paths, *lengths_paths, word_map_path]

    def open_splits():
        return [SplitFile(path, [p for p in usable if p.split == split], fingerprint, captions_per_image,
                          image_size) for split, path in zip(SPLITS, image_paths, strict=True)]

    def word_map_of(splits):  # too long captions count as well
        return build_word_map((c for picture in splits[0].kept for c in picture.captions), min_word_freq)

    def chosen_captions(split):
        for picture in tqdm(split.kept, desc="writing captions", unit="image", delay=2):
            yield from choose_captions(picture, captions_per_image, max_len, seed)

    splits = open_splits()
    if not splits[0].kept:
        raise InputFilesError(f"{karpathy_json_path}: there is no usable image in the training split")
    already_there = all(path.is_file() for path in json_paths) and all(
        read_stamp(path)[0] == fingerprint for path in image_paths)
    if not already_there:
        with one_run_at_a_time(folder):
            splits = open_splits()  # again, now that nobody else changes them
            with nothing_left_after_errors(folder, splits, json_paths):
                for split in splits:
                    if read_stamp(split.path)[0] == fingerprint or not split.finished:
                        split.discard()  # what a run with other settings left
                text_bytes = (2 * os.path.getsize(karpathy_json_path)
                              + 8 * len(usable) * captions_per_image * (max_len + 2))
                check_disk_space(folder, splits, text_bytes, skip_bad)
                write_images(splits, image_folder, image_size, workers, skip_bad)
                if not splits[0].kept:
                    raise InputFilesError(f"{image_folder}: no image of the training split can be decoded")
                word_map = word_map_of(splits)
                for split, path, lengths_path in zip(splits, captions_paths, lengths_paths, strict=True):
                    write_captions(with_ending(path, ".part"), with_ending(lengths_path, ".part"),
                                   chosen_captions(split), word_map, max_len)
                with_ending(word_map_path, ".part").write_text(json.dumps(word_map))
                publish(splits, json_paths)

    summary = {"data_name": data_name, "splits": {}, "bad_images": bad_images,
               "vocab_size": len(word_map_of(splits)),
               "too_long_images": [picture.name for picture in too_long], "already_there": already_there}
    for name, split in zip(SPLITS, splits, strict=True):
        bad_images += [{"image": split.pictures[index].name, "split": name, "reason": reason}
                       for index, reason in split.bad]
        unusable = [picture for picture in too_long if picture.split == name]
        summary["splits"][name] = {
            "images": len(split.kept), "captions": len(split.kept) * captions_per_image,
            "captions_left_out": sum(len(picture.captions) - len(picture.usable_captions(max_len))
                                     for picture in split.kept + unusable),
            "images_left_out": len(unusable) + sum(bad["split"] == name for bad in bad_images)}
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
    """Command line. :return: exit code, 0, or 1 after an error in the input, or 130 after Ctrl-C"""
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
    option("workers", type=int, help="decoding processes; default: one per CPU core, 16 at most")
    option("skip-bad", action="store_true",
           help="leave bad images out instead of stopping: missing, empty, damaged or without captions")
    try:
        create_input_files(**vars(parser.parse_args(arguments)))
    except InputFilesError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
