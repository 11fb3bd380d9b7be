"""Average precision: VOC's by hand, COCO's against pycocotools."""

import contextlib
import copy
import io

import numpy as np
import pytest
import torch

from lewel.data.dense.scene_boxes import SceneBoxes
from lewel.evaluate.coco_ap import coco_ap
from lewel.evaluate.detections import ImageDetections, paste, results_of, to_image_pixels
from lewel.evaluate.voc_ap import (
    THRESHOLDS,
    Detections,
    GroundTruth,
    average_precision,
    iou,
    voc_ap,
)


def found(boxes: list[list[float]], classes: list[int], scores: list[float]) -> Detections:
    return Detections(np.array(boxes, float).reshape(-1, 4), np.array(classes), np.array(scores))


def ground_truth(
    boxes: list[list[float]], classes: list[int], difficult: list[bool]
) -> GroundTruth:
    return GroundTruth(
        np.array(boxes, float).reshape(-1, 4), np.array(classes), np.array(difficult, bool)
    )


def test_voc_ap_by_hand() -> None:
    """One class: three objects and a difficult one, five detections, sorted by score.

    0.9 matches A (IoU 1). 0.8 matches A again: wrong. 0.7 matches the difficult one: ignored.
    0.6 matches B with IoU 0.7: right up to 0.65. 0.5 matches nothing: wrong. C is missed.
    """
    known = [
        ground_truth([[0, 0, 10, 10], [50, 50, 60, 60]], [1, 1], [False, True]),
        ground_truth([[0, 0, 10, 10], [80, 80, 90, 90]], [1, 1], [False, False]),
    ]
    seen = [
        found([[0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60]], [1, 1, 1], [0.9, 0.8, 0.7]),
        found([[0, 0, 10, 7], [30, 30, 40, 40]], [1, 1], [0.6, 0.5]),
    ]
    # At 0.5: right, wrong, right, wrong -> recall 1/3 1/3 2/3 2/3, precision 1 1/2 2/3 1/2.
    # At 0.7 (not above it) and more the detection of B is wrong: recall 1/3, precision 1.
    low = {"area": 1 / 3 * 1 + 1 / 3 * 2 / 3, "11-point": (4 * 1 + 3 * 2 / 3) / 11}
    high = {"area": 1 / 3, "11-point": 4 / 11}
    result = voc_ap(seen, known, ["a", "b"])
    for rule in ("area", "11-point"):
        assert result[rule]["AP50"] == pytest.approx(low[rule])
        assert result[rule]["AP75"] == pytest.approx(high[rule])
        assert result[rule]["AP"] == pytest.approx(0.4 * low[rule] + 0.6 * high[rule])
        assert result[rule]["per_class_AP50"] == {"a": pytest.approx(low[rule])}
    assert THRESHOLDS[0] == 0.5 and THRESHOLDS[5] == 0.75 and THRESHOLDS[-1] == 0.95


def test_voc_ap_of_everything_and_of_nothing() -> None:
    known = [ground_truth([[0, 0, 4, 4], [5, 5, 9, 9]], [1, 2], [False, False])]
    perfect = [found([[0, 0, 4, 4], [5, 5, 9, 9]], [1, 2], [0.3, 0.4])]
    nothing = [found([], [], [])]
    wrong_class = [found([[0, 0, 4, 4]], [2], [0.9])]
    for seen, expected in ((perfect, 1.0), (nothing, 0.0), (wrong_class, 0.0)):
        for numbers in voc_ap(seen, known, ["a", "b"]).values():
            assert numbers["AP"] == numbers["AP50"] == pytest.approx(expected)
    assert iou(np.array([[0, 0, 2, 2]]), np.array([[1, 1, 3, 3]]))[0, 0] == pytest.approx(1 / 7)
    assert average_precision(np.zeros(0), np.zeros(0), "area") == 0


def detections(source: SceneBoxes) -> list[ImageDetections]:
    """The ground truth with noise, some wrong classes and some boxes without an object."""
    draw, out = np.random.default_rng(3), []
    for index in range(len(source)):
        scene = source.scene(index)
        size, count = source.size, len(scene.boxes)
        boxes = np.concatenate([scene.boxes + draw.normal(0, 1.5, (count, 4)), [[5, 5, 20, 30]]])
        boxes = np.clip(boxes, 0, size)
        boxes = np.stack([*np.sort(boxes[:, ::2]).T, *np.sort(boxes[:, 1::2]).T])[[0, 2, 1, 3]].T
        classes = np.append(np.where(draw.random(count) < 0.8, scene.classes, 1), 2)
        found = {
            "boxes": torch.from_numpy(boxes).float(),
            "labels": torch.from_numpy(classes),
            "scores": torch.from_numpy(draw.random(count + 1)),
            "masks": torch.from_numpy(draw.random((count + 1, 28, 28)) ** 0.2),
        }
        out.append(to_image_pixels(index, found, (size, size), (size, size)))
    return out


def test_coco_ap_equals_pycocotools() -> None:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    source = SceneBoxes("val", 64, np.arange(12))
    rows, known = results_of(detections(source)), source.coco_ground_truth()
    result = coco_ap(known, rows, masks=True)
    for kind, name, other in (("bbox", "box", "segmentation"), ("segm", "mask", "bbox")):
        with contextlib.redirect_stdout(io.StringIO()):
            theirs = COCO()
            theirs.dataset = copy.deepcopy(known)
            theirs.createIndex()
            mine = [{k: v for k, v in row.items() if k != other} for row in rows]
            evaluator = COCOeval(theirs, theirs.loadRes(mine), kind)
            evaluator.evaluate()
            evaluator.accumulate()
            evaluator.summarize()
        assert 0.05 < evaluator.stats[0] < 0.95
        assert list(result[name].values()) == pytest.approx(evaluator.stats[:6].tolist(), abs=1e-12)
    assert coco_ap(known, [], masks=True)["mask"]["AP"] == 0


def test_masks_are_pasted_where_their_boxes_are() -> None:
    masks = torch.zeros(2, 4, 4)
    masks[0], masks[1, :, 2:] = 1.0, 1.0
    boxes = torch.tensor([[2.0, 3.0, 6.0, 5.0], [0.0, 0.0, 8.0, 8.0]])
    one, two = paste(masks, boxes, 8, 8)
    expected = np.zeros((8, 8), bool)
    expected[3:5, 2:6] = True
    assert np.array_equal(one, expected)
    assert two[:, 4:].all() and not two[:, :4].any()
    assert paste(masks[:0], boxes[:0], 8, 8).shape == (0, 8, 8)


def test_masks_leave_the_device_only_after_pasting(monkeypatch: pytest.MonkeyPatch) -> None:
    moved, real = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda one: moved.append(one) or real(one))
    found = {
        "boxes": torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
        "labels": torch.tensor([2]),
        "scores": torch.tensor([0.5]),
        "masks": torch.ones(1, 28, 28),
    }
    assert to_image_pixels(7, found, (10, 20), (10, 20)).masks is not None
    assert [one.dtype for one in moved if one.ndim == 3] == [torch.bool]


def test_detections_are_scaled_to_the_original_image() -> None:
    found = {
        "boxes": torch.tensor([[10.0, 20.0, 30.0, 40.0]]),
        "labels": torch.tensor([2]),
        "scores": torch.tensor([0.5]),
    }
    seen = to_image_pixels(7, found, (100, 200), (50, 400))
    assert seen.boxes.tolist() == [[20.0, 10.0, 60.0, 20.0]] and seen.masks is None
    assert results_of([seen]) == [
        {"image_id": 7, "category_id": 2, "bbox": [20.0, 10.0, 40.0, 10.0], "score": 0.5}
    ]
