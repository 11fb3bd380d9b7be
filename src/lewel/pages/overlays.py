"""Maps as pictures: heat maps over an image, and a grid of them as one PNG."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from lewel.pages.gallery import Gallery, GalleryView

Pixels = NDArray[np.uint8]

# Dark to light through purple and orange; lightness rises too, for colour-blind readers.
HEAT = np.array(
    [(8, 6, 40), (74, 16, 108), (150, 38, 103), (217, 72, 66), (247, 137, 24), (252, 232, 130)],
    np.float64,
)
COVER = 0.65  # opacity of the heat map over the grey image
TILE, GAP, LINE, EDGE = 128, 4, 15, 14
PICTURE_ALT = "Alignment maps: rows are an image and its two views, columns are maps"
LINKED = "views 1 and 2, linked by colour"
PAPER, INK, PALE = (255, 255, 255), (30, 30, 30), (110, 110, 110)


def heat(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Colours (..., 3) of 0 to 255 for values of 0 to 1."""
    at = np.clip(values, 0, 1) * (len(HEAT) - 1)
    stops = np.arange(len(HEAT))
    return np.stack([np.interp(at, stops, channel) for channel in HEAT.T], -1)


def scaled(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """A map (h, w) from its lowest value at 0 to its highest at 1; zeros where it is constant."""
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-6 * abs(high):  # constant up to rounding
        return np.zeros(values.shape)
    return (values.astype(np.float64) - low) / (high - low)


def overlay(image: Pixels, values: NDArray[np.float32], side: int) -> Pixels:
    """A map (h, w) as heat over the grey image (S, S, 3), at side x side pixels."""
    plane = Image.fromarray(scaled(values).astype(np.float32))
    warm = heat(np.asarray(plane.resize((side, side), Image.Resampling.BICUBIC), np.float64))
    grey = np.asarray(enlarged(image, side).convert("L"), np.float64)[..., None]
    return (COVER * warm + (1 - COVER) * grey).round().astype(np.uint8)


def enlarged(image: Pixels, side: int) -> Image.Image:
    """A picture (S, S, 3) at side x side pixels."""
    return Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC)


def raw_range(values: NDArray[np.float32]) -> str:
    """The lowest and the highest value of a map in thousandths; `flat` if it is constant."""
    low, high = 1000 * float(values.min()), 1000 * float(values.max())
    digits = max(0, 3 - len(str(int(high))))  # at least three significant digits, the same for both
    both = f"{low:.{digits}f} to {high:.{digits}f}"
    return f"flat {low:.{digits}f}" if high - low <= 1e-6 * high else both


def png(image: Image.Image | Pixels) -> bytes:
    """The bytes of a PNG file."""
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, "PNG")
    return file.getvalue()


def grid(gallery: Gallery) -> Image.Image:
    """All images of a gallery: a row for each view, first the picture, then the maps."""
    step, row = TILE + GAP, TILE + LINE + GAP
    width = 2 * EDGE + step * (1 + len(gallery.chosen)) - GAP
    text = ImageFont.load_default(11)
    words = f"Maps selected: {gallery.rule}. Colours from the lowest to the highest value of each "
    words += f"map, printed below it in thousandths. {gallery.caption}"
    head = _wrapped(words, width - 2 * EDGE, text)
    for note in (gallery.note, gallery.link_note):
        head += _wrapped(note, width - 2 * EDGE, text) if note else []
    top = EDGE + LINE * len(head) + LINE + GAP
    rows = [len(seen.views) + (seen.linked is not None) for seen in gallery.images]
    block = [LINE + GAP + row * many for many in rows]
    page = Image.new("RGB", (width, top + sum(block) + EDGE), PAPER)
    draw = ImageDraw.Draw(page)
    for number, line in enumerate(head):
        draw.text((EDGE, EDGE + LINE * number), line, INK, text)
    for number, chosen in enumerate(gallery.chosen):
        centre = EDGE + step * (1 + number) + TILE // 2
        draw.text((centre, top - LINE), f"map {chosen}", INK, text, anchor="ma")
    for seen, height in zip(gallery.images, block, strict=True):
        draw.text((EDGE, top + GAP), _shortened(seen.name, width - 2 * EDGE, text), INK, text)
        for number, view in enumerate(seen.views):
            _draw_row(page, draw, view, top + LINE + GAP + row * number, text)
        if seen.linked is not None:
            both = Image.fromarray(seen.linked).resize((2 * TILE + GAP, TILE))
            start = top + LINE + GAP + row * len(seen.views)
            page.paste(both, (EDGE, start))
            draw.text((EDGE + TILE, start + TILE + 1), LINKED, PALE, text, anchor="ma")
        top += height
    return page


Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def _draw_row(
    page: Image.Image, draw: ImageDraw.ImageDraw, view: GalleryView, top: int, text: Font
) -> None:
    """One view: its picture and the overlays, each with its line below."""
    tiles = [enlarged(view.image, TILE)]
    tiles += [Image.fromarray(overlay(view.image, one, TILE)) for one in view.maps]
    below = [view.caption, *(raw_range(one) for one in view.maps)]
    for number, (tile, line) in enumerate(zip(tiles, below, strict=True)):
        left = EDGE + (TILE + GAP) * number
        page.paste(tile, (left, top))
        draw.text((left + TILE // 2, top + TILE + 1), line, PALE, text, anchor="ma")


def _wrapped(words: str, width: int, text: Font) -> list[str]:
    """Text wrapped to a width in pixels."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if text.getlength(longer) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _shortened(name: str, width: int, text: Font) -> str:
    """The end of a long name."""
    if text.getlength(name) <= width:
        return name
    while len(name) > 1 and text.getlength("..." + name) > width:
        name = name[1:]
    return "..." + name
