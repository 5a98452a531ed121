"""The ten input files: what is in them, pictures of every kind, bad input, and runs that are stopped."""

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

import create_input_files as cif
from create_input_files import SPLIT_OF, SPLITS, create_input_files
from datasets import CaptionDataset
from lab.data.images import load_image
from lab.data.vocabulary import load_word_map

BASE = "toy_2_cap_per_img_1_min_word_freq"
COLOUR = (200, 80, 40)
GRAY = [round(0.299 * 200 + 0.587 * 80 + 0.114 * 40)] * 3


class Data:
    """12 tiny pictures: 6 train, 2 restval, 2 val, 2 test; every one has 3 captions."""

    def __init__(self, folder):
        self.json, self.images, self.entries = folder / "k.json", folder / "images", []
        (self.images / "sub").mkdir(parents=True)
        for i in range(12):
            noise(20 + i % 7, 30).save(self.images / f"sub/{i}.png")
            split = ["train", "train", "train", "restval", "val", "test"][i % 6]
            sentences = [{"tokens": ["a", "cat", f"n{i}", f"c{c}"]} for c in range(3)]
            self.entries.append({"filepath": "sub", "filename": f"{i}.png", "split": split, "sentences": sentences})

    def run(self, output, k=2, freq=1, **options):
        self.json.write_text(json.dumps({"images": self.entries}))
        return create_input_files("toy", self.json, self.images, k, freq, output, **options)

    def fails(self, output, match, **options):
        """The run raises a matching error and leaves nothing behind."""
        before = everything(output)
        with pytest.raises((OSError, ValueError), match=match):
            self.run(output, **options)
        assert everything(output) == before

    def damage(self, *numbers):
        for number in numbers:
            path = self.images / f"sub/{number}.png"
            os.truncate(path, path.stat().st_size // 2)


def noise(height, width):
    return Image.fromarray(np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture
def data(tmp_path):
    return Data(tmp_path)


def everything(folder):
    """Every file's bytes, by name; but for that of the lock."""
    return {path.name: path.read_bytes() for path in Path(folder).glob("*") if path.name != ".lock"}


def counts(printed, split):
    """What a run prints of a split: images, captions, images left out, captions left out."""
    return [*map(int, re.findall(r"\d+", re.search(rf"  {split} .*", printed)[0]))]


def lines_of_left_out(printed):
    """:return: dict name of a picture -> why it is left out"""
    return dict(re.findall("  left out: (.*?): (.*)", printed))


def read(folder, split, base=BASE):
    """A split's ``CaptionDataset`` and its captions as words."""
    dataset, words, captions = CaptionDataset(folder, base, split), list(load_word_map(folder, base)), []
    for number in range(len(dataset)):
        image, caption, caplen = dataset[number]
        assert torch.equal(image, dataset.image(number // dataset.cpi)) and not caption[caplen:].any()
        start, *those, end = (words[index] for index in caption[:caplen])
        assert (start, end) == ('<start>', '<end>')
        captions.append(those)
    return dataset, captions


# --- The files ---


def test_ten_files_and_their_content(data, tmp_path, capsys):
    assert data.run(tmp_path / "out", max_len=6) == BASE
    printed = capsys.readouterr().out
    assert set(everything(tmp_path / "out")) == {f"WORDMAP_{BASE}.json"} | {
        f"{split}_{kind}_{BASE}.{end}" for split in SPLITS
        for kind, end in (("IMAGES", "hdf5"), ("CAPTIONS", "json"), ("CAPLENS", "json"))}
    for split in SPLITS:
        dataset, captions = read(tmp_path / "out", split)
        entries = [entry for entry in data.entries if SPLIT_OF[entry["split"]] == split]
        assert dataset.names == ["sub/" + entry["filename"] for entry in entries]
        assert dataset.references == [[s["tokens"] for s in entry["sentences"]] for entry in entries]
        assert dataset.cpi == 2 and dataset.captions.shape == (2 * len(entries), 8)
        for number, name in enumerate(dataset.names):
            assert np.array_equal(dataset.image(number), load_image(data.images / name))
        for i, words in enumerate(captions):
            if split == "TRAIN":
                assert words in dataset.references[i // 2]
            else:  # its number is no training word
                assert words[:3] == ["a", "cat", "<unk>"] and len(words) == 4
        assert counts(printed, split) == [len(entries), 2 * len(entries), 0, 0]
    assert BASE in printed and f"{2 + 8 + 3 + 4} entries" in printed  # a cat, n0 ..., c0 ..., special


def test_vocabulary_from_training_captions_only(data, tmp_path):
    for entry in data.entries:
        entry["sentences"] = [{"tokens": ["once" + entry["filename"]]}]
    for i, words in ((0, "b b b a a d d <start>"), (3, "c c <start>"), (4, "v v v d d d"), (5, "c t t")):
        data.entries[i]["sentences"] = [{"tokens": words.split()}]
    name = data.run(tmp_path, freq=2, k=1)
    dataset, captions = read(tmp_path, "TRAIN", name)
    assert load_word_map(tmp_path, name) == {word: index for index, word in enumerate(
        ["<pad>", "b", "a", "c", "d", "<unk>", "<start>", "<end>"])}
    assert captions[0] == "b b b a a d d <unk>".split()  # a token spelled like a special one is unknown
    assert dataset.references[0] == ["b b b a a d d <start>".split()]  # the references are never mapped


def test_sampling_and_topping_up(data, tmp_path):
    def chosen(folder, k, **options):
        name = data.run(tmp_path / folder, k=k, **options)
        dataset, captions = read(tmp_path / folder, "TRAIN", name)
        return {name: list(map(tuple, captions[i * k:i * k + k])) for i, name in enumerate(dataset.names)}

    few, many = chosen("few", 2), chosen("many", 8)
    assert all(len(set(captions)) == 2 for captions in few.values())  # without replacement
    assert all(len(set(captions)) == 3 for captions in many.values())  # all of them, and repeats
    assert len({tuple(c[-1] for c in captions) for captions in many.values()}) > 1
    assert chosen("again", 2) == few
    del data.entries[0]
    data.entries.reverse()
    reordered = chosen("reordered", 2)
    assert reordered == {name: few[name] for name in reordered} and len(reordered) == len(few) - 1


def test_too_long_and_empty_captions_are_left_out_and_blanks_are_no_words(data, tmp_path, capsys):
    data.entries[0]["sentences"] = [{"tokens": ["long"] * 5}, {"tokens": ["w"] * 4}, {"tokens": ["", "\t \u3000\n"]}]
    data.entries[1]["sentences"] = [{"tokens": ["w"] * 5}, {"tokens": []}]
    data.entries[2]["sentences"] = [{"tokens": ["", "\u3000a", " ", "b c\x85"]}]
    data.run(tmp_path, max_len=4)
    dataset, captions = read(tmp_path, "TRAIN")
    assert dataset.names[:2] == ["sub/0.png", "sub/2.png"]
    assert captions[:4] == [["w"] * 4] * 2 + [["a", "b", "c"]] * 2
    assert dataset.references[:2] == [[["long"] * 5, ["w"] * 4], [["a", "b", "c"]]]
    assert "long" in load_word_map(tmp_path, BASE)
    printed = capsys.readouterr().out
    assert counts(printed, "TRAIN") == [7, 14, 1, 4] and lines_of_left_out(printed).keys() == {"sub/1.png"}


def test_a_split_without_pictures_cannot_be_read(data, tmp_path):
    for entry in data.entries:
        entry["split"] = "train"
    data.run(tmp_path)
    with pytest.raises(ValueError, match=f"VAL_IMAGES_{BASE}.hdf5"):
        CaptionDataset(tmp_path, BASE, "VAL")


# --- Pictures of every kind ---


def colour_at(path, x=0.5, y=0.5):
    return load_image(path)[:, int(y * 256), int(x * 256)].astype(int)


def close(colour, expected, tolerance=6):
    return np.abs(np.asarray(colour, dtype=int) - expected).max() <= tolerance


def save(image, path, **options):
    image.save(path, **options)
    return path


@pytest.mark.parametrize(("mode", "ending", "expected"), [
    ("RGB", "png", COLOUR), ("RGB", "jpg", COLOUR), ("RGB", "webp", COLOUR), ("L", "jpg", GRAY), ("LA", "png", GRAY),
    ("P", "png", COLOUR), ("RGBA", "png", COLOUR), ("RGBA", "gif", COLOUR), ("YCbCr", "jpg", COLOUR),
    ("CMYK", "tif", COLOUR)])
def test_colour_modes_and_transparency_that_becomes_white(tmp_path, mode, ending, expected):
    image, clear = Image.new("RGB", (40, 30), COLOUR), mode in ("LA", "P", "RGBA")
    if clear:
        alpha = Image.new("L", image.size, 255)
        alpha.paste(0, (0, 0, 20, 30))  # the left half
        image.putalpha(alpha)
    path = save(image.quantize(8) if mode == "P" else image.convert(mode), tmp_path / f"x.{ending}")
    assert close(colour_at(path, x=0.8), expected) and close(colour_at(path, x=0.2), 255 if clear else expected)


@pytest.mark.parametrize(("dtype", "top", "ending"), [
    (np.uint16, 65535, "png"), (">u2", 65535, "tif"), (np.int32, 65535, "tif"), (np.int32, 255, "tif"),
    (np.int32, 2_000_000, "tif"), (np.float32, 1, "tif"), (np.float32, 255, "tif")])
def test_deep_gray_is_scaled_not_clipped(tmp_path, dtype, top, ending):
    pixels = (np.tile(np.arange(256), (30, 1)) * (top / 255)).astype(dtype)
    image = load_image(save(Image.fromarray(pixels), tmp_path / f"x.{ending}"))
    assert close(image[:, 15], np.arange(256), 3)


def test_broken_exif(tmp_path):
    image = Image.new("RGB", (40, 30), COLOUR)
    assert close(colour_at(save(image, tmp_path / "x.jpg", exif=b"Exif\0\0MM\0*broken")), COLOUR)


def test_large_pictures_are_averaged(tmp_path):
    """A JPEG may be decoded at a smaller scale, but without loss of quality; and fine stripes become grey."""
    y, x = np.mgrid[0:1200, 0:1600]
    pixels = np.stack([x * 255 / 1600, y * 255 / 1200, 128 + 100 * np.sin(y / 6)], 2).astype(np.uint8)
    image = load_image(save(Image.fromarray(pixels), tmp_path / "x.jpg", quality=95))
    exact = np.asarray(Image.fromarray(pixels).resize((256, 256), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert np.abs(image.astype(int) - exact).mean() < 2
    stripes = np.zeros((2560, 2560), np.uint8)
    stripes[:, ::2] = 255
    image = load_image(save(Image.fromarray(stripes), tmp_path / "x.png"))
    assert close(image[:, :, 2:-2], 127, 10)


@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.gif", "x.webp", "x.tif", "progressive.jpg"])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.95])
def test_truncated_image(tmp_path, name, part):
    path = save(noise(300, 400), tmp_path / name, **({"progressive": True} if "progressive" in name else {}))
    path.write_bytes(path.read_bytes()[:int(path.stat().st_size * part)])
    with pytest.raises(ValueError, match=f"{name}.*cannot be decoded"):
        load_image(path)


def test_no_image_and_decompression_bomb(tmp_path, monkeypatch):
    (tmp_path / "x.jpg").write_text("hello")
    save(noise(300, 400), tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    for match in ("x.jpg.*cannot be decoded", "bomb.png.*exceeds limit"):
        with pytest.raises(ValueError, match=match):
            load_image(tmp_path / match.partition(".*")[0])


# --- Input that cannot be used ---


@pytest.mark.parametrize(("content", "match"), [
    (b"{", "JSON"), ('{"images": [{"filename": "狗.jpg"}]}'.encode("gbk"), "UTF-8"), (b"[]", r"images\[0\]"),
    (b'{"images": [3]}', r"images\[0\].*filename"), (b'{"images": []}', "training split")])
def test_bad_json(data, tmp_path, content, match):
    data.json.write_bytes(content)
    with pytest.raises(ValueError, match=f"k.json.*{match}"):
        create_input_files("toy", data.json, data.images, output_folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("change", "match"), [
    ({"split": "dev"}, "restval.*'dev'"), ({"filepath": 3}, "TypeError"), ({"sentences": [{}]}, "KeyError: 'tokens'"),
    ({"sentences": [{"tokens": "a dog"}]}, "text"), ({"sentences": [{"tokens": [1]}]}, "list of words")])
def test_a_bad_entry_is_named(data, tmp_path, change, match):
    data.entries[1].update(change)
    data.fails(tmp_path / "out", rf"k.json.*images\[1\].*{match}")


@pytest.mark.parametrize(("change", "match"), [
    (lambda data: (data.images / "sub/3.png").unlink(), "3.png.*missing.*1 of 12.*--skip-bad"),
    (lambda data: data.entries[3].update(filename=""), "sub.*missing"),  # a folder
    (lambda data: (data.images / "sub/5.png").write_bytes(b""), "5.png.*empty"),
    (lambda data: data.entries[2].update(sentences=[]), "2.png.*no captions"),
    (lambda data: data.entries[5].update(filepath="", filename="./sub/../sub/1.png"),
     "sub/1.png.*TRAIN and TEST"),
    (lambda data: data.damage(9), "0.png.*cannot be decoded.*2 of 8.*--skip-bad")])
def test_bad_input_leaves_nothing_behind(data, tmp_path, change, match):
    data.damage(0)  # what takes long, decoding, comes last: anything else is found before
    change(data)
    data.fails(tmp_path / "out", match)


def test_a_picture_in_restval_and_train_is_one_with_the_captions_of_both(data, tmp_path):
    data.entries[3].update(filename="1.png")
    captions = [sentence["tokens"] for i in (1, 3) for sentence in data.entries[i]["sentences"]]
    data.run(tmp_path)
    assert captions in read(tmp_path, "TRAIN")[0].references


def test_skip_bad_lists_what_it_leaves_out(data, tmp_path, capsys):
    (data.images / "sub/0.png").unlink()
    (data.images / "sub/1.png").write_bytes(b"")
    (data.images / "sub/2.png").write_bytes(b"no image")
    data.damage(10)
    data.entries[11]["sentences"] = []
    data.run(tmp_path / "out", skip_bad=True)
    printed = capsys.readouterr().out
    reasons = lines_of_left_out(printed)
    for i, reason in ((0, "missing"), (1, "empty"), (2, "cannot be decoded"), (10, "cannot be decoded"),
                      (11, "no captions")):
        assert reason in reasons.pop(f"sub/{i}.png")
    assert not reasons and [counts(printed, split)[2] for split in SPLITS] == [3, 1, 1]
    data.run(tmp_path / "out", skip_bad=True)
    assert "already there" in capsys.readouterr().out
    for i in (11, 10, 2, 1, 0):  # the same as if they had never been there
        del data.entries[i]
    data.run(tmp_path / "good")
    for split in SPLITS:
        (found, captions), (wanted, wanted_captions) = (read(tmp_path / folder, split) for folder in ("out", "good"))
        assert found.names == wanted.names and found.references == wanted.references and captions == wanted_captions
        assert all(torch.equal(found.image(number), wanted.image(number)) for number in range(len(found.names)))


# --- Runs again, runs that are stopped, two at once ---


CHANGES = {
    "JSON": lambda data, out: data.entries[4]["sentences"][0]["tokens"].append("a"),
    "image": lambda data, out: noise(30, 40).save(data.images / "sub/4.png"),
    "lost file": lambda data, out: next(out.glob("VAL_CAPLENS*")).unlink(),
    "cut file": lambda data, out: os.truncate(next(out.glob("VAL_IMAGES*")), 1000)}


@pytest.mark.parametrize("change", ["max_len", *CHANGES])
def test_changed_settings_or_files_are_noticed(data, tmp_path, change):
    out, options = tmp_path / "out", {}
    data.run(out)
    times, pictures = [path.stat().st_mtime_ns for path in sorted(out.iterdir())], read(out, "VAL")[0].pictures_digest
    data.run(out)
    assert times == [path.stat().st_mtime_ns for path in sorted(out.iterdir())]
    if change in CHANGES:
        CHANGES[change](data, out)
    else:
        options[change] = 20
    for folder in (out, tmp_path / "fresh"):
        data.run(folder, **options)
    assert everything(out) == everything(tmp_path / "fresh")
    # the fingerprint of the pictures alone, for an encoder's features of them
    assert (read(out, "VAL")[0].pictures_digest != pictures) == (change == "image")


def test_a_run_that_is_stopped_leaves_the_older_files_as_they_are(data, tmp_path, monkeypatch):
    def stop(path):
        if path.endswith("11.png"):  # the last of all
            raise KeyboardInterrupt
        return load_image(path)

    out = tmp_path / "out"
    data.run(out, max_len=7)
    before = everything(out)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(cif, "load_image", stop)
        data.run(out)
    assert everything(out) == before
    (out / f".TEST_IMAGES_{BASE}.hdf5.7.part").touch()  # what a kill leaves
    data.run(out)
    data.run(tmp_path / "fresh")
    assert everything(out) == everything(tmp_path / "fresh")


def test_of_two_runs_at_once_the_second_waits_for_the_first(data, tmp_path, monkeypatch):
    go_on, loads = threading.Event(), []

    def load(path):
        loads.append(path)
        assert go_on.wait(60)
        return load_image(path)

    monkeypatch.setattr(cif, "load_image", load)
    data.json.write_text(json.dumps({"images": data.entries}))
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(create_input_files, "toy", data.json, data.images, 2, 1, tmp_path / "out")
                for _ in range(2)]
        assert not wait(runs, 1).done and len(loads) == len(set(loads))
        assert (tmp_path / "out/.lock").stat().st_mode & 0o777 == 0o666  # of other users, too
        go_on.set()
        assert [run.result(60) for run in runs] == [BASE] * 2 and len(loads) == 12


def test_pictures_of_another_program_such_as_the_tutorial_stay(data, tmp_path):
    data.run(tmp_path / "out")
    with h5py.File(tmp_path / f"out/VAL_IMAGES_{BASE}.hdf5", "r+") as file:
        del file.attrs["fingerprint"]
    data.fails(tmp_path / "out", "VAL_IMAGES.*another program")


# --- The command line ---


def test_command_line(data, tmp_path, capsys):
    data.run(tmp_path / "function")
    command = ["--dataset", "toy", "--karpathy-json-path", str(data.json), "--image-folder", str(data.images),
               "--captions-per-image", "2", "--min-word-freq", "1", "--output-folder", str(tmp_path / "command")]
    cif.main(command)
    assert "8 images" in capsys.readouterr().out
    assert everything(tmp_path / "command") == everything(tmp_path / "function")
    data.entries[5].update(filename="0.png")
    data.json.write_text(json.dumps({"images": data.entries}))
    with pytest.raises(SystemExit, match="^error: .*0.png"):
        cif.main(command)
