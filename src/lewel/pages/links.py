"""Two views of an image side by side, with the regions that belong together in one colour."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from lewel.evaluate.links import Links, Regions
from lewel.pages.overlays import COVER, GAP, PAPER, TILE, enlarged

Pixels = NDArray[np.uint8]
SCALE = 2  # drawn larger than a tile, for pages


def draw_links(one: Pixels, two: Pixels, links: Links) -> Pixels:
    """Views (S, S, 3) with their coloured regions -> one picture (H, 2 H + gap, 3)."""
    side = SCALE * TILE
    page = Image.new("RGB", (2 * side + SCALE * GAP, side), PAPER)
    for number, (view, regions) in enumerate(((one, links.one), (two, links.two))):
        page.paste(_drawn(view, regions, side, links.filled), (number * (side + SCALE * GAP), 0))
    return np.asarray(page)


def _drawn(view: Pixels, regions: Regions, side: int, filled: bool) -> Image.Image:
    """One view in grey with its regions, filled and translucent or outlined."""
    grey = enlarged(view, side).convert("L").convert("RGB")
    layer = grey.copy()
    draw = ImageDraw.Draw(layer)
    corners = (regions.boxes * side).round().int().tolist()
    colours = (regions.colours * 255).round().int().tolist()
    for (left, top, right, bottom), colour in zip(corners, colours, strict=True):
        box = (left, top, right - 1, bottom - 1)
        fill, outline = (tuple(colour), None) if filled else (None, tuple(colour))
        draw.rectangle(box, fill=fill, outline=outline, width=SCALE)
    return Image.blend(grey, layer, COVER) if filled else layer
