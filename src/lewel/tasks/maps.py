"""`lewel maps`: the alignment maps of a run as heat maps over images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lewel.config.commands import MapsConfig
from lewel.config.pretrain import PretrainConfig
from lewel.data.sources.file_list import Lists
from lewel.data.sources.files import Files
from lewel.data.sources.images import SUFFIXES
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Source
from lewel.data.views.augment import normalise
from lewel.errors import UserError, state_of
from lewel.evaluate.links import link_note, links_of
from lewel.evaluate.map_selection import (
    RULES,
    Rule,
    agreement,
    most_consistent,
    most_different,
    most_peaked,
)
from lewel.evaluate.views import MapViews, make_views
from lewel.files import refuse_foreign, refuse_unwritable, refuse_within, user_path, write_marked
from lewel.nn.backbone import MEAN, STD
from lewel.ops.correspondence import DISTANCE
from lewel.pages.gallery import Gallery, GalleryImage, GalleryView
from lewel.pages.links import draw_links
from lewel.pages.overlays import grid, png
from lewel.pages.page import gallery_page
from lewel.tasks.map_model import MapModel, open_map_model
from lewel.tasks.outcome import Mapped
from lewel.train.run_folder import RunFolder

Say = Callable[[str], None]


def _silent(text: str) -> None: ...


def open_images(images: list[str], image_size: int, say: Say = _silent) -> Source:
    """Image files, or the validation set of one folder or other data set."""
    if not images:
        raise UserError("No images are given: give files, a folder, or `scenes`.")
    if len(images) == 1 and not user_path(images[0]).is_file():
        data = open_data(images[0], image_size=image_size)
        for note in data.notes:
            say(note)
        return data.val or data.unlabelled
    for image in images:
        path = user_path(image)
        if not path.is_file():
            raise UserError(f"{image} {state_of(path)}: give image files, or one folder.")
        if path.suffix.lower() not in SUFFIXES and len(images) == 1:
            return open_data(image, image_size=image_size).unlabelled  # a list of images
    return Files(".", [str(user_path(image)) for image in images], name="images")


Images = list[Path] | list[str] | Source | None  # None: the validation images of the run


def gallery_of(run: Path, images: Images, config: MapsConfig, say: Say = _silent) -> Gallery:
    """The first images of a source, whole and in two views, with the chosen maps of each."""
    model = open_map_model(run, image_size=config.image_size)
    if config.image_size is None:
        model = model.readable()
    source, trained_on = _source(images, model.config, run, say)
    torch.manual_seed(config.seed)  # for random maps
    dataset = model.views(source, config.seed)
    indices = np.arange(min(config.limit, len(source)))
    views = make_views(dataset, indices)
    shown_maps = [model.maps(pictures) for pictures in (views.whole, *views.views)]
    chosen, words = _choose(shown_maps, views, config.rule, config.n)
    order = _best_pairs_first(shown_maps, views, chosen)
    linked = _linked(model, views)
    shown = list(
        zip(("input", "view 1", "view 2"), (views.whole, *views.views), shown_maps, strict=True)
    )
    return Gallery(
        rule=words,
        chosen=tuple(chosen),
        note=model.note,
        caption=_caption(model, shown_maps[0].shape[-1]),
        link_note=link_note(model.encoder.head),
        trained_on=trained_on,
        images=tuple(
            GalleryImage(
                source.describe(int(indices[at])),
                tuple(
                    GalleryView(caption, _pixels(pictures[at]), values[at, chosen].numpy())
                    for caption, pictures, values in shown
                ),
                linked[at],
            )
            for at in order
        ),
    )


def _linked(model: MapModel, views: MapViews) -> list[np.ndarray | None]:
    """Both views of each image with what the method takes to be the same; None for most methods."""
    inputs = [normalise(one, MEAN, STD).to(model.device) for one in views.views]
    shares = [boxes / views.sizes.repeat(1, 2) for boxes in views.boxes]  # as in training
    distance = float(model.config.options.get("distance") or DISTANCE)
    links = links_of(model.encoder, inputs, shares, views.flips, distance)
    if links is None:
        return [None] * len(views.whole)
    pictures = zip(*views.views, links, strict=True)
    return [draw_links(_pixels(one), _pixels(two), found) for one, two, found in pictures]


def gallery_of_run(run: Path) -> Gallery | None:
    """The maps of a run's validation images; None before its first checkpoint."""
    folder = RunFolder(run)
    if not (folder.config.exists() and folder.backbone.exists() and folder.heads.exists()):
        return None
    return gallery_of(run, None, MapsConfig())


def _source(images: Images, config: PretrainConfig, run: Path, say: Say) -> tuple[Source, bool]:
    """The images to show, and whether the run is trained on them, for want of others.

    Scenes are drawn for the size that they are shown at.
    """
    if images is None:
        data = open_data(
            config.data,
            image_size=config.image_size,
            classes=config.classes,
            lists=Lists.beside(run),
        )
        return data.val or data.unlabelled, data.val is None
    if isinstance(images, list):
        return open_images([str(image) for image in images], config.image_size, say), False
    return images, False


def _best_pairs_first(maps: list[Tensor], views: MapViews, chosen: list[int]) -> list[int]:
    """The images by the mean agreement of the chosen maps between their views, best first."""
    found = agreement(maps[1:], views.boxes, views.flips, views.sizes)[:, chosen].nanmean(1)
    order: list[int] = found.nan_to_num(-2.0).argsort(descending=True, stable=True).tolist()
    return order


def _caption(model: MapModel, side: int) -> str:
    """The size of images and maps, and the order of the images."""
    size, trained = model.config.image_size, model.trained_size
    other = f" (the network was trained at {trained} px)" if size != trained else ""
    return (
        f"Images of {size} px{other}, maps of {side} by {side} locations. The image whose maps "
        "agree best between its two views comes first."
    )


def _choose(maps: list[Tensor], views: MapViews, rule: Rule, n: int) -> tuple[list[int], str]:
    """The indices of the maps to show, and the rule that selected them."""
    flat = torch.cat(maps).flatten(2)  # of the whole images and of their views
    if rule == "peaked":
        return most_peaked(flat)[:n], RULES[rule]
    if rule == "different":
        return most_different(flat, n), RULES[rule]
    found = most_consistent(agreement(maps[1:], views.boxes, views.flips, views.sizes))
    if found is None:
        words = f"{RULES['peaked']} (no two views overlap enough to measure consistency)"
        return most_peaked(flat)[:n], words
    return found[:n], RULES[rule]


def _pixels(picture: Tensor) -> np.ndarray:
    """A picture (3, S, S) of 0 to 1 as uint8 (S, S, 3)."""
    return (picture * 255).round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()


def maps(
    run: Path,
    images: Images,
    config: MapsConfig,
    out: Path | None = None,
    say: Say = _silent,
) -> Mapped:
    """A gallery of maps, written to maps/ of the run folder or to another one."""
    folder = out or user_path(run) / "maps"
    for file in gallery_files(folder):
        refuse_foreign(file, "maps", config.overwrite)
    if out is not None:
        refuse_unwritable(out)
        for one in images if isinstance(images, list) else ():
            refuse_within(out, str(one))
    gallery = gallery_of(run, images, config, say)
    return Mapped(gallery, write_gallery(gallery, folder))


def gallery_files(folder: Path) -> tuple[Path, Path]:
    """The files of a gallery."""
    return folder / "maps.png", folder / "maps.html"


def write_gallery(gallery: Gallery, out: Path) -> tuple[Path, Path]:
    """Write a gallery as maps.png and maps.html to a folder."""
    out.mkdir(parents=True, exist_ok=True)
    picture, page = gallery_files(out)
    content, text = png(grid(gallery)), gallery_page(gallery)
    write_marked(picture, "maps", lambda aside: aside.write_bytes(content))
    # File names may contain bytes that are not UTF-8.
    write_marked(page, "maps", lambda aside: aside.write_bytes(text.encode("utf-8", "replace")))
    return picture, page
