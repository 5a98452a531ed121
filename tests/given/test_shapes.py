"""The drawn data set: pictures, boxes, captions that tell the truth, files, and the judging functions."""

import colorsys
import json
import re
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.color import rgb2lab

from lab.data import shapes


@pytest.fixture(scope="module")
def drawn():
    """(image, the same picture without objects, scene, five captions) of many scenes."""
    found = []
    for i in range(150):
        rng = np.random.default_rng([9, i])
        image, scene = shapes.draw_scene(rng)
        captions = shapes.write_captions(scene, rng)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shapes, "paint", lambda canvas, item: None)
            empty, _ = shapes.draw_scene(np.random.default_rng([9, i]))
        found.append((image, empty, scene, captions))
    return found


# --- Pictures ---


def test_boxes_are_tight_and_apart_and_sizes_differ(drawn):
    sides = {"small": [], "large": []}
    for image, empty, scene, _ in drawn:
        changed = (image != empty).any(axis=2)
        for item in scene["objects"]:
            x0, y0, x1, y1 = item["box"]
            inside = changed[y0:y1, x0:x1]
            assert inside[0].any() and inside[-1].any() and inside[:, 0].any() and inside[:, -1].any()
            changed[y0:y1, x0:x1] = False
            sides[item["size"]].append(max(x1 - x0, y1 - y0) / 256)
        assert not changed.any(), "something was drawn outside the boxes"
        for one, other in combinations([item["box"] for item in scene["objects"]], 2):
            assert max(one[0] - other[2], other[0] - one[2], one[1] - other[3], other[1] - one[3]) >= 5
    assert max(sides["small"]) + 0.1 < min(sides["large"])


def test_colors_are_what_they_are_called_and_stand_out(drawn):
    nominal = {name: rgb2lab(np.array(colorsys.hsv_to_rgb(h / 360, s, v)))
               for name, (h, s, v) in shapes.COLORS.items()}
    for image, empty, scene, _ in drawn:
        changed = (image != empty).any(axis=2)
        for item in scene["objects"]:
            x0, y0, x1, y1 = item["box"]
            color = rgb2lab(np.median(image[y0:y1, x0:x1][changed[y0:y1, x0:x1]], axis=0) / 255)
            distance = {name: np.linalg.norm(color - lab) for name, lab in nominal.items()}
            assert min(distance, key=distance.get) == item["color"]
            around = rgb2lab(empty[max(y0 - 4, 0):y1 + 4, max(x0 - 4, 0):x1 + 4])
            assert np.linalg.norm(around - color, axis=2).min() > 30


def test_scenes_are_varied(drawn):
    scenes = [scene for *_, scene, _ in drawn]
    items = [item for scene in scenes for item in scene["objects"]]
    assert {len(scene["objects"]) for scene in scenes} == {1, 2, 3}
    assert {item["shape"] for item in items} == set(shapes.SHAPES)
    assert {item["color"] for item in items} == set(shapes.COLORS)
    assert {scene["background"] for scene in scenes} == set(shapes.BACKGROUNDS)
    assert any("two" in caption.split() for *_, captions in drawn for caption in captions)


# --- Captions ---


def kinds(scene):
    return Counter((item["color"], item["shape"]) for item in scene["objects"])


CANONICAL = {"little": "small", "big": "large", "disc": "circle", "box": "square", "plus": "cross", "hoop": "ring",
             "discs": "circle", "boxes": "square", "crosses": "cross", "pluses": "cross", "hoops": "ring",
             "over": "above", "under": "below"}
PLACES = {"left": (0, -1), "right": (0, 1), "above": (1, -1), "below": (1, 1)}  # axis, sign


def offset(one, other):
    """Of the centre of one object from the other's, x and y."""
    return np.subtract(*(np.reshape(item["box"], (2, 2)).mean(axis=0) for item in (one, other)))


def check_caption(caption, scene):
    """A reader of its own: fails unless each object is described as it is, and all lie where the caption says."""
    groups = []

    def describe(match):
        number, *words = match.groups()
        size, color, shape = (CANONICAL.get(word, word) for word in words)
        found = [item for item in scene["objects"] if item["color"] == color and item["shape"] in (shape, shape[:-1])]
        assert len(found) == {"a": 1, "two": 2}[number] and {item["size"] for item in found} == {size}
        groups.append(found)
        return f"#{len(groups) - 1}"

    def check(place, subject, reference):
        axis, sign = PLACES[place]
        distances = [offset(one, other) for one in subject for other in reference]
        assert all(sign * distance[axis] > abs(distance[1 - axis]) for distance in distances), caption

    text, background = re.fullmatch(r"(.*?)(?: on a (\w+) background)?", caption).groups()
    text = re.sub(r"\b(a|two) (small|little|large|big) (\w+) (\w+)", describe, text)
    assert background in (None, scene["background"]) and sum(map(len, groups)) == len(scene["objects"])
    place, waiting, first = None, [], groups[0]
    for word in (CANONICAL.get(word, word) for word in text.split()):
        if word in PLACES:
            place = word
        elif word in ("it", "them"):
            assert word == ("it" if len(first) == 1 else "them")
            check(place, waiting, first)
            waiting = []
        elif word.startswith("#") and word != "#0":
            if " with " in text:  # "a star with a ring below it"
                waiting += groups[int(word[1:])]
            else:  # "a star above a ring"
                check(place, first, groups[int(word[1:])])
    assert not waiting
    if len(groups) == 1 and len(first) == 2:
        dx, dy = abs(offset(*first))
        assert {"side by side": dx > dy, "the other": dy > dx}[re.search("side by side|the other", text)[0]]


def test_captions_name_every_object_and_are_true(drawn):
    for *_, scene, captions in drawn:
        assert len(captions) == len(set(captions)) == 5
        for caption in [*captions, shapes.write_caption(scene)]:
            assert re.fullmatch(r"[a-z]+( [a-z]+)*", caption) and len(caption.split()) <= 30
            check_caption(caption, scene)
            assert shapes.named_objects(caption.split()) == kinds(scene)


# --- Files ---


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("[!.]*.*")}


def test_karpathy_format_and_what_a_picture_depends_on(tmp_path):
    """On seed, split and number alone: a smaller set is the beginning of a larger one."""
    counts = {"train": 6, "val": 3, "test": 3}
    large = json.loads(shapes.generate_shapes(tmp_path / "large", **counts, seed=3).read_text())
    assert large["seed"] == 3 and Counter(image["split"] for image in large["images"]) == counts
    for image in large["images"]:
        with Image.open(tmp_path / "large" / image["filepath"] / image["filename"]) as picture:
            assert (picture.size, picture.mode) == ((256, 256), "RGB")
        for sentence in image["sentences"]:
            assert sentence["raw"].split() == sentence["tokens"]
            assert shapes.named_objects(sentence["tokens"]) == kinds(image)

    for name, seed in (("small", 3), ("again", 3), ("other", 4)):
        shapes.generate_shapes(tmp_path / name, 4, 2, 2, seed)
    small, again, other, more = (contents(tmp_path / name) for name in ("small", "again", "other", "large"))
    assert small == again and not {*small.values()} & {*other.values()} and len({*more.values()}) == 13
    twins = {image["filename"]: image for image in large["images"]}
    for image in json.loads(small.pop(shapes.JSON_NAME))["images"]:
        assert [s["raw"] for s in image["sentences"]] == [s["raw"] for s in twins[image["filename"]]["sentences"]]
    assert small.items() <= more.items()


def test_a_set_that_is_there_is_kept_repaired_or_replaced(tmp_path):
    path = shapes.generate_shapes(tmp_path, 3, 1, 1)
    before, times = contents(tmp_path), {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    assert shapes.generate_shapes(tmp_path, 3, 1, 1) == path
    assert times == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    (tmp_path / "images/train_00001.png").unlink()
    assert contents(shapes.generate_shapes(tmp_path, 3, 1, 1).parent) == before
    path.write_text(path.read_text()[:500])
    assert contents(shapes.generate_shapes(tmp_path, 3, 1, 1).parent) == before
    shapes.generate_shapes(tmp_path, 2, 1, 1)
    assert contents(shapes.generate_shapes(tmp_path / "fresh", 2, 1, 1).parent).items() <= contents(tmp_path).items()


def test_interrupted_run_leaves_no_json(tmp_path, monkeypatch):
    path = shapes.generate_shapes(tmp_path, 2, 1, 1, seed=0)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(shapes, "write_captions", lambda *_: 1 / 0)
        shapes.generate_shapes(tmp_path, 2, 1, 1, seed=5)
    assert not path.exists() and not list(tmp_path.rglob("*.part"))
    shapes.generate_shapes(tmp_path, 2, 1, 1, seed=5)
    assert contents(tmp_path) == contents(shapes.generate_shapes(tmp_path / "fresh", 2, 1, 1, seed=5).parent)


# --- Judging ---

OBJECTS = [{"shape": "circle", "color": "red", "size": "small", "box": [0, 0, 64, 64]},
           {"shape": "circle", "color": "red", "size": "small", "box": [128, 0, 192, 64]},
           {"shape": "star", "color": "blue", "size": "large", "box": [128, 128, 256, 256]}]


@pytest.fixture
def judged(tmp_path):
    """Judges a caption of a picture with OBJECTS."""
    image = {"filepath": "images", "filename": "a.png", "objects": OBJECTS}
    (tmp_path / "set.json").write_text(json.dumps({"images": [image]}))
    return lambda caption, alphas=None: shapes.judge_captions(
        [{"name": "images/a.png", "caption": caption.split(), "alphas": alphas}], tmp_path / "set.json")


@pytest.mark.parametrize(("caption", "counter"), [
    ("there are two large red circles above a small blue star", {("red", "circle"): 2, ("blue", "star"): 1}),
    ("two green pluses and a white box", {("green", "cross"): 2, ("white", "square"): 1}),
    ("a black hoop and a black ring", {("black", "ring"): 2}),
    ("two red discs and heart", {("red", "circle"): 2, (None, "heart"): 1}),
    ("a red on a plain background", {}), ("", {})])
def test_named_objects(caption, counter):
    assert shapes.named_objects(caption.split()) == Counter(counter)


@pytest.mark.parametrize(("caption", "right"), [
    ("a blue star and two red discs", True), ("a red circle and a red disc under a big star in blue", False),
    ("a red circle and a red disc under a big blue star", True),  # order, size and place are not judged here
    ("a blue star and a red disc", False), ("a blue star and three red discs", False),
    ("two red stars above a blue circle", False), ("two circles above a blue star", False),
    ("two red circles and a blue star and a green ring", False)])
def test_a_caption_is_right_if_it_names_every_object(judged, caption, right):
    verdict = judged(caption)
    assert verdict["wrong"] == [0] * (not right) and verdict["named"] == right and verdict["images"] == 1
    assert verdict["pointing"] is None and verdict["chance"] is None and verdict["words"] == {}


def test_a_data_set_whose_objects_nobody_knows_is_not_judged(tmp_path):
    assert shapes.judge_captions([], tmp_path / "nowhere.json") is None


@pytest.mark.parametrize(("cell", "shape", "boxes", "expected"), [
    # boxes that overlap count once
    ((0, 3), (4, 4), [("dog", (0, 0, 128, 128)), ("dog", (64, 0, 128, 128)), ("cat", (0, 0, 32, 32))], (False, 1 / 4)),
    ((0, 0), (4, 4), [], (False, 0)),
    # right and bottom are exclusive: the centre of the first cell is at 32
    ((0, 0), (4, 4), [("dog", (0, 0, 32, 256))], (False, 0)),
    ((0, 0), (4, 4), [("dog", (32, 0, 33, 256))], (True, 1 / 4)),
    # rows are y, and grids need not be square
    ((0, 7), (4, 8), [("dog", (192, 0, 256, 128))], (True, 1 / 8)),
    ((2, 7), (4, 8), [("dog", (192, 0, 256, 128))], (False, 1 / 8)),
    # what is not there has the mean share of the boxes
    ((0, 0), (4, 4), [("cat", (0, 0, 64, 64)), ("cow", (0, 0, 128, 128))], (False, (1 + 4) / 16 / 2))])
def test_where_a_map_peaks(cell, shape, boxes, expected):
    alpha = np.full(shape, 0.01)
    alpha[cell] = 0.9
    assert shapes.points_at(alpha, "dog", boxes) == expected


@pytest.mark.parametrize(("caption", "cells", "expected"), [
    ("two red discs above a blue star", {2: (1, 5), 6: (4, 7)}, {"discs": (True, 1 / 8), "star": (True, 1 / 4)}),
    ("a red circle above a blue star", {2: (1, 2), 6: (7, 3)}, {"circle": (False, 1 / 8), "star": (False, 1 / 4)}),
    ("a red", {}, {})])
def test_where_the_attention_peaks(judged, caption, cells, expected):
    alphas = np.random.default_rng(0).uniform(0, 0.1, (len(caption.split()), 8, 8))
    for position, cell in cells.items():
        alphas[position][cell] = 1
    verdict = judged(caption, alphas)
    assert verdict == judged(caption, torch.from_numpy(alphas))
    assert verdict["words"] == {word: [pair] for word, pair in expected.items()}
    means = np.mean([*expected.values()], axis=0) if expected else (None, None)
    assert (verdict["pointing"], verdict["chance"]) == tuple(means)
    json.dumps(verdict)  # plain numbers
