"""Images with a class for each pixel: Pascal VOC, folders of images and masks, scenes."""

import os
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from lewel.data.dense.coco_masks import object_masks
from lewel.data.dense.packed import data_root, packed_root, read_picture, stamp
from lewel.data.dense.scene_masks import VALIDATION_SCENES, SceneMasks
from lewel.data.dense.voc import (
    AUGMENTED,
    CLASSES,
    IGNORED,
    augmented_list,
    find_voc,
    read_names,
    split_pairs,
)
from lewel.data.pack.storage import DEFAULT_STORAGE, Storage
from lewel.data.pack.urls import shown
from lewel.data.sources.images import SUFFIXES, UnreadableImage
from lewel.data.sources.layouts import (
    MASK_SUFFIXES,
    TRAIN,
    VALIDATION_SPLITS,
    find_layout,
    mask_folders,
)
from lewel.data.sources.open import HELD_OUT
from lewel.data.sources.place import Place, below, local
from lewel.data.sources.source import Labels, Source, Subset
from lewel.errors import RunError, UserError, state_of
from lewel.files import user_path
from lewel.ops.randomness import generator

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
        self, root: Place, pairs: Sequence[tuple[str, str]], name: str, classes: tuple[str, ...]
    ) -> None:
        self.place, self.root = root, local(root)
        self.pairs, self.name = list(pairs), name
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
        return read_picture(self.place / self.pairs[index][0])

    def describe(self, index: int) -> str:
        return self.pairs[index][0]

    def annotation_bytes(self, index: int) -> bytes:
        file = self.annotation_file(index)
        if file is None:
            return stamp(*(self.place / path for path in self.pairs[index]))
        return str(file.stat().st_size).encode()

    def annotation_file(self, index: int) -> Path | None:
        """The file of a mask, by whose content results are cached; None in a pack."""
        return local(self.place / self.pairs[index][1])

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.read(index), read_mask(self.place / self.pairs[index][1])
        assert self.classes is not None
        check_mask(mask, (image.shape[1], image.shape[2]), len(self.classes))
        return image, mask


def read_mask(path: Place) -> Tensor:
    """The class indices of a mask, uint8 (H, W): palette indices or grey levels."""
    try:
        with Image.open(BytesIO(path.read_bytes())) as opened:
            if opened.mode not in ("P", "L", "1"):
                raise UnreadableImage(
                    f"the mask {path.name} holds colours (mode {opened.mode}), expected class "
                    "indices: a palette or 8-bit greys"
                )
            return torch.from_numpy(np.array(opened, dtype=np.uint8))
    except (UnreadableImage, UserError, RunError):  # also of storage that does not answer
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImage(f"the mask {path.name} is empty or no image") from error
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


def open_masks(
    data: str,
    *,
    size: int,
    split: str | None,
    limit: int | None,
    seed: int,
    storage: Storage = DEFAULT_STORAGE,
) -> tuple[Masked, Masked]:
    """Training and validation set of VOC, a folder, their packs, or scenes drawn at this size."""
    train, val = _open(data, size, split, seed, storage)
    if limit is not None and limit < len(train):
        order = generator(seed, _SPLIT_KEY).permutation(len(train))
        train = MaskedSubset(train, np.sort(order[:limit]))
    return train, val


def validation_masks(data: str, size: int, storage: Storage = DEFAULT_STORAGE) -> Masked | None:
    """The validation set of data with masks, or all of it where there is no split; else None."""
    if data == "scenes":
        return SceneMasks("val", size)
    packed = packed_root(data, storage)
    if packed is True:
        return None
    given: Place = packed or user_path(data)
    voc = find_voc(given)
    root: Place = packed or Path(os.path.realpath(user_path(data)))  # resolve() fails for loops
    if voc is not None:
        return MaskFiles(voc, split_pairs(voc, "val"), voc.name, CLASSES)
    if find_layout(root, root.name) is None:  # two classes may be called images and masks
        return None
    splits = (*VALIDATION_SPLITS, "", TRAIN)
    pairs: list[tuple[str, str]] = next(filter(None, (_pairs(root, split) for split in splits)), [])
    if pairs:
        return MaskFiles(root, pairs, root.name, _classes(root, pairs))
    return object_masks(root)


def _open(
    data: str, size: int, split: str | None, seed: int, storage: Storage
) -> tuple[Masked, Masked]:
    root: Place = Path() if data == "scenes" else data_root(data, storage)
    voc = None if data == "scenes" else find_voc(root)
    if split is not None and voc is None:
        raise UserError(
            f"{shown(data)} has no split {split!r}: --split names a list of Pascal VOC, so leave "
            "it out."
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
            f"{shown(data)} {state_of(user_path(data))}: expected a Pascal VOC folder, a folder "
            "with images/ and masks/, or scenes."
        )
    return _open_folder(root, seed)


def _open_folder(root: Place, seed: int) -> tuple[Masked, Masked]:
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


def _pairs(root: Place, split: str) -> list[tuple[str, str]]:
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
        (below(image_files[stem], root), below(mask_files[stem], root))
        for stem in sorted(image_files)
    ]


def _stems(folder: Place, wanted: Callable[[str], bool]) -> dict[str, Place]:
    """Files below a folder by their relative path, without the suffix."""
    found: dict[str, Place] = {}
    for path in folder.rglob("*"):
        if wanted(path.suffix.lower()):
            stem = os.path.splitext(below(path, folder))[0]
            if stem in found:
                names = " and ".join(sorted((found[stem].name, path.name)))
                raise UserError(f"{folder} holds {names}, two files of one name: remove one.")
            found[stem] = path
    return found


def _classes(root: Place, pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The lines of classes.txt in the order of the class indices, or the indices as names."""
    file = root / "classes.txt"
    if file.is_file():
        names = [name for line in read_names(file).splitlines() if (name := line.strip())]
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
