"""COCO's average precision (AP) of boxes and masks, by faster-coco-eval."""

import copy
from typing import Any

NAMES = {"bbox": "box", "segm": "mask"}
NUMBERS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")


def coco_ap(
    ground_truth: dict[str, Any], found: list[dict[str, Any]], *, masks: bool
) -> dict[str, dict[str, float]]:
    """COCO's AP at IoU 0.50:0.95, 0.50 and 0.75 and by area, of boxes and perhaps masks.

    `ground_truth` and `found` have the format of COCO's instances and results files. AP is -1, as
    in COCO, where there is no object of an area.
    """
    out = {}
    for kind in ("bbox", "segm") if masks else ("bbox",):
        numbers = _evaluate(ground_truth, found, kind) if found else [0.0] * len(NUMBERS)
        out[NAMES[kind]] = dict(zip(NUMBERS, numbers, strict=True))
    return out


def _evaluate(ground_truth: dict[str, Any], found: list[dict[str, Any]], kind: str) -> list[float]:
    from faster_coco_eval import COCO, COCOeval_faster

    def silent(*words: object) -> None:
        pass

    # With both keys the area of a mask would be that of its box.
    left_out = "bbox" if kind == "segm" else "segmentation"
    rows = [{key: value for key, value in one.items() if key != left_out} for one in found]
    known = COCO(copy.deepcopy(ground_truth), print_function=silent)
    mine = known.loadRes(rows)
    evaluator = COCOeval_faster(known, mine, kind, print_function=silent)
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return [float(number) for number in evaluator.stats[: len(NUMBERS)]]
