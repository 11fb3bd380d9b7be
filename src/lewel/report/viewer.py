"""A gallery of maps as a page shows it: stills for everyone, numbers for the script."""

import base64
from dataclasses import dataclass
from typing import Any

from PIL import Image

from lewel.report.gallery import Gallery, SeenImage, SeenView
from lewel.report.pictures import Pixels, data_uri, overlay, quantise, ramp, shrunk

STILLS = 6  # maps of each view in the table of stills
TINY = 64  # pixels up to which a JPEG's blocks would show


@dataclass(frozen=True)
class Still:
    """A map over a view, as a picture."""

    uri: str
    alt: str
    map: int  # its place among the chosen ones
    span: str  # the raw range


@dataclass(frozen=True)
class ShownView:
    """A view and its first maps."""

    caption: str
    uri: str
    alt: str
    stills: tuple[Still, ...]


@dataclass(frozen=True)
class ShownImage:
    """An image and its views."""

    name: str
    views: tuple[ShownView, ...]


@dataclass(frozen=True)
class ShownGallery:
    """All that a template needs of a gallery."""

    id: str
    rule: str
    note: str | None
    chosen: tuple[int, ...]
    images: tuple[ShownImage, ...]
    left: int  # images that the page had no room for
    size: str  # of a map, in positions
    data: dict[str, Any]  # for the script


def shown_gallery(
    gallery: Gallery, id: str, *, most: int, side: int, still: int, quality: int
) -> ShownGallery:
    """At most so many images of a gallery, of `side` pixels, and stills of `still` pixels."""
    images, data = [], []
    for image in gallery.images[:most]:
        shown, numbers = shown_image(gallery, image, side, still, quality)
        images.append(shown)
        data.append({"name": image.name, "views": numbers})
    sizes = {view.maps.shape[1:] for image in gallery.images for view in image.views}
    return ShownGallery(
        id=id,
        rule=gallery.rule,
        note=gallery.note,
        chosen=gallery.chosen,
        images=tuple(images),
        left=len(gallery.images) - len(images),
        size=", ".join(f"{height} by {width}" for height, width in sorted(sizes)),
        data={"chosen": list(gallery.chosen), "ramp": packed(ramp()), "images": data},
    )


def shown_image(
    gallery: Gallery, image: SeenImage, side: int, still: int, quality: int
) -> tuple[ShownImage, list[dict[str, Any]]]:
    """An image for the template, and the numbers of its maps for the script."""
    views, data = [], []
    for view in image.views:
        levels, spans = quantise(view.maps)
        words = [f"{low:.3g} to {high:.3g}" for low, high in spans.tolist()]
        picture = shrunk(Image.fromarray(view.image), side)
        uri = data_uri(picture, quality, exact=max(picture.size) <= TINY)
        stills = stills_of(gallery, image, view, levels, words, still, quality)
        alt = f"{view.caption} of {image.name}"
        views.append(ShownView(view.caption, uri, alt, stills))
        height, width = levels.shape[1:]
        data.append(
            {
                "caption": view.caption,
                "height": height,
                "width": width,
                "levels": packed(levels),
                "spans": words,
            }
        )
    return ShownImage(image.name, tuple(views)), data


def stills_of(
    gallery: Gallery,
    image: SeenImage,
    view: SeenView,
    levels: Pixels,
    words: list[str],
    side: int,
    quality: int,
) -> tuple[Still, ...]:
    """The first maps of a view, laid over it."""
    chosen = gallery.chosen[:STILLS]
    return tuple(
        Still(
            uri=data_uri(overlay(view.image, levels[place], side), quality),
            alt=f"map {number} over {view.caption} of {image.name}",
            map=place,
            span=words[place],
        )
        for place, number in enumerate(chosen)
    )


def packed(levels: Pixels) -> str:
    """Bytes as text."""
    return base64.b64encode(levels.tobytes()).decode("ascii")
