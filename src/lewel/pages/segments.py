"""Pictures of segmentations: an image, its ground-truth mask, the predicted one, and a legend."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lewel.data.dense.voc import IGNORED, palette

GAP = 8  # white pixels between the parts
SMALLEST = 240  # least width of a part: small images are enlarged by a whole factor
LINE, FONT = 20, 13  # pixels of a line of text, and of its letters
SWATCH = 12
HEADINGS = ("image", "ground truth", "prediction")


class Entry(NamedTuple):
    """A class in the legend."""

    name: str
    colour: tuple[int, int, int]


def enlargement(width: int) -> int:
    """The factor by which an image of this width is enlarged."""
    return max(1, -(-SMALLEST // width))


def segmentation_picture(
    image: Tensor, truth: Tensor, found: Tensor, classes: Sequence[str], name: str
) -> Image.Image:
    """An image uint8 (3, H, W) and two masks (H, W) in VOC's colours, with headings and a legend.

    The top left corner of the first part is at (0, 2 LINE).
    """
    colours, scale = palette(), enlargement(image.shape[2])
    shown = [image.permute(1, 2, 0).numpy(), colours[truth.numpy()], colours[found.numpy()]]
    parts = [Image.fromarray(np.ascontiguousarray(part)) for part in shown]
    wide, high = scale * image.shape[2], scale * image.shape[1]
    width = len(parts) * (wide + GAP) - GAP
    font = ImageFont.load_default(FONT)
    rows = legend_rows(legend(truth, found, classes), width, font)
    page = Image.new("RGB", (width, 2 * LINE + high + GAP + LINE * len(rows)), "white")
    pen = ImageDraw.Draw(page)
    pen.text((2, 2), _printable(name), fill="black", font=font)
    for place, (part, heading) in enumerate(zip(parts, HEADINGS, strict=True)):
        left = place * (wide + GAP)
        pen.text((left + 2, LINE + 2), heading, fill="black", font=font)
        page.paste(part.resize((wide, high), Image.Resampling.NEAREST), (left, 2 * LINE))
    for number, row in enumerate(rows):
        top = 2 * LINE + high + GAP + number * LINE
        for left, entry in row:
            corners = (left, top + 2, left + SWATCH, top + 2 + SWATCH)
            pen.rectangle(corners, fill=entry.colour, outline="black")
            pen.text((left + SWATCH + 4, top), entry.name, fill="black", font=font)
    return page


def legend(truth: Tensor, found: Tensor, classes: Sequence[str]) -> list[Entry]:
    """The classes that one of the masks shows, and the ignored pixels."""
    colours = palette().tolist()
    present = np.union1d(truth.numpy(), found.numpy()).tolist()
    names = dict(enumerate(classes)) | {IGNORED: "ignored"}
    return [
        Entry(_printable(names.get(number, str(number))), tuple(colours[number]))
        for number in present
    ]


def legend_rows(
    entries: Sequence[Entry], width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> list[list[tuple[int, Entry]]]:
    """The entries in rows of at most this width, each with its left edge."""
    rows: list[list[tuple[int, Entry]]] = [[]]
    left = 0
    for entry in entries:
        wide = SWATCH + 4 + int(font.getlength(entry.name)) + 2 * GAP
        if rows[-1] and left + wide > width:
            rows.append([])
            left = 0
        rows[-1].append((left, entry))
        left += wide
    return rows


def _printable(text: str) -> str:
    """Text without the parts of a file name that are not UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
