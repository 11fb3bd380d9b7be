"""COCO's instance masks (polygons and RLE), to and from arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

Bits = npt.NDArray[np.bool_]


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
