"""The drawn data set: pictures, boxes, captions that tell the truth, files, and the judging functions."""

import colorsys
import json
import re
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from nltk.translate.bleu_score import corpus_bleu
from PIL import Image
from skimage.color import rgb2lab

from lab.data import shapes

COUNTS = {"train": 60, "val": 10, "test": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    shapes.generate_shapes(folder, **COUNTS, seed=3)
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return json.loads((folder / shapes.JSON_NAME).read_text())


@pytest.fixture(scope="module")
def drawn():
    """(image, the same picture without objects, scene, five captions) of many scenes."""
    found, paint = [], shapes._paint
    for i in range(300):
        rng = np.random.default_rng([9, i])
        image, scene = shapes.draw_scene(rng)
        captions = shapes.write_captions(scene, rng)
        shapes._paint = lambda canvas, item: None
        try:
            empty, _ = shapes.draw_scene(np.random.default_rng([9, i]))
        finally:
            shapes._paint = paint
        found.append((image, empty, scene, captions))
    return found


# ----------------------------------------------------------------------------------------- pictures


def test_boxes_are_tight_and_apart(drawn):
    for image, empty, scene, _ in drawn:
        changed = (image != empty).any(axis=2)
        for item in scene["objects"]:
            x0, y0, x1, y1 = item["box"]
            inside = changed[y0:y1, x0:x1]
            assert inside[0].any() and inside[-1].any() and inside[:, 0].any() and inside[:, -1].any()
            changed[y0:y1, x0:x1] = False
        assert not changed.any(), "something was drawn outside the boxes"
        for one, other in combinations([item["box"] for item in scene["objects"]], 2):
            gaps = one[0] - other[2], other[0] - one[2], one[1] - other[3], other[1] - one[3]
            assert max(gaps) >= 5


def test_sizes_differ_clearly(drawn):
    sides, areas = {"small": [], "large": []}, []
    for *_, scene, _ in drawn:
        for item in scene["objects"]:
            x0, y0, x1, y1 = item["box"]
            sides[item["size"]].append(max(x1 - x0, y1 - y0) / 256)
            areas.append((x1 - x0) * (y1 - y0) / 256**2)
    assert 0.22 <= min(sides["small"]) and max(sides["small"]) <= 0.29
    assert 0.39 <= min(sides["large"]) and max(sides["large"]) <= 0.47
    assert 0.13 <= np.mean(areas) <= 0.16


def test_colors_are_what_they_are_called_and_stand_out(drawn):
    nominal = {name: rgb2lab(np.array(colorsys.hsv_to_rgb(h / 360, s, v)))
               for name, (h, s, v) in shapes.COLORS.items()}
    assert min(np.linalg.norm(a - b) for a, b in combinations(nominal.values(), 2)) > 35
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
    numbers = Counter(len(scene["objects"]) for scene in scenes)
    assert set(numbers) == {1, 2, 3} and min(numbers.values()) > 0.25 * len(scenes)
    items = [item for scene in scenes for item in scene["objects"]]
    assert {item["shape"] for item in items} == set(shapes.SHAPES)
    assert {item["color"] for item in items} == set(shapes.COLORS)
    assert {scene["background"] for scene in scenes} == set(shapes.BACKGROUNDS)
    several = [scene["objects"] for scene in scenes if len(scene["objects"]) > 1]
    pairs = [len({(item["color"], item["shape"]) for item in objects}) < len(objects) for objects in several]
    assert 0.12 < np.mean(pairs) < 0.24


def test_shapes_look_different_when_small():
    """At 20 x 20, a shape turned at will is nearest to a template of its own kind, turned otherwise."""
    def small(shape, degrees):
        mask = Image.fromarray(shapes._draw_mask(shape, 62, degrees))
        return np.asarray(mask.resize((20, 20), Image.Resampling.BOX))

    templates = [(name, small(name, degrees)) for name in shapes.SHAPES for degrees in (-10, -4, 4, 10)]
    for shape in shapes.SHAPES:
        for degrees in (-shapes.MAX_TURN, -7, 0, 7, shapes.MAX_TURN):
            turned = small(shape, degrees)
            distance = [abs(template - turned).mean() for _, template in templates]
            assert templates[np.argmin(distance)][0] == shape


# ----------------------------------------------------------------------------------------- captions

CANONICAL = {"disc": "circle", "box": "square", "plus": "cross", "hoop": "ring"}
SINGULAR = {"crosses": "cross", "boxes": "box", "pluses": "plus"}
PLACE = {"above": "above", "over": "above", "below": "below", "under": "below"}
REL = r"((?:to the |on the )?(?:left|right) of|above|over|below|under)"


def centre_offset(item, other):
    a, b = np.reshape(item["box"], (2, 2)).mean(axis=0), np.reshape(other["box"], (2, 2)).mean(axis=0)
    return a - b


def lies(item, words, other):
    """Is ``item`` where the words say, seen from ``other``, along the axis that dominates?"""
    place = "left" if "left" in words else "right" if "right" in words else PLACE[words]
    axis, sign = {"left": (0, -1), "right": (0, 1), "above": (1, -1), "below": (1, 1)}[place]
    offset = centre_offset(item, other)
    return offset[axis] * sign > abs(offset[1 - axis])


def check_caption(caption, scene):
    """A small parser of its own: raises AssertionError unless the whole caption is understood and true."""
    opening = r"(?:(?:there is(?= a )|there are(?= two )|the picture shows|we see) )?"
    text, background = re.fullmatch(f"{opening}(.*?)(?: on a (\\w+) background)?", caption).groups()
    assert background in (None, scene["background"])

    groups = []

    def resolve(match):
        number, size, color, shape = match.groups()
        if number == "two":
            shape = SINGULAR.get(shape, shape.removesuffix("s"))
        shape = CANONICAL.get(shape, shape)
        found = [item for item in scene["objects"] if (item["color"], item["shape"]) == (color, shape)]
        assert len(found) == {"a": 1, "two": 2}[number]
        assert {item["size"] for item in found} == {{"little": "small", "big": "large"}.get(size, size)}
        groups.append(found)
        return f"#{len(groups) - 1}"

    skeleton = re.sub(r"\b(a|two) (small|little|large|big) (\w+) (\w+)", resolve, text)
    assert sum(map(len, groups)) == len(scene["objects"])

    def claim(subject, words, reference):
        assert all(lies(a, words, b) for a in subject for b in reference), caption

    if skeleton == "#0":
        assert len(scene["objects"]) == 1
    elif skeleton == "#0 side by side":
        dx, dy = centre_offset(*groups[0])
        assert abs(dx) > abs(dy)
    elif skeleton in ("#0 one above the other", "#0 one over the other"):
        dx, dy = centre_offset(*groups[0])
        assert abs(dy) > abs(dx)
    elif m := re.fullmatch(f"#0 {REL} #1(?: and (?:{REL} )?#2)?", skeleton):
        claim(groups[0], m[1], groups[1])
        if len(groups) == 3:
            claim(groups[0], m[2] or m[1], groups[2])
    elif m := re.fullmatch(f"#0 with #1(?: {REL} (it|them))?(?: and #2)? {REL} (it|them)", skeleton):
        assert {m[2] or m[4], m[4]} == {"it" if len(groups[0]) == 1 else "them"}
        claim(groups[1], m[1] or m[3], groups[0])
        if len(groups) == 3:
            claim(groups[2], m[3], groups[0])
    else:
        raise AssertionError(f"not understood: {skeleton}")


def test_captions_name_every_object_and_are_true(drawn):
    for *_, scene, captions in drawn:
        assert len(captions) == len(set(captions)) == 5
        for caption in [*captions, shapes.write_caption(scene)]:
            assert shapes.names_every_object(caption.split(), scene["objects"])
            assert re.fullmatch(r"[a-z]+( [a-z]+)*", caption)
            assert len(caption.split()) <= 30
            check_caption(caption, scene)


def test_the_checker_sees_lies():
    star = {"shape": "star", "color": "red", "size": "small", "box": [10, 10, 70, 70]}
    ring = {"shape": "ring", "color": "blue", "size": "large", "box": [120, 20, 230, 130]}
    scene = {"background": "plain", "objects": [star, ring]}
    check_caption("a small red star left of a big blue hoop on a plain background", scene)
    check_caption("we see a small red star with a large blue ring to the right of it", scene)
    for lie in ("a small red star above a large blue ring", "a large red star left of a large blue ring",
                "a small red star right of a large blue ring", "a small red star",
                "a small red star with a large blue ring left of it",
                "two small red stars left of a large blue ring",
                "a small red star left of a large blue ring on a dotted background"):
        with pytest.raises(AssertionError):
            check_caption(lie, scene)


def test_vocabulary_and_difficulty(drawn):
    references = [[caption.split() for caption in captions] for *_, captions in drawn]
    assert 40 <= len({word for five in references for tokens in five for word in tokens}) <= 70
    usual = [shapes.write_caption(scene).split() for *_, scene, _ in drawn]
    assert 0.80 < corpus_bleu(references, usual) < 0.90  # a perfect speaker: neither hopeless nor a toy


# -------------------------------------------------------------------------------------------- files


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}


def test_karpathy_format(folder, data):
    assert data["dataset"] == "shapes" and data["seed"] == 3
    assert Counter(image["split"] for image in data["images"]) == COUNTS
    assert [image["imgid"] for image in data["images"]] == list(range(80))
    sentids = []
    for image in data["images"]:
        with Image.open(folder / image["filepath"] / image["filename"]) as picture:
            assert (picture.size, picture.mode) == ((256, 256), "RGB")
        assert image["filename"].startswith(image["split"] + "_")
        assert [sentence["sentid"] for sentence in image["sentences"]] == image["sentids"]
        sentids += image["sentids"]
        for sentence in image["sentences"]:
            assert sentence["raw"].split() == sentence["tokens"] and sentence["imgid"] == image["imgid"]
            assert shapes.names_every_object(sentence["tokens"], image["objects"])
    assert sentids == list(range(400))


def test_same_seed_same_bytes_other_seed_other_pictures(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        shapes.generate_shapes(tmp_path / name, 4, 2, 2, seed)
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert len(a) == 9 and a == b
    assert a.keys() == c.keys() and all(a[name] != c[name] for name in a)


def test_a_smaller_set_is_a_prefix(tmp_path, folder, data):
    shapes.generate_shapes(tmp_path, 5, 2, 3, seed=3)
    small = json.loads((tmp_path / shapes.JSON_NAME).read_text())
    large = {image["filename"]: image for image in data["images"]}
    assert len(small["images"]) == 10
    for image in small["images"]:
        twin = large[image["filename"]]
        assert image["objects"] == twin["objects"]
        assert [s["raw"] for s in image["sentences"]] == [s["raw"] for s in twin["sentences"]]
        name = "images/" + image["filename"]
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_splits_share_no_picture(folder):
    pictures = [path.read_bytes() for path in (folder / "images").iterdir()]
    assert len(set(pictures)) == len(pictures) == 80


def test_rerun_does_nothing(tmp_path, monkeypatch):
    path = shapes.generate_shapes(tmp_path, 3, 1, 1)
    times = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    with monkeypatch.context() as patch:
        patch.setattr(shapes, "draw_scene", lambda rng: pytest.fail("drawn again"))
        assert shapes.generate_shapes(tmp_path, 3, 1, 1) == path
    assert times == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}


@pytest.mark.parametrize("damage", ["missing picture", "broken json"])
def test_damage_is_repaired(tmp_path, damage):
    path = shapes.generate_shapes(tmp_path, 3, 1, 1)
    before = contents(tmp_path)
    if damage == "missing picture":
        (tmp_path / "images" / "train_00001.png").unlink()
    else:
        path.write_text(path.read_text()[:500])
    shapes.generate_shapes(tmp_path, 3, 1, 1)
    assert contents(tmp_path) == before


def test_other_settings_replace_the_set_and_nothing_else(tmp_path):
    shapes.generate_shapes(tmp_path, 4, 2, 2)
    (tmp_path / "images" / "mine.png").write_bytes(b"kept")
    shapes.generate_shapes(tmp_path, 2, 1, 1)
    assert {path.name for path in (tmp_path / "images").iterdir()} == {
        "train_00000.png", "train_00001.png", "val_00000.png", "test_00000.png", "mine.png"}


def test_interrupted_run_leaves_no_json(tmp_path, monkeypatch):
    path = shapes.generate_shapes(tmp_path, 2, 1, 1, seed=0)
    calls, write = [], shapes.write_captions

    def interrupted(scene, rng):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return write(scene, rng)

    with monkeypatch.context() as patch:
        patch.setattr(shapes, "write_captions", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shapes.generate_shapes(tmp_path, 2, 1, 1, seed=5)
    assert not path.exists() and not list(tmp_path.rglob("*.part"))
    shapes.generate_shapes(tmp_path, 2, 1, 1, seed=5)
    shapes.generate_shapes(tmp_path / "fresh", 2, 1, 1, seed=5)
    assert path.read_bytes() == (tmp_path / "fresh" / shapes.JSON_NAME).read_bytes()


def test_command_line(tmp_path, capsys):
    output = tmp_path / "new"
    shapes.main(["--output", str(output), "--train", "2", "--val", "1", "--test", "0", "--seed", "4"])
    found = json.loads((output / shapes.JSON_NAME).read_text())
    assert found["counts"] == {"train": 2, "val": 1, "test": 0} and found["seed"] == 4
    assert shapes.JSON_NAME in capsys.readouterr().out


@pytest.mark.parametrize("arguments, message", [
    (["--train", "-1"], "train must be 0 or more, not -1"),
    (["--seed", "-7"], "seed must be 0 or more, not -7"),
    (["--train", "0", "--val", "0", "--test", "0"], "at least one picture"),
])
def test_command_line_refuses(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        shapes.main(["--output", str(tmp_path / "new"), *arguments])
    assert stop.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("below", [".", "data"])
def test_command_line_names_a_folder_it_cannot_write(tmp_path, capsys, below):
    (tmp_path / "taken").write_text("a file, not a folder")
    output = tmp_path / "taken" / below
    with pytest.raises(SystemExit) as stop:
        shapes.main(["--output", str(output), "--train", "1"])
    errors = capsys.readouterr().err
    assert stop.value.code == 2 and f"cannot write to {output}" in errors and "Traceback" not in errors
    assert (tmp_path / "taken").read_text() == "a file, not a folder"


# ------------------------------------------------------------------------------------------ judging

RED_CIRCLE = {"shape": "circle", "color": "red", "size": "small", "box": [0, 0, 64, 64]}
RED_TWIN = {"shape": "circle", "color": "red", "size": "small", "box": [128, 0, 192, 64]}
BLUE_STAR = {"shape": "star", "color": "blue", "size": "large", "box": [128, 128, 256, 256]}


@pytest.mark.parametrize("caption, counter", [
    ("a red disc", {("red", "circle"): 1}),
    ("there are two large red circles above a small blue star", {("red", "circle"): 2, ("blue", "star"): 1}),
    ("two green pluses and a white box", {("green", "cross"): 2, ("white", "square"): 1}),
    ("a black hoop and a black ring", {("black", "ring"): 2}),
    ("two yellow boxes one above the other on a plain background", {("yellow", "square"): 2}),
    ("a large heart", {(None, "heart"): 1}),
    ("a red circle and a star", {("red", "circle"): 1, (None, "star"): 1}),
    ("a red on a plain background", {}),
    ("", {}),
])
def test_named_objects(caption, counter):
    assert shapes.named_objects(caption.split()) == Counter(counter)


@pytest.mark.parametrize("caption, right", [
    ("a small red circle above a large blue star", True),
    ("a blue star and a red disc", True),  # order, size and place are not judged here
    ("a small red circle", False),
    ("a small red star above a large blue circle", False),
    ("a small circle above a large blue star", False),
    ("two red circles above a blue star", False),
    ("a red circle and a blue star and a green ring", False),
    ("a red circle above a blue star and a blue star", False),
])
def test_names_every_object(caption, right):
    assert shapes.names_every_object(caption.split(), [RED_CIRCLE, BLUE_STAR]) is right


def test_names_every_object_counts_a_pair():
    for caption, right in (("two red circles", True), ("a red circle and a red disc", True),
                           ("a red circle", False), ("three red circles", False)):
        assert shapes.names_every_object(caption.split(), [RED_CIRCLE, RED_TWIN]) is right


def test_shape_words():
    tokens = "there is a big red disc with two blue stars below it and a box".split()
    assert shapes.shape_words(tokens) == [(5, "red", "circle"), (9, "blue", "star"), (14, None, "square")]


def peaks(tokens, cells, shape=(8, 8)):
    """Attention maps that peak at the given cell for the word at each position; flat noise elsewhere."""
    alphas = np.random.default_rng(0).uniform(0, 0.1, (len(tokens), *shape))
    for position, cell in cells.items():
        alphas[position][cell] = 1
    return alphas


def hits_of(tokens, alphas, objects):
    return [hit for _, hit, _ in shapes.attention_hits(tokens, alphas, objects)]


def test_attention_hits():
    tokens = "a red circle above a blue star".split()
    objects = [RED_CIRCLE, BLUE_STAR]
    for cells, hits in ((((1, 1), (4, 7)), (True, True)), (((1, 2), (7, 4)), (False, True)),
                        (((5, 5), (0, 0)), (False, False))):
        alphas = peaks(tokens, dict(zip((2, 6), cells, strict=True)))
        assert shapes.attention_hits(tokens, alphas, objects) == [
            ("circle", hits[0], 64 * 64 / 256**2), ("star", hits[1], 128 * 128 / 256**2)]
    json.dumps(shapes.attention_hits(tokens, alphas, objects))  # plain numbers
    tensor = torch.from_numpy(peaks(tokens, {2: (0, 0), 6: (6, 6)}))
    assert hits_of(tokens, tensor, objects) == [True, True]


def test_attention_rows_are_y_and_grids_need_not_be_square():
    objects = [{**RED_CIRCLE, "box": [192, 0, 256, 128]}]  # top right
    for cell, hits in (((0, 7), 1), ((1, 6), 1), ((2, 7), 0), ((0, 5), 0)):
        alphas = peaks(["red", "circle"], {1: cell}, shape=(4, 8))
        assert hits_of(["red", "circle"], alphas, objects) == [hits]


def test_attention_box_ends_are_exclusive():
    for x1, hits in ((32, 0), (33, 1)):  # the centre of the only column that can be hit is x = 32
        objects = [{**RED_CIRCLE, "box": [0, 0, x1, 64]}]
        assert hits_of(["red", "circle"], peaks("ab", {1: (0, 0)}, (4, 4)), objects) == [hits]


def test_attention_any_of_a_pair_counts_and_wrong_words_miss():
    tokens = "two red circles above a blue heart".split()
    objects = [RED_CIRCLE, RED_TWIN, BLUE_STAR]
    for cell in ((0, 0), (1, 5)):
        # both red boxes count; the heart is not there: the mean share of the three boxes
        assert shapes.attention_hits(tokens, peaks(tokens, {2: cell, 6: (6, 6)}), objects) == [
            ("circles", True, 1 / 16 + 1 / 16), ("heart", False, (1 / 16 + 1 / 16 + 1 / 4) / 3)]


def test_attention_chance_is_what_random_pointing_scores(drawn):
    rng, hits, chance = np.random.default_rng(0), 0, 0
    for *_, scene, captions in drawn:
        tokens = captions[0].split()
        for _ in range(5):
            for _, hit, share in shapes.attention_hits(tokens, rng.random((len(tokens), 16, 16)), scene["objects"]):
                hits, chance = hits + hit, chance + share
    assert hits == pytest.approx(chance, rel=0.12)


def test_attention_without_shape_words_and_with_maps_that_do_not_fit():
    assert shapes.attention_hits(["a", "red"], np.ones((2, 4, 4)), [RED_CIRCLE]) == []
    for wrong in (np.ones((3, 4, 4)), np.ones((2, 16))):
        with pytest.raises(ValueError, match="alphas must be"):
            shapes.attention_hits(["red", "circle"], wrong, [RED_CIRCLE])
