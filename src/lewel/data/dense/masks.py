"""Images with a class for each pixel: Pascal VOC, folders of images and masks, scenes."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lewel.data.dense.coco_masks import object_masks
from lewel.data.dense.voc import (
    AUGMENTED,
    CLASSES,
    IGNORED,
    augmented_list,
    find_voc,
    read_list,
    split_pairs,
)
from lewel.data.sources.images import SUFFIXES, UnreadableImage, read_image
from lewel.data.sources.layouts import (
    MASK_SUFFIXES,
    TRAIN,
    VALIDATION_SPLITS,
    find_layout,
    mask_folders,
)
from lewel.data.sources.open import HELD_OUT
from lewel.data.sources.scenes import CLASSES as FIGURES
from lewel.data.sources.scenes import SIZES, draw_scene
from lewel.data.sources.source import Labels, Source, Subset
from lewel.errors import UserError, state_of
from lewel.files import user_path
from lewel.ops.randomness import generator

VALIDATION_SCENES = 500
_SPLIT_KEY = 0x5E6  # keeps this stream apart from others drawn with the same seed


class Masked(Source, Protocol):
    """A source whose images have masks."""

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        """An image uint8 (3, H, W) and its classes uint8 (H, W); raises UnreadableImage."""


class MaskedSubset(Subset):
    """A subset of a source with masks, in the order of the indices."""

    source: Masked

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        return self.source.pair(int(self.indices[index]))

    def annotation_bytes(self, index: int) -> bytes:
        annotation = getattr(self.source, "annotation_bytes", None)
        return annotation(int(self.indices[index])) if annotation else b""

    def annotation_file(self, index: int) -> Path | None:
        file_of = getattr(self.source, "annotation_file", None)
        return file_of(int(self.indices[index])) if file_of else None


class MaskFiles:
    """Image files and mask files; the pixels of a mask are class indices, 255 is ignored."""

    labels: Labels | None = None

    def __init__(
        self, root: Path, pairs: Sequence[tuple[str, str]], name: str, classes: tuple[str, ...]
    ) -> None:
        self.root, self.pairs, self.name = root, list(pairs), name
        self.classes: tuple[str, ...] | None = classes
        absent = [path for pair in pairs for path in pair if not (root / path).is_file()]
        if absent:
            raise UserError(
                f"{len(absent):,} of the {2 * len(pairs):,} images and masks of {name} are "
                f"missing, for example {root / absent[0]}: restore them, or remove them from the "
                "list."
            )

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, index: int) -> Tensor:
        return read_image(self.root / self.pairs[index][0])

    def describe(self, index: int) -> str:
        return self.pairs[index][0]

    def annotation_bytes(self, index: int) -> bytes:
        return str(self.annotation_file(index).stat().st_size).encode()

    def annotation_file(self, index: int) -> Path:
        """The file of a mask; results are cached by its content."""
        return self.root / self.pairs[index][1]

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.read(index), read_mask(self.annotation_file(index))
        assert self.classes is not None
        check_mask(mask, (image.shape[1], image.shape[2]), len(self.classes))
        return image, mask


def read_mask(path: Path) -> Tensor:
    """The class indices of a mask, uint8 (H, W): palette indices or grey levels."""
    try:
        with Image.open(path) as opened:
            if opened.mode not in ("P", "L", "1"):
                raise UnreadableImage(
                    f"the mask {path.name} holds colours (mode {opened.mode}), expected class "
                    "indices: a palette or 8-bit greys"
                )
            return torch.from_numpy(np.array(opened, dtype=np.uint8))
    except UnreadableImage:
        raise
    except Exception as error:  # Pillow raises many types for damaged files
        raise UnreadableImage(f"the mask {path.name} cannot be read ({error})") from error


def check_mask(mask: Tensor, shape: tuple[int, int], classes: int) -> None:
    """Raise UnreadableImage for a mask of another size than its image, or with unknown classes."""
    if tuple(mask.shape) != shape:
        raise UnreadableImage(
            f"its mask has {mask.shape[1]} x {mask.shape[0]} pixels, the image {shape[1]} x "
            f"{shape[0]}: expected the same size"
        )
    wrong = mask[(mask >= classes) & (mask != IGNORED)]
    if len(wrong):
        raise UnreadableImage(
            f"its mask has class {int(wrong.max())}, expected 0 to {classes - 1}, or {IGNORED} "
            "for ignored pixels"
        )


class SceneMasks:
    """Scenes with the class of each pixel; 0 is the background."""

    name = "scenes"
    labels: Labels | None = None

    def __init__(self, split: str, size: int, length: int | None = None) -> None:
        draw_scene(0, split, 0, size)  # raises UserError where it cannot be drawn
        self.classes: tuple[str, ...] | None = ("background", *FIGURES)
        self.split, self.size = split, size
        self.length = SIZES[split] if length is None else length

    def __len__(self) -> int:
        return self.length

    def read(self, index: int) -> Tensor:
        return self.pair(index)[0]

    def describe(self, index: int) -> str:
        return f"scenes/{self.split}/{index}"

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        scene = draw_scene(0, self.split, index, self.size)
        mask = np.zeros((self.size, self.size), np.uint8)
        for number, visible in zip(scene.classes, scene.masks, strict=True):
            mask[visible] = number
        return torch.from_numpy(scene.image).permute(2, 0, 1), torch.from_numpy(mask)


def open_masks(
    data: str, *, size: int, split: str | None, limit: int | None, seed: int
) -> tuple[Masked, Masked]:
    """Training and validation set of VOC, of a folder, or of scenes drawn at this size."""
    train, val = _open(data, size, split, seed)
    if limit is not None and limit < len(train):
        order = generator(seed, _SPLIT_KEY).permutation(len(train))
        train = MaskedSubset(train, np.sort(order[:limit]))
    return train, val


def validation_masks(data: str, size: int) -> Masked | None:
    """The validation set of data with masks, or all of it where there is no split; else None."""
    if data == "scenes":
        return SceneMasks("val", size)
    voc, root = find_voc(data), Path(os.path.realpath(user_path(data)))
    if voc is not None:
        return MaskFiles(voc, split_pairs(voc, "val"), voc.name, CLASSES)
    if find_layout(str(root), root.name) is None:  # two classes may be called images and masks
        return None
    splits = (*VALIDATION_SPLITS, "", TRAIN)
    pairs: list[tuple[str, str]] = next(filter(None, (_pairs(root, split) for split in splits)), [])
    if pairs:
        return MaskFiles(root, pairs, root.name, _classes(root, pairs))
    return object_masks(root)


def _open(data: str, size: int, split: str | None, seed: int) -> tuple[Masked, Masked]:
    root = user_path(data)
    voc = None if data == "scenes" else find_voc(root)
    if split is not None and voc is None:
        raise UserError(
            f"{data} has no split {split!r}: --split names a list of Pascal VOC, so leave it out."
        )
    if data == "scenes":
        return SceneMasks("train", size), SceneMasks("val", size, VALIDATION_SCENES)
    if voc is not None:
        split = split or (AUGMENTED if augmented_list(voc) else "train")
        train, val = split_pairs(voc, split), split_pairs(voc, "val")
        shared = {image for image, _ in train} & {image for image, _ in val}
        if shared:
            raise UserError(
                f"{len(shared):,} images of the split {split!r} are also in val (for example "
                f"{min(shared)}), the validation set: train on another --split."
            )
        name = f"{voc.name}-{split}"
        return MaskFiles(voc, train, name, CLASSES), MaskFiles(voc, val, name, CLASSES)
    if not root.is_dir():
        raise UserError(
            f"{data} {state_of(root)}: expected a Pascal VOC folder, a folder with images/ and "
            "masks/, or scenes."
        )
    return _open_folder(root, seed)


def _open_folder(root: Path, seed: int) -> tuple[Masked, Masked]:
    """A folder of images/ and masks/, with or without train/ and val/ above or below them."""
    root = root.resolve()
    train = _pairs(root, TRAIN)
    val = next((found for name in VALIDATION_SPLITS if (found := _pairs(root, name))), [])
    pairs = train + val or _pairs(root, "")
    if not pairs or (train and not val):
        missing = "validation set" if train else "masks"
        raise UserError(
            f"{root} has no {missing}: expected images/ and masks/ in it with files of the same "
            "names, or the two with train/ and val/ in them, or a Pascal VOC folder."
        )
    classes = _classes(root, pairs)
    if train:
        return tuple(MaskFiles(root, own, root.name, classes) for own in (train, val))  # type: ignore[return-value]
    everything = MaskFiles(root, pairs, root.name, classes)
    if len(everything) < 3:
        raise UserError(f"{root} holds {len(everything)} images with masks: expected 3 or more.")
    order = generator(seed, _SPLIT_KEY).permutation(len(everything))
    held_out = max(1, round(HELD_OUT * len(everything)))
    splits = order[held_out:], order[:held_out]
    return tuple(MaskedSubset(everything, np.sort(own)) for own in splits)  # type: ignore[return-value]


def _pairs(root: Path, split: str) -> list[tuple[str, str]]:
    """Images and masks of the same name, in images/SPLIT or SPLIT/images; paths from the root."""
    if (folders := mask_folders(root, split)) is None:
        return []
    images, masks = folders
    image_files = _stems(images, lambda suffix: suffix in SUFFIXES)
    mask_files = _stems(masks, lambda suffix: suffix in MASK_SUFFIXES)
    both = ((image_files, mask_files, "mask in"), (mask_files, image_files, "image in"))
    for here, there, word in both:
        alone = sorted(set(here) - set(there))
        if alone:
            folder = masks if there is mask_files else images
            raise UserError(
                f"{len(alone):,} of {len(here):,} files have no {word} {folder} (for example "
                f"{here[alone[0]]}): expected a file of the same name for each."
            )
    return [
        (str(image_files[stem].relative_to(root)), str(mask_files[stem].relative_to(root)))
        for stem in sorted(image_files)
    ]


def _stems(folder: Path, wanted: Callable[[str], bool]) -> dict[str, Path]:
    """Files below a folder by their relative path, without the suffix."""
    files = (path for path in folder.rglob("*") if wanted(path.suffix.lower()))
    return {str(path.relative_to(folder).with_suffix("")): path for path in files}


def _classes(root: Path, pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The lines of classes.txt in the order of the class indices, or the indices as names."""
    file = root / "classes.txt"
    if file.is_file():
        names = [name for line in read_list(file).splitlines() if (name := line.strip())]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"{file} names the class {twice} twice: expected each class once.")
        return tuple(names)
    highest = 0
    for _, path in pairs:
        try:
            mask = read_mask(root / path)
        except UnreadableImage as error:
            raise UserError(f"{root / path}: {error}.") from None
        known = mask[mask != IGNORED]
        highest = max(highest, int(known.max()) if len(known) else 0)
    return tuple(str(number) for number in range(max(2, highest + 1)))
