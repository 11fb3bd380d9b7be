"""Pascal VOC's average precision (AP), 11-point and all-point, at IoU 0.50 to 0.95."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

THRESHOLDS = tuple(round(0.5 + 0.05 * n, 2) for n in range(10))
RULES = ("11-point", "area")  # VOC2007's, and the all-point AP of later years


class Detections(NamedTuple):
    """The detections of an image."""

    boxes: Floats  # (D, 4)
    classes: Ints  # (D,): from 1
    scores: Floats  # (D,)


class GroundTruth(NamedTuple):
    """The objects of an image."""

    boxes: Floats  # (M, 4)
    classes: Ints  # (M,): from 1
    difficult: Bools  # (M,): ignored in evaluation


def voc_ap(
    found: Sequence[Detections], ground_truth: Sequence[GroundTruth], classes: Sequence[str]
) -> dict[str, Any]:
    """AP, AP50 and AP75 by each rule, means over the classes with objects that are not difficult.

    AP is the mean over IoU 0.50, 0.55, ..., 0.95. AP50 of each class is included.
    """
    curves: dict[str, list[tuple[Floats, Floats]]] = {}
    for number, name in enumerate(classes, start=1):
        curve = _curves(found, ground_truth, number)
        if curve:
            curves[name] = curve
    out: dict[str, Any] = {}
    for rule in RULES:
        values = np.array(
            [[average_precision(*one, rule) for one in own] for own in curves.values()]
        )
        means = values.mean(0) if len(values) else np.zeros(len(THRESHOLDS))
        each = {name: float(row[0]) for name, row in zip(curves, values, strict=True)}
        out[rule] = {
            "AP": float(means.mean()),
            "AP50": float(means[0]),
            "AP75": float(means[THRESHOLDS.index(0.75)]),
            "per_class_AP50": each,
        }
    return out


def average_precision(recall: Floats, precision: Floats, rule: str) -> float:
    """All-point AP ('area') or 11-point AP of a curve (D,); precision is made monotonic.

    >>> average_precision(np.array([0.5, 0.5, 1.0]), np.array([1.0, 0.5, 2 / 3]), "area")
    0.8333333333333333
    """
    if rule == "11-point":
        # n / 10 rather than a running sum, whose rounding errors would shift the last recalls.
        points = [n / 10 for n in range(11)]
        return float(np.mean([precision[recall >= p].max(initial=0.0) for p in points]))
    recall = np.concatenate([[0.0], recall, [1.0]])
    falling = np.maximum.accumulate(np.concatenate([[0.0], precision, [0.0]])[::-1])[::-1]
    return float(np.sum(np.diff(recall) * falling[1:]))


def _curves(
    found: Sequence[Detections], ground_truth: Sequence[GroundTruth], number: int
) -> list[tuple[Floats, Floats]]:
    """Recall and precision (D,) of a class at each threshold; empty if it has no objects."""
    wanted = [image.classes == number for image in ground_truth]
    boxes = [image.boxes[own] for image, own in zip(ground_truth, wanted, strict=True)]
    difficult = [image.difficult[own] for image, own in zip(ground_truth, wanted, strict=True)]
    total = sum(int((~own).sum()) for own in difficult)
    if not total:
        return []
    rows: list[tuple[float, int, float, int]] = []  # score, image, best IoU, its object
    for image, one in enumerate(found):
        own = one.classes == number
        overlap = iou(one.boxes[own], boxes[image])
        for score, line in zip(one.scores[own], overlap, strict=True):
            best = int(line.argmax()) if len(line) else -1
            rows.append((float(score), image, float(line[best]) if len(line) else -1.0, best))
    rows.sort(key=lambda row: -row[0])
    return [_curve(rows, difficult, total, threshold) for threshold in THRESHOLDS]


def _curve(
    rows: Sequence[tuple[float, int, float, int]],
    difficult: Sequence[Bools],
    total: int,
    threshold: float,
) -> tuple[Floats, Floats]:
    """A detection matches the object of highest IoU; each object is matched once."""
    taken: set[tuple[int, int]] = set()
    right = np.zeros(len(rows))
    wrong = np.zeros(len(rows))
    for place, (_, image, overlap, best) in enumerate(rows):
        if overlap <= threshold or (image, best) in taken:
            wrong[place] = 1
        elif not difficult[image][best]:
            taken.add((image, best))
            right[place] = 1
    hits, misses = right.cumsum(), wrong.cumsum()
    return hits / total, hits / np.maximum(hits + misses, np.finfo(np.float64).eps)


def iou(one: Floats, two: Floats) -> Floats:
    """Intersection over union of boxes (D, 4) and (M, 4) -> (D, M)."""
    low = np.maximum(one[:, None, :2], two[None, :, :2])
    high = np.minimum(one[:, None, 2:], two[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (one, two)]
    whole: Floats = areas[0][:, None] + areas[1][None] - shared
    ratio: Floats = shared / np.maximum(whole, np.finfo(np.float64).tiny)
    return ratio
