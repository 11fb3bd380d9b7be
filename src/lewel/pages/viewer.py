"""A gallery of maps for a page: stills, and data for the script."""

import base64
from dataclasses import dataclass
from typing import Any

from PIL import Image

from lewel.pages.gallery import Gallery, GalleryImage, GalleryView
from lewel.pages.pictures import Pixels, data_uri, overlay, quantise, ramp, shrunk

STILLS = 6  # maps of each view in the table of stills
TINY = 64  # pixels up to which JPEG artefacts would show: PNG instead


@dataclass(frozen=True)
class Still:
    """A map over a view, as a picture."""

    uri: str
    alt: str
    map: int  # its index among the selected maps
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
    linked: str | None  # a picture of both views, as a URI


@dataclass(frozen=True)
class ShownGallery:
    """The content of a gallery for the template."""

    id: str
    rule: str
    note: str | None
    caption: str
    link_note: str | None
    chosen: tuple[int, ...]
    images: tuple[ShownImage, ...]
    left: int  # images left out to limit the size
    size: str  # of a map, in locations
    data: dict[str, Any]  # for the script


def shown_gallery(
    gallery: Gallery, id: str, *, most: int, side: int, still: int, quality: int
) -> ShownGallery:
    """At most `most` images of a gallery, of `side` pixels, and stills of `still` pixels."""
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
        caption=gallery.caption,
        link_note=gallery.link_note,
        chosen=gallery.chosen,
        images=tuple(images),
        left=len(gallery.images) - len(images),
        size=", ".join(f"{height} by {width}" for height, width in sorted(sizes)),
        data={"chosen": list(gallery.chosen), "ramp": packed(ramp()), "images": data},
    )


def shown_image(
    gallery: Gallery, image: GalleryImage, side: int, still: int, quality: int
) -> tuple[ShownImage, list[dict[str, Any]]]:
    """An image for the template, and the values of its maps for the script."""
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
    linked = None if image.linked is None else data_uri(Image.fromarray(image.linked), quality)
    return ShownImage(image.name, tuple(views), linked), data


def stills_of(
    gallery: Gallery,
    image: GalleryImage,
    view: GalleryView,
    levels: Pixels,
    words: list[str],
    side: int,
    quality: int,
) -> tuple[Still, ...]:
    """Overlays of the first maps of a view."""
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
    """Bytes in base64."""
    return base64.b64encode(levels.tobytes()).decode("ascii")
