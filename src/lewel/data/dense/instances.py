"""COCO's instance masks (polygons and RLE), to and from arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

Bits = npt.NDArray[np.bool_]
FAR = 10  # sizes of its image: drawing a polygon of farther points would take the memory


def rasterise(shape: Any, own: tuple[int, int], height: int, width: int) -> Bits:
    """Polygons or RLE of an image of size `own` (H, W) -> mask (height, width).

    Polygons are scaled before they are drawn, so that no edge is resampled.
    """
    from faster_coco_eval.core import mask

    if isinstance(shape, list):
        scale = np.array([width / own[1], height / own[0]])
        lines = [(np.reshape(line, (-1, 2)) * scale).ravel().tolist() for line in shape]
        lines = [line for line in lines if len(line) >= 6]
        if not lines:
            return np.zeros((height, width), np.bool_)
        bits: Bits = mask.decode(mask.merge(mask.frPyObjects(lines, height, width))).astype(bool)
        return bits
    counts = shape["counts"]
    packed = mask.frPyObjects(shape, *shape["size"]) if isinstance(counts, list) else shape
    decoded: Bits = mask.decode(packed).astype(bool)[None]
    out: Bits = shrink(decoded, height, width)[0]
    return out


def mask_fault(shape: Any, own: tuple[int, int]) -> str | None:
    """What is wrong with polygons or RLE of an image of size `own` (H, W), if anything."""
    if isinstance(shape, dict):
        size, counts = shape.get("size"), shape.get("counts")
        if size != list(own):
            return f"its RLE is of size {size}, expected {list(own)}, the image's height and width"
        runs = _runs(counts) if isinstance(counts, str) else counts
        if not isinstance(runs, list) or any(type(run) is not int or run < 0 for run in runs):
            return "the counts of its RLE are no counts"
        total, expected = sum(runs), own[0] * own[1]
        return None if total == expected else f"its RLE has {total} pixels, expected {expected}"
    if not isinstance(shape, list) or not all(isinstance(line, list) for line in shape):
        return "its segmentation is neither a list of polygons nor RLE"
    lengths = [len(line) for line in shape]
    if max(lengths, default=0) < 6 or any(length % 2 or length < 4 for length in lengths):
        return "its polygons are no lists of x, y, x, y, ... of three points or more"
    numbers = [number for line in shape for number in line]
    if not set(map(type, numbers)) <= {int, float}:
        return "its polygons hold what is no number"
    far = max(numbers, key=abs)
    return f"a point at {far:g} is far outside" if abs(far) > FAR * max(own) else None


def _runs(text: str) -> list[int] | None:
    """The counts of a compressed RLE; None for a text that is none.

    Six bits a letter: five of the number, lowest first, and whether more follow. From the fourth
    on, a number is the difference to the one before the last.
    """
    runs: list[int] = []
    number = bits = 0
    for letter in text:
        six = ord(letter) - 48
        if not 0 <= six < 64 or bits > 60:
            return None
        number |= (six & 31) << bits
        bits += 5
        if six & 32:
            continue
        if six & 16:
            number -= 1 << bits
        runs.append(number + (runs[-2] if len(runs) > 2 else 0))
        number = bits = 0
    return runs if not bits else None


def shrink(bits: Bits, height: int, width: int) -> Bits:
    """Masks (M, H, W) -> (M, height, width), by nearest-neighbour sampling."""
    if not len(bits):
        return np.zeros((0, height, width), np.bool_)
    if bits.shape[1:] == (height, width):
        return bits
    floats = torch.from_numpy(np.ascontiguousarray(bits))[:, None].float()
    out: Bits = F.interpolate(floats, (height, width), mode="nearest-exact")[:, 0].numpy() > 0.5
    return out


def encode(bits: Bits) -> list[dict[str, Any]]:
    """Masks (M, H, W) as compressed RLE, as text."""
    from faster_coco_eval.core import mask

    rows = [mask.encode(np.asfortranarray(one.astype(np.uint8))) for one in bits]
    return [{**row, "counts": _text(row["counts"])} for row in rows]


def _text(counts: Any) -> str:
    return counts.decode("ascii") if isinstance(counts, bytes) else str(counts)
