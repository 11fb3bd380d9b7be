"""Opens the detection data that a string names."""

from collections.abc import Sequence

from lewel.data.dense.boxes import BoxSource
from lewel.data.dense.coco import open_coco
from lewel.data.dense.packed import data_root
from lewel.data.dense.scene_boxes import SceneBoxes
from lewel.data.dense.voc_boxes import open_voc, years_of
from lewel.data.pack.storage import DEFAULT_STORAGE, Storage
from lewel.data.pack.urls import shown
from lewel.data.sources.layouts import coco_files
from lewel.errors import UserError, state_of
from lewel.files import user_path


def open_boxes(
    data: str,
    *,
    size: int,
    train: str | None = None,
    val: str | None = None,
    classes: Sequence[str] | None = None,
    storage: Storage = DEFAULT_STORAGE,
) -> tuple[BoxSource, BoxSource]:
    """Open `scenes` (drawn at this size), a folder of Pascal VOC or COCO, or its pack."""
    if data == "scenes":
        return SceneBoxes(train or "train", size), SceneBoxes(val or "val", size)
    root = data_root(data, storage)
    if not root.is_dir():
        raise UserError(
            f"{shown(data)} {state_of(user_path(data))}: expected a folder of Pascal VOC or COCO, "
            "or scenes."
        )
    if years_of(root):
        return open_voc(root, train, val, classes)
    if coco_files(root):
        return open_coco(root, train, val, classes)
    raise UserError(
        f"{shown(data)} holds no boxes in a known format: expected Annotations/ and "
        "ImageSets/Main/ (Pascal VOC, or a folder of its years), or annotations/instances_*.json "
        "(COCO)."
    )
