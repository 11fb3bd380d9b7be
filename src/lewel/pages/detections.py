"""Pictures of detections: ground truth on the left, predictions on the right."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from lewel.files import free_path, write_marked

Pixels = npt.NDArray[np.uint8]

COLOURS = (
    (230, 60, 60), (60, 150, 240), (60, 190, 90), (240, 170, 40), (170, 90, 220), (40, 200, 200),
    (240, 110, 180), (150, 160, 40), (110, 110, 250), (250, 120, 60),
)  # fmt: skip
GAP, SMALLEST = 8, 320  # pixels between the two pictures; the least width of a picture


def draw_objects(
    image: Pixels,
    boxes: npt.NDArray[Any],
    classes: Sequence[int],
    labels: Sequence[str],
    masks: npt.NDArray[np.bool_] | None,
) -> Image.Image:
    """An image (H, W, 3) with boxes (M, 4), a label at each, and masks (M, H, W) as a tint."""
    canvas = image.astype(np.float32)
    for number, bits in zip(classes, () if masks is None else masks, strict=False):
        canvas[bits] = 0.55 * canvas[bits] + 0.45 * np.array(colour(number), np.float32)
    scale = max(1, -(-SMALLEST // image.shape[1]))
    picture = Image.fromarray(canvas.astype(np.uint8))
    picture = picture.resize((picture.width * scale, picture.height * scale), 0)
    pen = ImageDraw.Draw(picture)
    for box, number, label in zip(boxes, classes, labels, strict=True):
        left, top, right, bottom = (float(edge) * scale for edge in box)
        # Pillow refuses a right edge left of the left one.
        corners = (left, top, max(left, right - 1), max(top, bottom - 1))
        pen.rectangle(corners, outline=colour(number), width=2)
        edges = pen.textbbox((left + 2, max(0.0, top - 11)), label)
        pen.rectangle(edges, fill=colour(number))
        pen.text((left + 2, max(0.0, top - 11)), label, fill="white")
    return picture


def colour(number: int) -> tuple[int, int, int]:
    """The colour of a class."""
    return COLOURS[number % len(COLOURS)]


def save_pair(ground_truth: Image.Image, found: Image.Image, caption: str, path: Path) -> Path:
    """Two pictures side by side above a line of text, as a PNG -> the file."""
    page = Image.new(
        "RGB", (ground_truth.width + GAP + found.width, ground_truth.height + 16), "white"
    )
    page.paste(ground_truth, (0, 0))
    page.paste(found, (ground_truth.width + GAP, 0))
    ImageDraw.Draw(page).text((2, ground_truth.height + 2), caption, fill="black")
    path.parent.mkdir(parents=True, exist_ok=True)
    path = free_path(path, "detect")
    write_marked(path, "detect", lambda aside: page.save(aside, format="PNG"))
    return path
