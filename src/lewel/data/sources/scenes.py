"""Procedural images without a download: objects of ten classes on clutter, drawn from a key.

A class is an outline and a texture, so that a crop of an object identifies the class too. Location,
size, rotation, colours, background and clutter are independent of the class. A scene is defined in
unit coordinates and then sampled at any resolution. The main object is larger than all others and
lies above them; its class is the label.
"""

from functools import lru_cache
from math import ceil, cos, floor, pi, sin
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lewel.data.sources.figures import CLASSES, FIGURES, Plane
from lewel.errors import UserError
from lewel.ops.randomness import generator

__all__ = ["CLASSES", "FIGURES", "SIZES", "Scene", "Scenes", "draw_scene"]

Range = tuple[float, float]

SIZES = {"train": 20_000, "val": 2_000}
LABELS = Path(__file__).with_name("scenes_labels.bin")  # computing them takes half a second
SMALLEST_SIZE = 16
WORLD = 0x5CE7E5  # separates these random streams from others keyed by (seed, epoch, index)
# Drawing a scene takes longer than all other work of a loader's worker, and a training run reads
# each once per epoch: images are cached. Only if the whole split fits, because each worker ends up
# with a copy of it.
CACHE_BYTES: Final = 256 * 2**20

OTHERS = 2  # at most, class objects besides the main one
BELOW, ABOVE = 3, 1  # distractors beneath and on top of the objects
WAVES = 12  # of the background texture
THINGS = 1 + OTHERS + BELOW + ABOVE
NUMBERS = 15  # uniform numbers per row; a scene is a table with a row for each thing in it


class Scene(NamedTuple):
    """A rendered scene of M visible objects at S x S pixels; class 0 is the background."""

    image: npt.NDArray[np.uint8]  # (S, S, 3)
    label: int  # 0..9, the class of the main object
    boxes: npt.NDArray[np.float32]  # (M, 4): x0, y0, x1, y1 of the visible parts, in pixels
    classes: npt.NDArray[np.int64]  # (M,): 1..10
    masks: npt.NDArray[np.bool_]  # (M, S, S): visible pixels


class Role(NamedTuple):
    """The ranges of a kind of thing: its figures from `first` up to `last`, radii and locations."""

    first: int
    last: int
    radii: Range
    centres: Range


class Thing(NamedTuple):
    """An object or a distractor in unit coordinates; `figure` indexes FIGURES."""

    figure: int
    x: float
    y: float
    radius: float
    turn: float
    pitch: float
    phase: float
    balance: float
    colours: Plane


# The centre of the main object lies in the middle third of the image. If it could be anywhere, two
# crops of a scene would share its location, a shortcut that is easier to learn than the class.
MAIN = Role(0, len(CLASSES), (0.24, 0.36), (0.34, 0.66))
OTHER = Role(0, len(CLASSES), (0.08, 0.13), (0.05, 0.95))
DISTRACTOR = Role(len(CLASSES), len(FIGURES), (0.025, 0.06), (0.0, 1.0))


def _between(low: float, high: float, number: float) -> float:
    return low + (high - low) * number


def _colours(tones: Plane, chroma: float | Plane, hues: Plane) -> Plane:
    """Colours (..., 3, 1, 1) of 0..255 of given lightness, tinted towards hues of [0, 1]."""
    channels = np.array([0, 1 / 3, 2 / 3], np.float32)
    tints = np.cos((2 * pi) * (hues[..., None] - channels))
    colours: Plane = 255 * (tones[..., None] + chroma * tints)
    return colours[..., None, None]


def _palette(rows: Plane) -> Plane:
    """Two colours (N, 2, 3, 1, 1) for each of N things, from their rows."""
    # One light and one dark colour, in either order: both contrast with the medium background, so
    # that outlines stay visible. Their hues are about opposite, so that the mean is near grey: a
    # tint in every crop would be a shortcut for the class. They are not exactly opposite, and of
    # random strength: otherwise the mean would reveal which classes are half light, half dark.
    light_first = (rows[:, 7:8] < 0.5) == np.array([True, False])
    tones = np.where(light_first, 0.78, 0.1) + 0.12 * rows[:, 8:10]
    hues = rows[:, 10:11] + np.array([0, 0.5]) + np.array([-0.2, 0.2]) * (rows[:, 12:13] - 0.5) * 2
    chroma = 0.03 + 0.09 * rows[:, 13, None, None]
    return _colours(tones, chroma, hues).astype(np.float32)


def _thing(row: list[float], colours: Plane, role: Role) -> Thing:
    """A thing of a role, from a row of uniform numbers."""
    return Thing(
        figure=role.first + int((role.last - role.first) * row[0]),
        x=_between(*role.centres, row[2]),
        y=_between(*role.centres, row[3]),
        radius=_between(*role.radii, row[1]),
        turn=2 * pi * row[4],
        pitch=_between(7.0, 10.0, row[5]),
        phase=2 * pi * row[6],
        balance=_between(-0.15, 0.15, row[14]),
        colours=colours,
    )


def _key(seed: int, split: str, index: int) -> tuple[int, int, int, int]:
    if split not in SIZES:
        raise UserError(f"scenes has no split {split!r}: choose one of {', '.join(SIZES)}.")
    return WORLD, seed, list(SIZES).index(split), index


def _label(seed: int, split: str, index: int) -> int:
    """The first number of a scene's table decides its main object, and so its label."""
    return int(len(CLASSES) * generator(*_key(seed, split, index)).random())


def _labels(seed: int, split: str, length: int) -> npt.NDArray[np.int64]:
    """The labels of the first scenes of a split; those of seed 0 are stored, in order of SIZES."""
    if seed == 0 and length <= SIZES[split]:
        stored = np.fromfile(LABELS, np.uint8)
        start = 0 if split == "train" else SIZES["train"]
        return stored[start : start + length].astype(np.int64)
    return np.array([_label(seed, split, index) for index in range(length)], np.int64)


@lru_cache(maxsize=8)
def _centres(size: int) -> Plane:
    """The pixels' centres (S,) in unit coordinates."""
    return (np.arange(size, dtype=np.float32) + 0.5) / size


def _background(rows: Plane, size: int) -> Plane:
    """The background, grey with a weak texture of K tinted plane waves: K rows -> (3, S, S)."""
    # One wave in each frequency band, and none of less than two periods: all backgrounds have the
    # same tint and spectrum, so that the background does not identify two crops of a scene.
    frequency = (2 * pi) * (2 + 7 * (np.arange(WAVES, dtype=np.float32) + rows[:, 0]) / WAVES)
    direction, phase = (2 * pi) * rows[:, 1], (2 * pi) * rows[:, 2]
    amplitude = _colours(np.full(WAVES, 0.018, np.float32), 0.015, rows[:, 3])[..., 0].T
    # cos(a + b) = cos a cos b + cos(a + pi/2) cos(b - pi/2): the sum is a product of matrices.
    line = _centres(size)[:, None]
    across, down = line * (frequency * np.cos(direction)), line * (frequency * np.sin(direction))
    across += phase
    factors = [
        np.cos(np.concatenate((w, w + q), 1)) for w, q in ((across, pi / 2), (down, -pi / 2))
    ]
    canvas: Plane = (np.tile(amplitude, 2).swapaxes(0, 1) * factors[1]) @ factors[0].T
    canvas += 255 * _between(0.46, 0.54, float(rows[0, 4]))
    return canvas


def _clip(plane: Plane, high: float) -> Plane:
    """The plane clipped to [0, high] in place; np.clip costs three times as much on a small one."""
    np.maximum(plane, 0.0, out=plane)
    return np.minimum(plane, high, out=plane)


def _paint(canvas: Plane, owner: npt.NDArray[np.uint8] | None, thing: Thing, number: int) -> None:
    """Paint a thing on the canvas (3, S, S), and its number on the owners (S, S), in place."""
    size = canvas.shape[-1]
    _, figure, reach = FIGURES[thing.figure]
    extent = reach * thing.radius
    left, right = max(0, floor((thing.x - extent) * size)), ceil((thing.x + extent) * size)
    top, bottom = max(0, floor((thing.y - extent) * size)), ceil((thing.y + extent) * size)
    across = (_centres(size)[left:right] - thing.x) / thing.radius
    down = (_centres(size)[top:bottom, None] - thing.y) / thing.radius
    cosine, sine = cos(thing.turn), sin(thing.turn)
    u, v = cosine * across + sine * down, cosine * down - sine * across
    distance, wave = figure(u, v, thing.pitch, thing.phase)

    distance *= -thing.radius * size  # now in pixels, positive inside: an edge is one pixel wide
    distance += 0.5
    cover = _clip(distance, 1.0)
    wave *= 2.0  # the texture has soft edges, which are the same at all resolutions
    wave += 0.5 + 2.0 * thing.balance
    first, second = thing.colours
    paint = (second - first) * _clip(wave, 1.0)
    paint += first
    window = canvas[:, top:bottom, left:right]
    paint -= window
    paint *= cover
    window += paint
    if owner is not None:
        owner[top:bottom, left:right][cover > 0.5] = number


def _compose(seed: int, split: str, index: int) -> tuple[list[Thing], Plane]:
    """The things of a scene from the bottom to the top, and the rows of its background."""
    numbers = generator(*_key(seed, split, index)).random((THINGS + WAVES, NUMBERS))
    rows, palette = numbers.tolist(), _palette(numbers[:THINGS])
    things = [_thing(rows[0], palette[0], MAIN)]
    for i in range(1, 1 + int((OTHERS + 1) * rows[0][11])):
        things.insert(0, _thing(rows[i], palette[i], OTHER))
    for i in range(1 + OTHERS, THINGS):
        place = 0 if i <= OTHERS + BELOW else len(things)
        things.insert(place, _thing(rows[i], palette[i], DISTRACTOR))
    return things, numbers[THINGS:].astype(np.float32)


def _render(
    seed: int, split: str, index: int, size: int, objects: bool, owner: npt.NDArray[np.uint8] | None
) -> tuple[npt.NDArray[np.uint8], list[Thing]]:
    """The image (3, S, S) of a scene and its things; fills the owners (S, S) if wanted."""
    things, background = _compose(seed, split, index)
    canvas = _background(background, size)
    for number, thing in enumerate(things, start=1):
        if objects or thing.figure >= len(CLASSES):
            _paint(canvas, owner, thing, number)
    canvas += 0.5
    return _clip(canvas, 255.0).astype(np.uint8), things


def _check_size(size: int) -> None:
    if size < SMALLEST_SIZE:
        raise UserError(
            f"scenes cannot be drawn at size {size}, where objects would vanish: "
            f"choose {SMALLEST_SIZE} pixels or more."
        )


def draw_scene(seed: int, split: str, index: int, size: int = 64, *, objects: bool = True) -> Scene:
    """The scene of a key, with the boxes and masks of its objects, or with its objects erased."""
    _check_size(size)
    if index < 0:
        raise IndexError(f"scene {index} does not exist: indices begin at 0")
    owner = np.zeros((size, size), np.uint8)
    image, things = _render(seed, split, index, size, objects, owner)
    boxes, classes, masks = [], [], []
    for number, thing in enumerate(things, start=1):
        mask = owner == number
        if thing.figure >= len(CLASSES) or not mask.any():
            continue
        columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
        boxes.append((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
        classes.append(1 + thing.figure)
        masks.append(mask)
    return Scene(
        image=np.ascontiguousarray(image.transpose(1, 2, 0)),
        label=_label(seed, split, index),
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        classes=np.array(classes, np.int64),
        masks=np.array(masks, np.bool_).reshape(-1, size, size),
    )


class Scenes:
    """The scenes of a split as a source of images and labels."""

    name = "scenes"
    classes = CLASSES

    def __init__(
        self, split: str = "train", size: int = 64, length: int | None = None, seed: int = 0
    ) -> None:
        _check_size(size)
        _key(seed, split, 0)
        self.split, self.size, self.seed = split, size, seed
        self.length = SIZES[split] if length is None else length
        self.labels = _labels(seed, split, self.length)
        self._cached = self.length * 3 * size * size <= CACHE_BYTES
        self._cache: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return self.length

    def __getstate__(self) -> dict[str, Any]:
        """Without the cached images, so that spawned workers start fast."""
        return {**self.__dict__, "_cache": {}}

    def read(self, index: int) -> torch.Tensor:
        """The image (3, S, S) uint8 of a scene.

        It may be cached: callers must not write into it. `crop_view` never does.
        """
        self._check_index(index)
        if (cached := self._cache.get(index)) is not None:
            return cached
        drawn, _ = _render(self.seed, self.split, index, self.size, True, None)
        image = torch.from_numpy(drawn)
        if self._cached:
            self._cache[index] = image
        return image

    def describe(self, index: int) -> str:
        """The name of a scene in messages and reports."""
        self._check_index(index)
        return f"{self.name}/{self.split}/{index}"

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self.length:
            raise IndexError(f"scene {index} does not exist: the split has {self.length}")
