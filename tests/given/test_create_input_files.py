import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

import create_input_files as cif
from create_input_files import InputFilesError, create_input_files
from datasets import CaptionDataset
from lab.data.images import ImageFileError, load_image
from lab.data.vocabulary import SPECIAL_TOKENS

ROOT = Path(__file__).resolve().parents[2]
COLOUR = (200, 80, 40)


@pytest.fixture
def data(tmp_path):
    """A data set of 12 tiny images: 6 train, 2 restval, 2 val, 2 test; every image has 3 captions."""
    return make_data(tmp_path, 12)


def make_data(folder, n):
    rng = np.random.default_rng(0)
    (folder / "images" / "sub").mkdir(parents=True)
    entries = []
    for i in range(n):
        split = ["train", "train", "train", "restval", "val", "test"][i % 6]
        pixels = rng.integers(0, 256, (20 + i % 7, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / "sub" / f"{i}.png")
        sentences = [{"tokens": ["a", "cat", f"n{i}", f"c{c}"]} for c in range(3)]
        entries.append({"filepath": "sub", "filename": f"{i}.png", "split": split, "sentences": sentences})
    return Data(folder / "k.json", folder / "images", entries)


class Data(namedtuple("Data", "json images entries")):
    def run(self, output, k=2, freq=1, image_size=16, workers=1, **kwargs):
        self.json.write_text(json.dumps({"images": self.entries}))
        return create_input_files("toy", self.json, self.images, k, freq, output, workers=workers,
                                  image_size=image_size, **kwargs)

    def fails(self, output, match, **kwargs):
        """The run raises a matching error and leaves nothing behind."""
        before = everything(output)
        with pytest.raises(InputFilesError, match=match) as caught:
            self.run(output, **kwargs)
        assert everything(output) == before
        return str(caught.value)


def everything(folder):
    """Every file's bytes, by name."""
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()} if Path(folder).is_dir() else {}


def read(folder, split, base="toy_2_cap_per_img_1_min_word_freq"):
    """The content of one split, and the word map."""
    with h5py.File(folder / f"{split}_IMAGES_{base}.hdf5") as file:
        content = {"images": file["images"][:], "names": list(file["names"].asstr()[:]),
                   "references": [json.loads(r) for r in file["references"].asstr()[:]], **file.attrs}
    content["captions"] = json.loads((folder / f"{split}_CAPTIONS_{base}.json").read_text())
    content["lengths"] = json.loads((folder / f"{split}_CAPLENS_{base}.json").read_text())
    return content, json.loads((folder / f"WORDMAP_{base}.json").read_text())


def decode_row(row, length, word_map):
    """Indices back to words; checks start, end and padding."""
    words = {index: word for word, index in word_map.items()}
    assert words[row[0]] == "<start>" and words[row[length - 1]] == "<end>"
    assert all(index == word_map["<pad>"] for index in row[length:])
    return [words[index] for index in row[1:length - 1]]


# --- The files ---


def test_ten_files_and_their_content(data, tmp_path, capsys):
    summary = data.run(tmp_path / "out", max_len=6)
    base = "toy_2_cap_per_img_1_min_word_freq"
    expected = {f"{s}_{kind}_{base}.{end}" for s in ("TRAIN", "VAL", "TEST")
                for kind, end in (("IMAGES", "hdf5"), ("CAPTIONS", "json"), ("CAPLENS", "json"))}
    assert set(everything(tmp_path / "out")) == expected | {f"WORDMAP_{base}.json"}
    for split, wanted in (("TRAIN", ("train", "restval")), ("VAL", ("val",)), ("TEST", ("test",))):
        content, word_map = read(tmp_path / "out", split)
        entries = [e for e in data.entries if e["split"] in wanted]
        assert content["names"] == ["sub/" + e["filename"] for e in entries]
        assert content["references"] == [[s["tokens"] for s in e["sentences"]] for e in entries]
        assert content["captions_per_image"] == 2 and len(content["fingerprint"]) == 64
        assert content["images"].dtype == np.uint8 and content["images"].shape == (len(entries), 3, 16, 16)
        for image, name in zip(content["images"], content["names"], strict=True):
            assert np.array_equal(image, load_image(data.images / name, 16))
        assert len(content["captions"]) == len(content["lengths"]) == 2 * len(entries)
        for i, (row, length) in enumerate(zip(content["captions"], content["lengths"], strict=True)):
            words = decode_row(row, length, word_map)
            assert len(row) == 8 and length == 6
            if split == "TRAIN":
                assert words in content["references"][i // 2]
            else:  # its number is no training word
                assert words[:3] == ["a", "cat", "<unk>"]
        counts = {"images": len(entries), "captions": 2 * len(entries), "captions_left_out": 0,
                  "images_left_out": 0}
        assert summary["splits"][split] == counts
    assert summary["data_name"] == base and summary["vocab_size"] == len(word_map)
    assert base in capsys.readouterr().out


def test_default_image_size(data, tmp_path):
    del data.entries[1:]
    data.run(tmp_path, image_size=256)
    assert read(tmp_path, "TRAIN")[0]["images"].shape == (1, 3, 256, 256)
    assert read(tmp_path, "VAL")[0]["images"].shape == (0, 3, 256, 256)


def test_vocabulary_from_training_captions_only(data, tmp_path):
    sentences = {"train": "b b b a a d d <start>", "restval": "c c <start>", "val": "v v v d d d",
                 "test": "c t t"}
    for entry in data.entries:
        entry["sentences"] = [{"tokens": ["once" + entry["filename"]]}]
    for i, split in ((0, "train"), (3, "restval"), (4, "val"), (5, "test")):
        assert data.entries[i]["split"] == split
        data.entries[i]["sentences"] = [{"tokens": sentences[split].split()}]
    data.run(tmp_path, freq=2, k=1)
    base = "toy_1_cap_per_img_2_min_word_freq"
    train, word_map = read(tmp_path, "TRAIN", base)
    assert list(word_map) == ["<pad>", "b", "a", "c", "d", "<unk>", "<start>", "<end>"]
    assert list(word_map.values()) == list(range(8))
    words = decode_row(train["captions"][0], train["lengths"][0], word_map)
    assert words == "b b b a a d d <unk>".split()  # a token spelled like a special one is unknown
    assert train["references"][0] == [sentences["train"].split()]  # the references are never mapped


def test_sampling_and_topping_up(data, tmp_path):
    def chosen(folder, k, **kwargs):
        data.run(folder, k=k, **kwargs)
        content, word_map = read(folder, "TRAIN", f"toy_{k}_cap_per_img_1_min_word_freq")
        words = [tuple(decode_row(*pair, word_map)) for pair in zip(content["captions"], content["lengths"],
                                                                   strict=True)]
        return {name: words[i * k:i * k + k] for i, name in enumerate(content["names"])}

    few = chosen(tmp_path / "few", 2)
    assert all(len(set(captions)) == 2 for captions in few.values())  # without replacement
    many = chosen(tmp_path / "many", 8)
    assert all(len(set(captions)) == 3 for captions in many.values())  # all of them, and repeats
    assert len({tuple(c[-1] for c in captions) for captions in many.values()}) > 1
    assert chosen(tmp_path / "again", 2) == few
    assert chosen(tmp_path / "seed", 2, seed=5) != few
    del data.entries[0]
    data.entries.reverse()
    reordered = chosen(tmp_path / "reordered", 2)
    assert reordered == {name: few[name] for name in reordered} and len(reordered) == len(few) - 1


def test_too_long_and_empty_captions_are_left_out(data, tmp_path):
    data.entries[0]["sentences"] = [{"tokens": ["w"] * 5}, {"tokens": ["w"] * 4}, {"tokens": []}]
    data.entries[1]["sentences"] = [{"tokens": ["w"] * 5}, {"tokens": []}]
    summary = data.run(tmp_path, max_len=4)
    train, word_map = read(tmp_path, "TRAIN")
    assert train["names"][:2] == ["sub/0.png", "sub/2.png"]
    assert train["references"][0] == [["w"] * 5, ["w"] * 4]
    assert train["lengths"][:2] == [6, 6] and len(train["captions"][0]) == 6
    counts = {"images": 7, "captions": 14, "captions_left_out": 4, "images_left_out": 1}
    assert summary["splits"]["TRAIN"] == counts
    assert summary["too_long_images"] == ["sub/1.png"] and summary["bad_images"] == []


@pytest.mark.parametrize("blanks", ["", " ", "\n", "\t \u3000", "\x85"])
def test_tokens_are_words(data, tmp_path, blanks):
    data.run(tmp_path / "clean")
    for entry in data.entries:
        first, *rest = entry["sentences"]
        first["tokens"] = [blanks, *(blanks + token for token in first["tokens"]), blanks]
        rest[0]["tokens"] = [" ".join(rest[0]["tokens"])]
        entry["sentences"].append({"tokens": [blanks, blanks]})
    left_out = [split["captions_left_out"] for split in data.run(tmp_path / "blanks")["splits"].values()]
    assert left_out == [8, 2, 2]
    for split in cif.SPLITS:
        assert ({k: v for k, v in read(tmp_path / "blanks", split)[0].items() if k in ("captions", "references")}
                == {k: v for k, v in read(tmp_path / "clean", split)[0].items() if k in ("captions", "references")})


@pytest.mark.parametrize("skip_bad", [False, True])
def test_same_files_whatever_the_number_of_workers(tmp_path, skip_bad):
    data = make_data(tmp_path, 60)
    if skip_bad:
        for i in (0, 31, 59):
            (data.images / f"sub/{i}.png").write_bytes(b"no image")
    results = []
    for workers in (1, 2, 3):
        data.run(tmp_path / str(workers), workers=workers, skip_bad=skip_bad)
        results.append(everything(tmp_path / str(workers)))
    assert results[0] == results[1] == results[2] and len(results[0]) == 10


# --- Decoding ---


def test_fingerprint_of_the_pictures_alone(data, tmp_path):
    """It stays when captions or settings change, and changes with the pictures."""
    def fingerprints(**settings):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        data.run(out, **settings)
        return [read(out, split, f"toy_2_cap_per_img_{settings.get('freq', 1)}_min_word_freq")[0]["pictures"]
                for split in ("TRAIN", "VAL")]

    first = fingerprints()
    assert fingerprints(freq=3, seed=7) == first
    data.entries[0]["sentences"][0]["tokens"][0] = "another"
    assert fingerprints() == first
    assert all(one != other for one, other in zip(fingerprints(image_size=8), first, strict=True))
    Image.new("RGB", (9, 9)).save(data.images / "sub" / "0.png")
    changed = fingerprints()
    assert changed[0] != first[0] and changed[1] == first[1]


def colour_at(path, x=0.5, y=0.5, size=32):
    image = load_image(path, size)
    assert image.shape == (3, size, size) and image.dtype == np.uint8
    return image[:, int(y * size), int(x * size)].astype(int)


def close(colour, expected, tolerance=6):
    return np.abs(np.asarray(colour) - expected).max() <= tolerance


def save(image, path, **kwargs):
    image.save(path, **kwargs)
    return path


def plain(mode="RGB", colour=COLOUR):
    return Image.new("RGB", (40, 30), colour).convert(mode)


def ramp(dtype, top):
    return (np.tile(np.arange(40), (30, 1)) * (top / 39)).astype(dtype)


GRAY = round(0.299 * 200 + 0.587 * 80 + 0.114 * 40)


@pytest.mark.parametrize(("mode", "name", "expected"), [
    ("RGB", "x.png", COLOUR), ("RGB", "x.jpg", COLOUR), ("RGB", "x.webp", COLOUR), ("RGB", "x.bmp", COLOUR),
    ("L", "x.png", [GRAY] * 3), ("L", "x.jpg", [GRAY] * 3), ("LA", "x.png", [GRAY] * 3),
    ("P", "x.gif", COLOUR), ("P", "x.png", COLOUR), ("YCbCr", "x.jpg", COLOUR), ("CMYK", "x.jpg", COLOUR),
    ("CMYK", "x.tif", COLOUR)])
def test_colour_modes(tmp_path, mode, name, expected):
    image = plain().quantize(8) if mode == "P" else plain(mode)
    assert close(colour_at(save(image, tmp_path / name)), expected)


def test_adobe_cmyk_jpeg(tmp_path):
    path = save(Image.new("CMYK", (40, 30), (255, 0, 0, 0)), tmp_path / "x.jpg", quality=95)
    assert b"Adobe" in path.read_bytes()  # such files hold inverted values
    assert close(colour_at(path), (0, 255, 255))


def test_one_bit(tmp_path):
    pixels = np.zeros((30, 40), np.uint8)
    pixels[:, 20:] = 255
    path = save(Image.fromarray(pixels).convert("1"), tmp_path / "x.png")
    assert close(colour_at(path, 0.2), 0) and close(colour_at(path, 0.8), 255)


def test_transparency_becomes_white(tmp_path):
    rgba = Image.new("RGBA", (40, 30), (*COLOUR, 0))
    rgba.paste((*COLOUR, 255), (20, 0, 40, 30))
    rgba.paste((0, 0, 0, 128), (0, 20, 40, 30))
    palette = Image.new("P", (40, 30), 1)
    palette.putpalette([0, 0, 0, *COLOUR])
    palette.paste(0, (0, 0, 20, 30))
    paths = [save(rgba, tmp_path / "rgba.png"), save(rgba.convert("LA"), tmp_path / "la.png"),
             save(palette, tmp_path / "p.png", transparency=0),
             save(palette, tmp_path / "p.gif", transparency=0)]
    for path in paths:
        assert close(colour_at(path, 0.2, 0.2), 255)
        assert close(colour_at(path, 0.8, 0.2), [GRAY] * 3 if path.name == "la.png" else COLOUR)
    assert close(colour_at(paths[0], 0.2, 0.9), 127)


@pytest.mark.parametrize(("pixels", "name"), [
    (ramp(np.uint16, 65535), "x.png"), (ramp(np.uint16, 65535), "x.tif"), (ramp(">u2", 65535), "x.tif"),
    (ramp(np.int32, 65535), "x.tif"), (ramp(np.int32, 255), "x.tif"), (ramp(np.int32, 2_000_000), "x.tif"),
    (ramp(np.float32, 1), "x.tif"), (ramp(np.float32, 255), "x.tif")])
def test_deep_gray_is_scaled_not_clipped(tmp_path, pixels, name):
    path = save(Image.fromarray(pixels), tmp_path / name)
    with Image.open(path) as image:
        assert image.mode in ("I", "F") or image.mode.startswith("I;16")
    image = load_image(path, 40)
    assert close(image[:, 15], np.arange(40) * (255 / 39), 3)


def test_animated_gif_gives_its_first_frame(tmp_path):
    frames = [plain(colour=c) for c in (COLOUR, (0, 0, 255), (0, 255, 0))]
    path = save(frames[0], tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert close(colour_at(path), COLOUR)


@pytest.mark.parametrize("size", [(40, 30), (1000, 700)])  # the larger one is decoded at a smaller scale
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path, orientation, size):
    upright = Image.new("RGB", size, "white")
    upright.paste(COLOUR, (0, 0, size[0] // 2, size[1] // 2))  # top left
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the transpose that stores it so
    stored = upright.transpose(undo[orientation]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(stored, tmp_path / "x.jpg", exif=exif, quality=95)
    assert close(colour_at(path, 0.25, 0.25), COLOUR)
    for x, y in ((0.75, 0.25), (0.25, 0.75), (0.75, 0.75)):
        assert close(colour_at(path, x, y), 255)


def test_broken_exif_does_not_matter(tmp_path):
    assert close(colour_at(save(plain(), tmp_path / "x.jpg", exif=b"Exif\0\0MM\0*broken")), COLOUR)


def test_large_jpeg_is_decoded_at_a_smaller_scale_without_loss_of_quality(tmp_path, monkeypatch):
    y, x = np.mgrid[0:1200, 0:1600]
    pixels = np.stack([x * 255 / 1600, y * 255 / 1200, 128 + 100 * np.sin(x / 60)], 2).astype(np.uint8)
    path = save(Image.fromarray(pixels), tmp_path / "x.jpg", quality=95)
    loaded, original = [], Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda image, *a, **k: loaded.append(image.size)
                        or original(image, *a, **k))
    image = load_image(path, 200)
    assert loaded == [(400, 300)]  # an eighth would be less than the target
    exact = np.asarray(original(Image.fromarray(pixels), (200, 200), Image.Resampling.BOX)).transpose(2, 0, 1)
    assert np.abs(image.astype(int) - exact).mean() < 2


def test_resize_is_antialiased(tmp_path):
    stripes = np.zeros((300, 300), np.uint8)
    stripes[:, ::2] = 255
    image = load_image(save(Image.fromarray(stripes), tmp_path / "x.png"), 20)
    assert close(image[:, :, 2:-2], 127, 10)


def noise_file(path, **kwargs):
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    return save(Image.fromarray(pixels), path, **kwargs)


@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.gif", "x.webp", "x.tif", "progressive.jpg"])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.95])
def test_truncated_image(tmp_path, name, part):
    path = noise_file(tmp_path / name, **({"progressive": True} if "progressive" in name else {}))
    path.write_bytes(path.read_bytes()[:int(path.stat().st_size * part)])
    with pytest.raises(ImageFileError, match=f"{name}: this image cannot be decoded"):
        load_image(path, 32)


def test_no_image_and_decompression_bomb(tmp_path, monkeypatch):
    (tmp_path / "x.jpg").write_text("hello")
    with pytest.raises(ImageFileError, match="x.jpg: this image cannot be decoded"):
        load_image(tmp_path / "x.jpg")
    with pytest.raises(ImageFileError, match="y.jpg: there is no such file"):
        load_image(tmp_path / "y.jpg")
    noise_file(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ImageFileError, match="bomb.png: this image has too many pixels"):
        load_image(tmp_path / "bomb.png")


# --- Errors ---


@pytest.mark.parametrize(("content", "match"), [
    (None, "k.json: the Karpathy JSON cannot be read"), ("{", "k.json: this is not a valid JSON"),
    (b"\xff\xfe\x00\x00\xd8", "k.json: this is not a valid JSON"),
    ("[]", r"k.json: images\[0\] must have"), ('{"images": 3}', r"k.json: images\[0\] must have"),
    ('{"images": [3]}', r"k.json: images\[0\] must have a 'filename'"),
    ('{"images": [{"filename": "a.jpg", "split": "val"}]}', r"images\[0\] must have .*KeyError: 'sentences'"),
    ('{"images": [{"filename": "a.jpg", "split": "val", "sentences": []}, {"filename": "b.jpg", "sentences": []}]}',
     r"images\[1\] must have .*KeyError: 'split'"),
    ('{"images": [{"filename": "a.jpg", "split": "dev", "sentences": []}]}',
     r"a 'split' \(train, restval, val, test\).*KeyError: 'dev'"),
    ('{"images": [{"filename": "a.jpg", "split": "val", "sentences": [{}]}]}', "KeyError: 'tokens'"),
    ('{"images": [{"filename": "a.jpg", "split": "val", "sentences": [{"tokens": "a dog"}]}]}', "a str, no list"),
    ('{"images": [{"filename": "a.jpg", "split": "val", "sentences": [{"tokens": {"a": 1}}]}]}', "a dict, no list"),
    ('{"images": [{"filename": "狗.jpg"}]}'.encode('gbk'), "k.json: this is not a valid JSON file in UTF-8"),
    ('{"images": [{"filename": "a.jpg", "split": "val", "sentences": [{"tokens": [1]}]}]}', "a list of words"),
    ('{"images": [{"filepath": 3, "filename": "a.jpg", "split": "val", "sentences": []}]}', "TypeError"),
    ('{"images": []}', "k.json: there is no usable image in the training split")])
def test_bad_json(tmp_path, content, match):
    path = tmp_path / "k.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputFilesError, match=match):
        create_input_files("toy", path, tmp_path, output_folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_captions_per_image(data, tmp_path):
    data.fails(tmp_path / "out", "captions_per_image must be at least 1, not 0", k=0)


def test_missing_images_are_found_before_decoding(data, tmp_path, monkeypatch):
    (data.images / "sub/3.png").unlink()
    (data.images / "sub/5.png").write_bytes(b"")
    monkeypatch.setattr(cif, "load_image", lambda *a: pytest.fail("decoded before all images were checked"))
    data.fails(tmp_path / "out", r"sub/3.png: the file is missing; 2 of 12 images are .*--skip-bad")
    (data.images / "sub/3.png").mkdir()
    data.fails(tmp_path / "out", "sub/3.png: the file is missing")
    assert not (tmp_path / "out").exists()


def test_zero_byte_image(data, tmp_path):
    (data.images / "sub/5.png").write_bytes(b"")
    data.fails(tmp_path / "out", r"sub/5.png: the file is empty \(0 bytes\)")


def test_image_without_captions(data, tmp_path):
    data.entries[2]["sentences"] = []
    data.fails(tmp_path / "out", "sub/2.png: the JSON has no captions for it")


@pytest.mark.parametrize("workers", [1, 2])
def test_damaged_image_leaves_nothing_behind(data, tmp_path, workers):
    path = noise_file(data.images / "sub/9.png")
    path.write_bytes(path.read_bytes()[:5000])
    match = "sub/9.png: this image cannot be decoded.*; 1 of 8 images .*--skip-bad"
    data.fails(tmp_path / "out", match, workers=workers)


def test_image_folder_may_be_a_link_and_paths_may_turn_back_inside_it(data, tmp_path):
    (tmp_path / "link").symlink_to(data.images)
    (data.images / "inner.png").symlink_to(data.images / "sub/1.png")
    data.entries[0]["filename"] = "../sub/0.png"
    data.entries[1].update(filename="inner.png", filepath="")
    data._replace(images=tmp_path / "link").run(tmp_path / "out")
    assert read(tmp_path / "out", "TRAIN")[0]["names"][:3] == ["sub/0.png", "inner.png", "sub/2.png"]


def test_no_training_images(data, tmp_path):
    for entry in data.entries:
        entry["split"] = "val"
    data.fails(tmp_path / "out", "k.json: there is no usable image in the training split")
    data.entries[0]["split"] = "train"
    (data.images / "sub/0.png").write_bytes(b"no image")
    data.fails(tmp_path / "out", "no image of the split TRAIN can be decoded: this image cannot", skip_bad=True)


def test_output_folder_that_cannot_be_written(data, tmp_path):
    (tmp_path / "file").write_text("x")
    data.fails(tmp_path / "file" / "out", "out: the output folder cannot be written")


def test_too_little_disk_space(data, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9, 1_000_000))
    data.fails(tmp_path / "out", r"out: too little disk space, 0.00\d GB are needed and 0.001 GB are free",
               image_size=256)
    needed = 12 * 3 * 256 * 256
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9, needed - 1))
    data.fails(tmp_path / "out", "too little disk space", image_size=256)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9, needed))
    data.run(tmp_path / "out", image_size=256)


def test_full_disk_while_writing(data, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    data.fails(tmp_path / "out", "out: the output folder cannot be written .*No space left on device")


def test_skip_bad_lists_what_it_leaves_out(data, tmp_path, capsys):
    good = tmp_path / "good"
    (data.images / "sub/0.png").unlink()
    (data.images / "sub/1.png").write_bytes(b"")
    (data.images / "sub/2.png").write_bytes(b"no image")
    broken = noise_file(data.images / "sub/10.png")
    broken.write_bytes(broken.read_bytes()[:5000])
    data.entries[11]["sentences"] = []
    summary = data.run(tmp_path / "out", skip_bad=True)
    reasons = {bad["image"]: (bad["split"], bad["reason"]) for bad in summary["bad_images"]}
    assert set(reasons) == {f"sub/{i}.png" for i in (0, 1, 2, 10, 11)} and len(summary["bad_images"]) == 5
    for i, split, word in ((0, "TRAIN", "missing"), (1, "TRAIN", "empty"), (2, "TRAIN", "cannot be decoded"),
                           (10, "VAL", "cannot be decoded"), (11, "TEST", "no captions")):
        assert reasons[f"sub/{i}.png"][0] == split and word in reasons[f"sub/{i}.png"][1]
        assert f"sub/{i}.png" in capsys.readouterr().out or i
    assert [summary["splits"][s]["images_left_out"] for s in ("TRAIN", "VAL", "TEST")] == [3, 1, 1]
    again = data.run(tmp_path / "out", skip_bad=True)
    assert again.pop("already_there") and not summary.pop("already_there") and again == summary
    for i in (11, 10, 2, 1, 0):  # the same as if they had never been there
        del data.entries[i]
    data.run(good)
    for split in ("TRAIN", "VAL", "TEST"):
        found, wanted = read(tmp_path / "out", split), read(good, split)
        assert found[1] == wanted[1] and np.array_equal(found[0].pop("images"), wanted[0].pop("images"))
        assert found[0].pop("fingerprint") != wanted[0].pop("fingerprint") and found[0] == wanted[0]


# --- A picture in two splits ---


def test_a_picture_in_two_splits_is_refused(data, tmp_path, monkeypatch):
    """Number 0 is of train, 4 of val, 5 of test."""
    data.entries[5].update(filepath="", filename="./sub/../sub/0.png")
    data.entries[11].update(filename="4.png")
    monkeypatch.setattr(cif, "load_image", lambda *a: pytest.fail("decoded before the splits were checked"))
    data.fails(tmp_path / "out", "0.png: this image is in the splits TRAIN and TEST; 2 of 10 .* --allow-shared-images")
    assert not (tmp_path / "out").exists()


def test_a_picture_in_two_splits_is_taken_when_asked_for(data, tmp_path):
    data.entries[5].update(filename="0.png")
    summary = data.run(tmp_path / "out", allow_shared_images=True)
    assert [summary["splits"][split]["images"] for split in cif.SPLITS] == [8, 2, 2]
    assert {read(tmp_path / "out", split)[0]["names"][0] for split in ("TRAIN", "TEST")} == {"sub/0.png"}
    data.fails(tmp_path / "out", "0.png: this image is in the splits TRAIN and TEST")  # although its files are there
    result = subprocess.run(command(data, tmp_path / "command"), cwd=ROOT, text=True, capture_output=True)
    assert result.returncode == 1 and result.stderr.startswith("error: ") and "--allow-shared-images" in result.stderr
    allowed = command(data, tmp_path / "command", "--allow-shared-images")
    assert subprocess.run(allowed, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


def test_a_picture_twice_in_one_split_is_taken(data, tmp_path):
    data.entries[3].update(filename="0.png")  # restval and train are TRAIN
    summary = data.run(tmp_path / "out")
    assert [summary["splits"][split]["images"] for split in cif.SPLITS] == [8, 2, 2]


def test_pictures_that_are_left_out_are_in_no_split(data, tmp_path):
    for number in (0, 5):
        data.entries[number].update(filename="gone.png")
    assert len(data.run(tmp_path / "out", skip_bad=True)["bad_images"]) == 2


# --- Reruns, kills ---


def test_rerun_does_nothing(data, tmp_path, monkeypatch):
    data.run(tmp_path / "out")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    monkeypatch.setattr(cif, "write_images", lambda *a: pytest.fail("worked again"))
    assert data.run(tmp_path / "out", workers=2)["already_there"]
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("change", ["max_len", "seed", "json", "image", "image_size", "lost file",
                                    "cut file"])
def test_changed_settings_or_files_are_done_again(data, tmp_path, change):
    out = tmp_path / "out"
    data.run(out)
    kwargs = {}
    if change in ("max_len", "seed", "image_size"):
        kwargs[change] = 20
    elif change == "json":
        data.entries[4]["sentences"][0]["tokens"].append("a")
    elif change == "image":
        plain().save(data.images / "sub/4.png")
    elif change == "lost file":
        next(out.glob("VAL_CAPLENS*")).unlink()
    else:
        path = next(out.glob("VAL_IMAGES*"))
        path.write_bytes(path.read_bytes()[:1000])
    assert not data.run(out, **kwargs)["already_there"]
    data.run(tmp_path / "fresh", **kwargs)
    assert everything(out) == everything(tmp_path / "fresh")


def test_an_older_set_ends_when_the_first_new_split_is_complete(data, tmp_path):
    data.run(tmp_path / "out")
    (data.images / "sub/0.png").write_bytes(b"no image")  # of TRAIN
    data.fails(tmp_path / "out", "sub/0.png: this image cannot be decoded")
    plain().save(data.images / "sub/0.png")
    (data.images / "sub/4.png").write_bytes(b"no image")  # of VAL
    with pytest.raises(InputFilesError, match="sub/4.png: this image cannot be decoded"):
        data.run(tmp_path / "out")
    assert {name.partition("_toy")[0] for name in everything(tmp_path / "out")} == {
        "TRAIN_IMAGES", "VAL_IMAGES", "TEST_IMAGES"}


@pytest.mark.parametrize("steps", range(0, 31, 2))
@pytest.mark.parametrize(("older", "without_val"), [(False, False), (True, False), (False, True)])
def test_stop_at_any_step_of_naming(data, tmp_path, monkeypatch, steps, older, without_val):
    """All ten names are there only when the ten belong together, whichever rename or removal is the last."""
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    if without_val:
        data.entries[:] = [entry for entry in data.entries if entry["split"] != "val"]
    if older:
        data.run(out, seed=7)
    data.run(fresh)
    finals = sorted(everything(fresh))
    valid = [everything(fresh), everything(out)]
    left, replace, unlink = [steps], os.replace, Path.unlink

    def counted(real):
        def step(path, *args, **kwargs):
            if any(str(p).endswith(tuple(finals)) for p in (path, *args)):
                left[0] -= 1
                if left[0] < 0:
                    raise SystemExit  # neither an error nor Ctrl-C: as a kill, it cleans nothing up
            return real(path, *args, **kwargs)
        return step

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", counted(replace))
        patch.setattr(Path, "unlink", counted(unlink))
        with pytest.raises(SystemExit):
            data.run(out)
            raise SystemExit
    found = everything(out)
    if set(finals) <= set(found):
        assert {name: found[name] for name in finals} in valid
    data.run(out)
    assert everything(out) == valid[0]


def test_splits_of_other_settings_are_made_again(data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    data.run(tmp_path / "fresh")
    with monkeypatch.context() as patch:
        patch.setattr(cif, "build_word_map", lambda *a: sys.exit())
        with pytest.raises(SystemExit):
            data.run(out, seed=7)  # all its splits are complete
    next(out.glob("TEST_IMAGES*")).rename(out / ".TEST_IMAGES_toy_2_cap_per_img_1_min_word_freq.hdf5.7.part")
    (out / ".lock").touch()  # both of a run that was killed
    data.run(out)
    assert everything(out) == everything(tmp_path / "fresh")


def command(data, out, *options, prelude=""):
    """Run as a subprocess."""
    code = (f"{prelude}\nimport sys, create_input_files as c\n"
            "if __name__ == '__main__':\n    sys.exit(c.main(sys.argv[1:]))")
    return [sys.executable, "-c", code, "--dataset", "toy", "--karpathy-json-path", str(data.json),
            "--image-folder", str(data.images), "--captions-per-image", "2", "--min-word-freq", "1",
            "--output-folder", str(out), *options]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_run_after_a_stop_decodes_the_unfinished_splits_only(data, tmp_path, monkeypatch, stop):
    data.run(tmp_path / "fresh")
    sizes = [sum(cif.SPLIT_OF[entry["split"]] == split for entry in data.entries) for split in cif.SPLITS]
    loads, original = [], load_image

    def stop_in_the_second_split(path, size):
        loads.append(path)
        if len(loads) == sizes[0] + 1:
            raise stop
        return original(path, size)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(cif, "load_image", stop_in_the_second_split)
        with pytest.raises(stop):
            data.run(out)
        assert {name.partition("_")[0] for name in everything(out)} == {"TRAIN"}
        loads.clear()
        sizes[0] = 10 ** 9  # no more stops
        data.run(out)
    assert len(loads) == sizes[1] + sizes[2]
    assert everything(out) == everything(tmp_path / "fresh")


# --- Command line and processes ---


def run_cli(*arguments):
    return subprocess.run([sys.executable, "create_input_files.py", *map(str, arguments)], cwd=ROOT,
                          text=True, capture_output=True)


def test_command_line(data, tmp_path, capsys):
    data.run(tmp_path / "function", image_size=256, workers=1)
    names = ["--dataset", "toy", "--karpathy_json_path", data.json, "--image-folder", data.images,
             "--captions_per_image", 2, "--min-word-freq", 1, "--output_folder", tmp_path / "command"]
    result = run_cli(*names, "--workers", 2)
    assert result.returncode == 0 and "8 images" in result.stdout and "image/s" in result.stderr
    assert everything(tmp_path / "command") == everything(tmp_path / "function")
    (data.images / "sub/5.png").unlink()
    result = run_cli(*names)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ") and "5.png" in result.stderr
    with pytest.raises(SystemExit, match="0"):
        cif.main(["--help"])
    help_text = capsys.readouterr().out
    for option in ("dataset", "karpathy-json-path", "image-folder", "captions-per-image", "min-word-freq",
                   "output-folder", "max-len", "seed", "workers", "skip-bad", "allow-shared-images"):
        assert "--" + option in help_text and "--" + option.replace("-", "_") in help_text


def test_a_script_without_a_main_guard(tmp_path):
    data = make_data(tmp_path, 12)
    data.json.write_text(json.dumps({"images": data.entries * 40}))
    script = tmp_path / "prepare.py"
    script.write_text(f"""from create_input_files import create_input_files
create_input_files("toy", {str(data.json)!r}, {str(data.images)!r}, 2, 1, {str(tmp_path / "out")!r}, workers=3)""")
    result = subprocess.run([sys.executable, script], timeout=60, capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert result.returncode == 0 and len(everything(tmp_path / "out")) == 10, result.stderr


@pytest.mark.parametrize("kinds", ["*", "*.hdf5", "WORDMAP*"])
def test_files_of_another_program_stay(data, tmp_path, kinds):
    """As of the tutorial that the names come from."""
    out, name = tmp_path / "out", data.run(tmp_path / "lab")["data_name"]
    out.mkdir()
    for path in (tmp_path / "lab").glob(kinds):
        if path.suffix == ".hdf5":
            with h5py.File(path, "r+") as file:
                del file.attrs["fingerprint"], file["references"]
        path.rename(out / path.name)
    before = everything(out)
    summary = data.run(out)
    after = everything(out)
    assert {name: after[name] for name in before} == before and len(after) == len(before) + 10
    CaptionDataset(out, summary["data_name"], "VAL")
    again = data.run(out)
    assert again["already_there"] and again["data_name"] == summary["data_name"] and everything(out) == after
    if kinds == "*":
        with pytest.raises(ValueError, match="VAL_IMAGES.*was not written by create_input_files of this lab"):
            CaptionDataset(out, name, "VAL")


# --- Real photos ---


def test_photos_of_odd_sizes(tmp_path, shared_data):
    captions = json.loads((shared_data / "originals" / "captions.json").read_text())
    names = sorted(captions)
    entries = [{"filename": name, "split": "train" if i % 6 else ("val" if i % 12 else "test"),
                "sentences": [{"tokens": text.lower().split()} for text in captions[name]]}
               for i, name in enumerate(names)]
    path = tmp_path / "k.json"
    path.write_text(json.dumps({"images": entries}))
    summary = create_input_files("photos", path, shared_data / "originals", 5, 2, tmp_path)
    train, word_map = read(tmp_path, "TRAIN", "photos_5_cap_per_img_2_min_word_freq")
    assert train["names"] == [e["filename"] for e in entries if e["split"] == "train"]
    for i in (0, 7, 20):
        with Image.open(shared_data / "originals" / train["names"][i]) as photo:
            exact = np.asarray(photo.convert("RGB").resize((256, 256), Image.Resampling.BOX))
        assert np.abs(train["images"][i].transpose(1, 2, 0).astype(int) - exact).mean() < 8
    counts = Counter(t for e in entries if e["split"] == "train" for s in e["sentences"] for t in s["tokens"])
    assert set(word_map) - set(SPECIAL_TOKENS) == {word for word, n in counts.items() if n >= 2}
    assert summary["splits"]["TRAIN"]["images"] == len(train["names"]) and not summary["bad_images"]


def test_of_two_runs_at_once_the_second_waits_for_the_first(data, tmp_path, monkeypatch):
    """As of two notebooks: the first is stopped while it decodes, and goes on when the second has had its time."""
    decoding, go_on, real = threading.Event(), threading.Event(), cif.write_images
    written = []

    def write_images(file, *args):
        written.append(file.name)
        decoding.set()
        assert go_on.wait(60)
        real(file, *args)

    monkeypatch.setattr(cif, "write_images", write_images)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(data.run, tmp_path / "out")
        assert decoding.wait(60)
        second = pool.submit(data.run, tmp_path / "out")
        time.sleep(1)
        assert len(written) == 1 and not second.done()
        assert (tmp_path / "out/.lock").stat().st_mode & 0o777 == 0o666  # of other users, too
        go_on.set()
        assert first.result(60)["splits"] == second.result(60)["splits"]
    assert len(written) == 3
