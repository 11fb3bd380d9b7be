"""Looking at the maps of a run, from its folder and some images to a gallery of them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lewel.backbones import MEAN, STD
from lewel.build import build_dataset, build_method
from lewel.config import PretrainConfig, read_yaml, resolve
from lewel.data.augment import normalise
from lewel.data.images import SUFFIXES
from lewel.data.loader import TwoViews
from lewel.data.sources import Files, Source, open_data
from lewel.errors import UserError
from lewel.eval.choice import RULES, Rule, agreement, most_consistent, most_different, most_peaked
from lewel.eval.looks import Look, look_at
from lewel.eval.maps import maps_of, what_is_shown
from lewel.files import write_atomically
from lewel.interop.weights import fill, read_weights
from lewel.nn.heads import Encoder
from lewel.report.gallery import Gallery, SeenImage, SeenView
from lewel.report.overlays import grid, png
from lewel.report.page import gallery_page
from lewel.train.folder import RunFolder

BATCH = 32  # images at a time


@dataclass(frozen=True)
class Looker:
    """A run's network in eval mode, and its way of making views."""

    config: PretrainConfig
    encoder: Encoder
    device: torch.device

    @property
    def note(self) -> str | None:
        """What is to be said of maps that are not the paper's."""
        return what_is_shown(self.encoder.head, self.config.method)

    def maps(self, images: Tensor) -> Tensor:
        """Pictures (B, 3, S, S) of 0 to 1 -> maps (B, K, h, w), on the CPU."""
        parts = torch.split(normalise(images, MEAN, STD), BATCH)
        return torch.cat([maps_of(self.encoder, part.to(self.device)).cpu() for part in parts])

    def views(self, source: Source, seed: int) -> TwoViews:
        """A source in the views of the run's recipe, drawn by a seed."""
        return build_dataset(self.config.model_copy(update={"seed": seed}), source)


def open_looker(
    run: Path,
    *,
    image_size: int | None = None,
    untrained: bool = False,
    device: torch.device | None = None,
) -> Looker:
    """The network of a run folder with its head; `untrained` as it was before the first step."""
    folder = RunFolder(run.expanduser())
    for file in (folder.config, folder.backbone, folder.heads):
        if not file.is_file():
            raise UserError(
                f"{run} has no {file.name}: maps need a network with its head, so give the folder "
                "of a run that `lewel pretrain` wrote."
            )
    config = resolve(read_yaml(folder.config), {})
    # What only training needs is made as small as it can be.
    contrast = config.contrast.model_copy(update={"queue": 1, "norm_groups": 1})
    config = config.model_copy(
        update={"contrast": contrast, "image_size": image_size or config.image_size}
    )
    encoder: Encoder = build_method(config, images=1).student
    if not untrained:
        fill(encoder.backbone.net, read_weights(folder.backbone), str(folder.backbone))
        fill(encoder.head, read_weights(folder.heads), str(folder.heads))
    device = device or torch.device("cpu")
    return Looker(config, encoder.eval().to(device), device)


def open_images(images: list[str], image_size: int) -> Source:
    """Files of images, or one folder or other data, of which the images for judging are taken."""
    if not images:
        raise UserError("Which images? Give files, a folder, or `scenes`.")
    if len(images) == 1 and not Path(images[0]).expanduser().is_file():
        data = open_data(images[0], image_size=image_size)
        return data.val or data.unlabelled
    for image in images:
        path = Path(image).expanduser()
        if not path.is_file():
            raise UserError(f"{image} is no file: give image files, or one folder alone.")
        if path.suffix.lower() not in SUFFIXES and len(images) == 1:
            return open_data(image, image_size=image_size).unlabelled  # a list of images
    return Files(".", [str(Path(image).expanduser()) for image in images], name="images")


def gallery_of(
    run: Path,
    images: list[Path] | list[str] | Source,
    *,
    n: int = 8,
    rule: Rule = "different",
    seed: int = 0,
    limit: int = 12,
    image_size: int | None = None,
) -> Gallery:
    """The first `limit` images, whole and in two views, with n of the run's maps of each."""
    if rule not in RULES:
        raise UserError(f"There is no rule {rule!r}: choose one of {', '.join(RULES)}.")
    if n < 1 or limit < 1:
        raise UserError(f"n is {n} and limit {limit}: expected 1 or more of maps and of images.")
    looker = open_looker(run, image_size=image_size)
    if isinstance(images, list):
        source = open_images([str(image) for image in images], looker.config.image_size)
    else:
        source = images
    torch.manual_seed(seed)  # random maps are drawn by it
    dataset = looker.views(source, seed)
    indices = np.arange(min(limit, len(source)))
    look = look_at(dataset, indices)
    maps = [looker.maps(pictures) for pictures in (look.whole, *look.views)]
    chosen, words = _choose(maps, look, rule, n)
    shown = list(zip(("input", "view 1", "view 2"), (look.whole, *look.views), maps, strict=True))
    return Gallery(
        rule=words,
        chosen=tuple(chosen),
        note=looker.note,
        images=tuple(
            SeenImage(
                source.describe(int(index)),
                tuple(
                    SeenView(caption, _pixels(pictures[at]), values[at, chosen].numpy())
                    for caption, pictures, values in shown
                ),
            )
            for at, index in enumerate(indices)
        ),
    )


def gallery_of_run(run: Path) -> Gallery | None:
    """The maps of a run's own images for judging; None before it has written a network."""
    folder = RunFolder(run)
    if not (folder.config.exists() and folder.backbone.exists() and folder.heads.exists()):
        return None
    config = resolve(read_yaml(folder.config), {})
    data = open_data(config.data, image_size=config.image_size, classes=config.classes)
    return gallery_of(run, data.val or data.unlabelled)


def _choose(maps: list[Tensor], look: Look, rule: Rule, n: int) -> tuple[list[int], str]:
    """The numbers of the maps to show, and the rule that chose them in words."""
    flat = torch.cat(maps).flatten(2)  # over the whole images and their views alike
    if rule == "peaked":
        return most_peaked(flat)[:n], RULES[rule]
    if rule == "different":
        return most_different(flat, n), RULES[rule]
    found = most_consistent(agreement(maps[1:], look.boxes, look.flips, look.sizes))
    if found is None:
        words = f"{RULES['peaked']} (no two views share enough to tell which are consistent)"
        return most_peaked(flat)[:n], words
    return found[:n], RULES[rule]


def _pixels(picture: Tensor) -> np.ndarray:
    """A picture (3, S, S) of 0 to 1 as uint8 (S, S, 3)."""
    return (picture * 255).round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()


def write_gallery(gallery: Gallery, out: Path) -> list[Path]:
    """The gallery as maps.png and maps.html in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    picture, page = out / "maps.png", out / "maps.html"
    content, text = png(grid(gallery)), gallery_page(gallery)
    write_atomically(picture, lambda aside: aside.write_bytes(content))
    # A file's name may hold bytes that are no text.
    write_atomically(page, lambda aside: aside.write_bytes(text.encode("utf-8", "replace")))
    return [picture, page]
