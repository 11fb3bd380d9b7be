"""COCO's average precision of boxes and masks, by faster-coco-eval."""

import copy
from typing import Any

NAMES = {"bbox": "box", "segm": "mask"}
NUMBERS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")


def coco_ap(
    truth: dict[str, Any], found: list[dict[str, Any]], *, masks: bool
) -> dict[str, dict[str, float]]:
    """COCO's AP at IoU 0.50:0.95, 0.50 and 0.75 and by area, of boxes and perhaps masks.

    `truth` and `found` are as in COCO's files of instances and of results. -1 is COCO's own
    number where there is nothing of an area.
    """
    out = {}
    for kind in ("bbox", "segm") if masks else ("bbox",):
        numbers = _judge(truth, found, kind) if found else [0.0] * len(NUMBERS)
        out[NAMES[kind]] = dict(zip(NUMBERS, numbers, strict=True))
    return out


def _judge(truth: dict[str, Any], found: list[dict[str, Any]], kind: str) -> list[float]:
    from faster_coco_eval import COCO, COCOeval_faster

    def silent(*words: object) -> None:
        pass

    # The area of a detection is that of what is judged: with a box, a mask's would be the box's.
    left_out = "bbox" if kind == "segm" else "segmentation"
    rows = [{key: value for key, value in one.items() if key != left_out} for one in found]
    known = COCO(copy.deepcopy(truth), print_function=silent)
    mine = known.loadRes(rows)
    judge = COCOeval_faster(known, mine, kind, print_function=silent)
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    return [float(number) for number in judge.stats[: len(NUMBERS)]]
