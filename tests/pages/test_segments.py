"""Pictures of segmentations: parts, headings, file name and legend."""

import numpy as np
import torch
from PIL import Image, ImageFont

from lewel.pages.segments import GAP, LINE, enlargement, legend, legend_rows, segmentation_picture


def test_the_legend_names_the_classes_of_both_masks() -> None:
    truth, found = torch.tensor([[0, 2], [255, 2]]), torch.tensor([[0, 1], [0, 1]])
    names = ("background", "cat", "dog", "owl")
    entries = legend(truth, found, names)
    assert [one.name for one in entries] == ["background", "cat", "dog", "ignored"]
    assert entries[1].colour == (128, 0, 0) and entries[2].colour == (0, 128, 0)


def test_long_legends_are_wrapped() -> None:
    names = [f"class number {n}" for n in range(40)]
    masks = torch.arange(40).view(1, 40)
    rows = legend_rows(legend(masks, masks, names), 600, ImageFont.load_default(13))
    assert len(rows) > 1 and sum(map(len, rows)) == 40
    assert all(left < 600 for row in rows for left, _ in row)


def test_a_picture_has_text_above_its_parts_and_a_legend_below() -> None:
    image = torch.full((3, 20, 30), 200, dtype=torch.uint8)
    mask = torch.zeros(20, 30, dtype=torch.uint8)
    mask[:, 15:] = 1
    made = [
        np.asarray(segmentation_picture(image, mask, mask, ("nothing", "cat"), name))
        for name in ("images/a.png", "images/b.png")
    ]
    scale = enlargement(30)
    assert made[0].shape[1] == 3 * 30 * scale + 2 * GAP
    different = (made[0] != made[1]).any((1, 2)).nonzero()[0]
    assert different.size and different.max() < LINE  # the file's name is in the first line
    for place in range(3):  # a heading above each part
        left = place * (30 * scale + GAP)
        assert (made[0][LINE : 2 * LINE, left : left + 30 * scale] < 128).any()
    below = made[0][2 * LINE + 20 * scale :].reshape(-1, 3)
    assert (below == (128, 0, 0)).all(1).any() and (below == (0, 0, 0)).all(1).any()
    other = np.asarray(segmentation_picture(image, mask, mask, ("nothing", "dog"), "images/a.png"))
    changed = (made[0] != other).any((1, 2)).nonzero()[0]
    assert changed.size and changed.min() >= 2 * LINE + 20 * scale  # a name in the legend
    assert Image.fromarray(made[0]).mode == "RGB"
    strange = segmentation_picture(image, mask, mask, ("a", "b"), "na\udcffme.png")
    assert strange.size == (made[0].shape[1], made[0].shape[0])
