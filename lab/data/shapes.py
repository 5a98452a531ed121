"""The lab's own data set: pictures of coloured shapes with five captions each, drawn by this program.

Every picture depends only on (seed, split, index), so a small set is the beginning of a larger one.
"""

import colorsys
import json
import math
from collections import Counter
from itertools import combinations, groupby
from pathlib import Path

import numpy as np
from filelock import FileLock
from PIL import Image, ImageDraw
from skimage.color import lab2rgb, rgb2lab
from tqdm import tqdm

from utils import atomic_path, write_json

SIZE = 256  # side of a picture, in pixels
VERSION = 2  # raise when drawing or captions change: older sets are then drawn anew
SPLITS = ("train", "val", "test")
JSON_NAME = "dataset_shapes.json"
CAPTIONS_PER_IMAGE = 5

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart")
COLORS = {  # nominal hue in degrees, saturation, value
    "red": (357, 0.88, 0.84),
    "orange": (29, 0.95, 0.98),
    "yellow": (54, 0.85, 0.98),
    "green": (130, 0.75, 0.60),
    "blue": (219, 0.85, 0.86),
    "purple": (284, 0.68, 0.62),
    "white": (50, 0.01, 0.98),
    "black": (230, 0.10, 0.08),
}
COLOR_JITTER = (4, 0.03, 0.04)  # largest change of hue (degrees), saturation and value
SIZES = {"small": (0.24, 0.28), "large": (0.40, 0.46)}  # longer side of the box, share of the picture
BACKGROUNDS = ("plain", "shaded", "striped", "checkered", "dotted", "cloudy")

LARGE_PROBABILITY = 0.75  # of an object that is planned; fewer stay large where three must find room
PAIR_PROBABILITY = 0.18  # that of two or three objects two are alike
MAX_TURN = 12  # degrees
MARGIN = 6  # free pixels between two boxes, and between a box and the picture's edge
CLEAR_AXIS = 1.4  # one object is beside (or above) another only if that axis dominates by this factor
MIN_CONTRAST = 34  # least distance in CIE Lab between an object and any tone of its background
SUPERSAMPLE = 4  # masks are drawn this much larger, then averaged: smooth edges

GRID = np.mgrid[:SIZE, :SIZE].astype(np.float32)  # y and x of every pixel

# ------------------------------------------------------------------------------------------ drawing


TURN = 2 * np.pi * np.arange(72) / 72
CIRCLE = np.cos(TURN), np.sin(TURN)
STAR_TURN, STAR_RADIUS = np.pi * np.arange(10) / 5 - np.pi / 2, np.array([1, 0.44] * 5)
ARM = 0.34  # half the width of a cross's arm
OUTLINES = {  # x and y of each shape's corners in any scale, y pointing down
    "circle": CIRCLE,
    "square": ((-1.0, 1, 1, -1), (-1.0, -1, 1, 1)),
    "triangle": ((0, 0.93, -0.93), (-1, 0.7, 0.7)),
    "star": (STAR_RADIUS * np.cos(STAR_TURN), STAR_RADIUS * np.sin(STAR_TURN)),
    "cross": ((-ARM, ARM, ARM, 1, 1, ARM, ARM, -ARM, -ARM, -1, -1, -ARM),
              (-1, -1, -ARM, -ARM, ARM, ARM, 1, 1, ARM, ARM, -ARM, -ARM)),
    "ring": CIRCLE,
    "heart": (16 * np.sin(TURN) ** 3,
              -(13 * np.cos(TURN) - 5 * np.cos(2 * TURN) - 2 * np.cos(3 * TURN) - np.cos(4 * TURN))),
}


def draw_mask(shape, side, degrees):
    """A shape turned by ``degrees``, its longer side ``side`` pixels: coverage (h, w) in 0..1, cut tight."""
    turn = np.deg2rad(degrees)
    points = np.stack(OUTLINES[shape], axis=1) @ np.array([(np.cos(turn), np.sin(turn)), (-np.sin(turn), np.cos(turn))])
    points -= points.min(axis=0)
    points *= side * SUPERSAMPLE / points.max()
    pixels = int(np.ceil(side)) + 1
    large = Image.new("L", (pixels * SUPERSAMPLE, pixels * SUPERSAMPLE))
    pen = ImageDraw.Draw(large)
    pen.polygon([tuple(p) for p in points], fill=255)
    if shape == "ring":
        hole = (points - points.max(axis=0) / 2) * 0.56 + points.max(axis=0) / 2
        pen.polygon([tuple(p) for p in hole], fill=0)
    mask = np.asarray(large.reduce(SUPERSAMPLE), dtype=np.float32) / 255
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return mask[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1]


def jittered_color(rng, color):
    """An RGB colour (3,), 0..1, that anyone would still call ``color``."""
    hue, saturation, value = np.array(COLORS[color]) + rng.uniform(-1, 1, 3) * COLOR_JITTER
    return np.array(colorsys.hsv_to_rgb(hue % 360 / 360, np.clip(saturation, 0, 1), np.clip(value, 0, 1)),
                    np.float32)


def centre(box):
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def relation(box, other):
    """Where ``box`` lies seen from ``other``: "left", "right", "above" or "below"; None if it is unclear."""
    (x, y), (other_x, other_y) = centre(box), centre(other)
    dx, dy = x - other_x, y - other_y
    if abs(dx) > CLEAR_AXIS * abs(dy):
        return "left" if dx < 0 else "right"
    if abs(dy) > CLEAR_AXIS * abs(dx):
        return "above" if dy < 0 else "below"
    return None


def arrange(rng, masks, pair):
    """Boxes for the masks: apart from each other, in clear relations; None if many random layouts all fail.

    :param pair: True if the first two objects are alike; a third must then lie on one side of both
    """
    sides = np.array([mask.shape[::-1] for mask in masks])
    start = rng.integers(MARGIN, SIZE - MARGIN - sides + 1, (400, len(masks), 2))  # (layout, object, x and y)
    good = np.ones(len(start), bool)
    for a, b in combinations(range(len(masks)), 2):
        gap = np.maximum(start[:, a] - start[:, b] - sides[b], start[:, b] - start[:, a] - sides[a])
        good &= gap.max(axis=1) >= MARGIN
    for layout in start[good]:
        boxes = np.concatenate([layout, layout + sides], axis=1).tolist()
        seen = [relation(box, other) for box, other in combinations(boxes, 2)]
        if all(seen) and not (pair and len(boxes) == 3 and seen[1] != seen[2]):
            return boxes
    return None


def plan_objects(rng):
    """One to three objects with shape, color, size, mask (h, w), box and rgb (3,)."""
    number = int(rng.integers(1, 4))
    pair = number > 1 and rng.random() < PAIR_PROBABILITY
    kinds = rng.choice(len(SHAPES) * len(COLORS), number - pair, replace=False)  # never alike by chance
    kinds = [(SHAPES[kind % len(SHAPES)], list(COLORS)[kind // len(SHAPES)]) for kind in kinds]
    kinds = kinds[:1] * pair + kinds
    while True:
        sizes = ["large" if rng.random() < LARGE_PROBABILITY else "small" for _ in kinds]
        if pair:
            sizes[1] = sizes[0]
        masks = [draw_mask(shape, SIZE * rng.uniform(*SIZES[size]), rng.uniform(-MAX_TURN, MAX_TURN))
                 for (shape, _), size in zip(kinds, sizes, strict=True)]
        boxes = arrange(rng, masks, pair)
        if boxes:
            break
    objects = [{"shape": shape, "color": color, "size": size, "box": box, "mask": mask,
                "rgb": jittered_color(rng, color)}
               for (shape, color), size, box, mask in zip(kinds, sizes, boxes, masks, strict=True)]
    return sorted(objects, key=lambda item: sum(centre(item["box"])))


def waves(angle, period, phase):
    """Signed distance in pixels (256, 256) to the borders of bands ``period / 2`` wide at ``angle``."""
    y, x = GRID
    along = (x * math.cos(angle) + y * math.sin(angle)) / period + phase
    return (0.25 - abs(along % 1 - 0.5)) * period


def pattern(rng, kind):
    """How much of the second tone shows at each pixel, (256, 256) in 0..1."""
    angle, phase, other_phase = rng.uniform(0, math.pi), rng.random(), rng.random()
    if kind == "plain":
        return np.zeros((SIZE, SIZE), np.float32)
    if kind == "shaded":
        y, x = GRID
        ramp = x * math.cos(2 * angle) + y * math.sin(2 * angle)
        return (ramp - ramp.min()) / (ramp.max() - ramp.min())
    if kind == "striped":
        return np.clip(waves(angle, rng.uniform(20, 40), phase) + 0.5, 0, 1)
    if kind == "checkered":
        tilt, period = math.radians(rng.uniform(-10, 10)), rng.uniform(36, 60)
        a = np.clip(waves(tilt, period, phase) + 0.5, 0, 1)
        b = np.clip(waves(tilt + math.pi / 2, period, other_phase) + 0.5, 0, 1)
        return a + b - 2 * a * b
    if kind == "dotted":
        spacing = rng.uniform(20, 32)
        y, x = GRID
        u, v = (x / spacing + phase) % 1 - 0.5, (y / spacing + other_phase) % 1 - 0.5
        return np.clip(spacing * (0.26 - np.hypot(u, v)) + 0.5, 0, 1)
    clouds = sum(weight * np.asarray(Image.fromarray(rng.random((cells, cells)).astype(np.float32))
                                     .resize((SIZE, SIZE), Image.Resampling.BICUBIC))
                 for cells, weight in ((6, 1.0), (14, 0.5), (40, 0.25)))  # cloudy
    return (clouds - clouds.min()) / (clouds.max() - clouds.min())


def draw_background(rng, object_colors):
    """A muted background that hides none of the objects: its kind and (256, 256, 3) float, 0..1."""
    kind = BACKGROUNDS[rng.integers(len(BACKGROUNDS))]
    taken = rgb2lab(np.array(object_colors))
    while True:
        lightness = rng.uniform(30, 88)
        lightness = np.array([lightness, lightness + rng.choice([-1, 1]) * rng.uniform(12, 24)])
        chroma, hue = rng.uniform(0, 14), rng.uniform(0, 2 * np.pi) + rng.uniform(-0.6, 0.6, 2)
        tones = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)
        between = np.linspace(tones[0], tones[1], 5)
        contrast = np.linalg.norm(between[:, None] - taken, axis=2)
        if lightness.min() >= 25 and lightness.max() <= 92 and contrast.min() >= MIN_CONTRAST:
            break
    first, second = lab2rgb(tones).astype(np.float32)
    return kind, first + (second - first) * pattern(rng, kind)[..., None]


def paint(canvas, item):
    """Lay one object over ``canvas`` (256, 256, 3), in place."""
    x0, y0, x1, y1 = item["box"]
    canvas[y0:y1, x0:x1] += (item["rgb"] - canvas[y0:y1, x0:x1]) * item["mask"][..., None]


def draw_scene(rng):
    """Draw one random picture; nothing is written.

    :param rng: numpy Generator; the picture depends on nothing else
    :return: image (256, 256, 3) uint8 and the scene: ``{"background": kind, "objects": [...]}``, each object
        ``{"shape", "color", "size", "box"}``, box ``[x0, y0, x1, y1]`` in pixels, right and bottom exclusive;
        objects go from the top left to the bottom right
    """
    objects = plan_objects(rng)
    kind, canvas = draw_background(rng, [item["rgb"] for item in objects])
    for item in objects:
        paint(canvas, item)
    image = np.round(canvas.clip(0, 1) * 255).astype(np.uint8)
    return image, {"background": kind,
                   "objects": [{key: item[key] for key in ("shape", "color", "size", "box")}
                               for item in objects]}


# ----------------------------------------------------------------------------------------- captions

# The first word of each row is the usual one.
SHAPE_WORDS = {"circle": ("circle", "disc"), "square": ("square", "box"), "triangle": ("triangle",),
               "star": ("star",), "cross": ("cross", "plus"), "ring": ("ring", "hoop"), "heart": ("heart",)}
SIZE_WORDS = {"small": ("small", "little"), "large": ("large", "big")}
RELATION_WORDS = {"left": ("to the left of", "left of", "on the left of"),
                  "right": ("to the right of", "right of", "on the right of"),
                  "above": ("above", "over"), "below": ("below", "under")}
PAIR_WORDS = {"left": ("side by side",),
              "above": ("one above the other", "one over the other")}
OPENINGS = {1: ("there is", "", "the picture shows", "we see"),
            2: ("there are", "", "the picture shows", "we see")}
NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4}
OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}
# Probabilities of the usual choice. They set how well a speaker who always takes it can score: BLEU-4 is then about
# 0.89 against the five captions.
USUAL_WORD = 0.58
USUAL_OPENING = 0.45
BACKWARD_PROBABILITY = 0.1  # a caption begins with the last object
WITH_PROBABILITY = 0.4  # "a star with a ring below it" rather than "a star above a ring"
BACKGROUND_PROBABILITY = 0.4  # a caption mentions the background


def plural(word):
    return word + ("es" if word.endswith(("s", "x")) else "s")


SHAPE_OF_WORD = {form: shape for shape, words in SHAPE_WORDS.items()
                 for word in words for form in (word, plural(word))}


def write_caption(scene, rng=None):
    """One true caption of a scene: every object with size, colour and shape, and how they lie.

    :param scene: as from :func:`draw_scene`
    :param rng: numpy Generator that chooses words and order; None: the usual choice everywhere
    :return: lowercase words joined by spaces, no punctuation
    """

    def chance(probability):
        return rng is not None and rng.random() < probability

    def pick(words, usual=USUAL_WORD):
        return words[rng.integers(1, len(words))] if len(words) > 1 and chance(1 - usual) else words[0]

    def describe(group):
        item = group[0]
        shape, size = pick(SHAPE_WORDS[item["shape"]]), pick(SIZE_WORDS[item["size"]])
        if len(group) == 2:
            return f"two {size} {item['color']} {plural(shape)}"
        return f"a {size} {item['color']} {shape}"

    groups = {}  # objects of one colour and shape are mentioned together
    for item in scene["objects"]:
        groups.setdefault((item["color"], item["shape"]), []).append(item)
    # From the top left to the bottom right: the first is then always to the left of or above the others.
    groups = sorted(groups.values(), key=lambda group: np.mean([sum(centre(item["box"])) for item in group]))
    first = groups.pop(-1 if chance(BACKWARD_PROBABILITY) else 0)
    rest = groups[::-1] if chance(BACKWARD_PROBABILITY) else groups

    words = [pick(OPENINGS[len(first)], USUAL_OPENING), describe(first)]
    if len(first) == 2 and not rest:
        words.append(pick(PAIR_WORDS[relation(first[0]["box"], first[1]["box"])]))
    turned = bool(rest) and chance(WITH_PROBABILITY)
    it = "it" if len(first) == 1 else "them"
    parts = []  # others in the same place share one relation: "above a ring and a heart"
    for place, others in groupby(rest, key=lambda group: relation(first[0]["box"], group[0]["box"])):
        named = " and ".join(describe(group) for group in others)
        if turned:
            parts.append(f"{named} {pick(RELATION_WORDS[OPPOSITE[place]])} {it}")
        else:
            parts.append(f"{pick(RELATION_WORDS[place])} {named}")
    words += ["with" if turned else "", " and ".join(parts)]
    if chance(BACKGROUND_PROBABILITY):
        words.append(f"on a {scene['background']} background")
    return " ".join(word for word in words if word)


def write_captions(scene, rng):
    """Five captions of a scene, no two the same."""
    captions = []
    while len(captions) < CAPTIONS_PER_IMAGE:
        caption = write_caption(scene, rng)
        if caption not in captions:
            captions.append(caption)
    return captions


# ----------------------------------------------------------------------------------------- the files


def generate_shapes(output_folder, train=1200, val=150, test=150, seed=0):
    """Draw a data set in Karpathy's format: ``images/*.png`` and ``dataset_shapes.json``.

    The JSON file is written last, so it stands for a complete set. A set already there with the same settings
    is kept; one with other settings is replaced.

    :param output_folder: made if need be
    :param train: number of pictures in the split; likewise ``val`` and ``test``
    :param seed: 0 or more; every picture depends on (seed, split, index) alone
    :return: path of the JSON file
    """
    folder = Path(output_folder).expanduser()
    json_path = folder / JSON_NAME
    counts = {"train": train, "val": val, "test": test}
    settings = {"dataset": "shapes", "version": VERSION, "seed": seed, "counts": counts}
    names = {f"{split}_{i:05d}.png": (split, i) for split in SPLITS for i in range(counts[split])}

    folder.mkdir(parents=True, exist_ok=True)
    # two notebooks may be started at once: the second finds what the first drew
    with FileLock(folder / ".lock", mode=0o666):  # of other users, too
        try:
            content = json.loads(json_path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            content = {}
        same = all(content.get(key) == value for key, value in settings.items())
        if not (same and all((folder / "images" / name).exists() for name in names)):
            draw_set(folder, json_path, names, settings)
    return json_path


def draw_set(folder, json_path, names, settings):
    """Draw all pictures, then write the JSON file.

    :param names: dict file name -> (split, index)
    """
    json_path.unlink(missing_ok=True)  # from here on the set is incomplete
    images = []
    for imgid, (name, (split, i)) in enumerate(tqdm(names.items(), desc="drawing shapes", unit="image")):
        rng = np.random.default_rng([settings["seed"], SPLITS.index(split), i])
        image, scene = draw_scene(rng)
        with atomic_path(folder / "images" / name) as temporary:
            Image.fromarray(image).save(temporary, format="PNG", compress_level=1)
        sentids = list(range(imgid * CAPTIONS_PER_IMAGE, (imgid + 1) * CAPTIONS_PER_IMAGE))
        sentences = [{"tokens": caption.split(), "raw": caption, "imgid": imgid, "sentid": sentid}
                     for sentid, caption in zip(sentids, write_captions(scene, rng), strict=True)]
        images.append({"filepath": "images", "filename": name, "split": split, "imgid": imgid, "sentids": sentids,
                       "sentences": sentences, **scene})
    write_json(json_path, {**settings, "images": images}, indent=None)


# ---------------------------------------------------------------------------- judging a caption


def shape_words(tokens):
    """The shape words of a caption, synonyms and plurals made canonical: list of (position, number, color, shape).

    ``number`` is 1 and ``color`` None where the caption names none.
    """
    words, number, color = [], 1, None
    for position, token in enumerate(tokens):
        if token in NUMBERS:
            number, color = NUMBERS[token], None
        elif token in COLORS:
            color = token
        elif token in SHAPE_OF_WORD:
            words.append((position, number, color, SHAPE_OF_WORD[token]))
            number, color = 1, None
    return words


def named_objects(tokens):
    """How often a caption names each (color, shape): Counter; "two red discs" -> {("red", "circle"): 2}."""
    counter = Counter()
    for _, number, color, shape in shape_words(tokens):
        counter[color, shape] += number
    return counter


def points_at(alpha, kind, objects):
    """Whether the attention for a word peaks at what the word names.

    :param alpha: (h, w) attention weights of the word; array or CPU tensor
    :param kind: what it names
    :param objects: list of (kind, box)
    :return: whether the centre of the cell with the greatest weight (the first, on ties) lies in the box of such an
        object; and the fraction of all cells whose centre does. Where the picture has no such object: False, and the
        mean over all boxes, so that a wrong caption does not make the comparison easier
    """
    alpha = np.asarray(alpha)
    y, x = ((np.arange(cells) + 0.5) / cells * SIZE for cells in alpha.shape)
    inside = [np.outer((y0 <= y) & (y < y1), (x0 <= x) & (x < x1)) for _, (x0, y0, x1, y1) in objects]
    mine = [cells for cells, (other, _) in zip(inside, objects, strict=True) if other == kind]
    if not mine:
        return False, float(np.mean(inside or 0))
    cells = np.any(mine, axis=0)
    return bool(cells.flat[alpha.argmax()]), float(cells.mean())


VISUAL_WORDS = {*COLORS, *SHAPE_OF_WORD}  # what is seen; the others could be guessed from the words before


def judge_captions(captions, json_path):
    """Check the captions of a whole split against what was drawn.

    A caption is right if it names exactly the objects of the scene: no more, no fewer, each in its colour. The
    attention of a shape word is a hit if it peaks in the box of an object that the word names, see :func:`points_at`.

    :param captions: list of dicts of ``evaluate.caption_split``: ``name``, ``caption``, ``alphas`` (or None)
    :param json_path: the data set's JSON file
    :return: dict: ``images``; ``named``, fraction of captions that are right; ``wrong``, the numbers of the others;
        ``pointing`` and ``chance``, fraction of hits, and what random peaks would reach (both None without attention);
        ``words``, the same for each word: dict word -> list of (hit, chance). None for a data set whose objects nobody
        knows
    """
    json_path = Path(json_path).expanduser()
    if not json_path.exists():
        return None
    images = json.loads(json_path.read_text(encoding="utf-8"))["images"]
    boxes_of = {f"{image['filepath']}/{image['filename']}":
                [((item["color"], item["shape"]), item["box"]) for item in image["objects"]] for image in images}
    wrong, words = [], {}
    for i, c in enumerate(captions):
        boxes = boxes_of[c["name"]]
        if named_objects(c["caption"]) != Counter(kind for kind, _ in boxes):
            wrong.append(i)
        if c["alphas"] is not None:
            for position, _, color, shape in shape_words(c["caption"]):
                found = points_at(c["alphas"][position], (color, shape), boxes)
                words.setdefault(c["caption"][position], []).append(found)
    pairs = [pair for of_word in words.values() for pair in of_word]
    pointing, chance = np.mean(pairs, axis=0).tolist() if pairs else (None, None)
    return {"images": len(captions), "named": 1 - len(wrong) / max(len(captions), 1), "wrong": wrong,
            "pointing": pointing, "chance": chance, "words": words}
