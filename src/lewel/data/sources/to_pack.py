"""Opens what can be packed: all that other commands read, images at a URL, WebDataset's tars."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from lewel.data.pack.format import ANNOTATIONS, INDEX, MANIFEST, TRAIN, UNLABELLED, VAL, read_index
from lewel.data.pack.remote import Remote
from lewel.data.pack.storage import Storage
from lewel.data.pack.stores import open_store
from lewel.data.pack.urls import WEB, expanded, is_url, scheme_of, shown, split_query
from lewel.data.sources.attached import Attached, AttachedAgain, attached_files
from lewel.data.sources.fetched import Fetched
from lewel.data.sources.folder import EXPECTED, are_classes, open_folders
from lewel.data.sources.images import SUFFIXES
from lewel.data.sources.named import NAMES
from lewel.data.sources.open import open_splits
from lewel.data.sources.packed import Packed, is_packed, open_packed
from lewel.data.sources.place import is_hidden
from lewel.data.sources.scan import suffix_of
from lewel.data.sources.source import Source
from lewel.data.sources.tars import open_tars
from lewel.errors import UserError
from lewel.files import user_path
from lewel.ops.ranks import made_on_rank_0

TAR = ".tar"
ANNOTATED = ({"images", "masks"}, {"JPEGImages", "Annotations"}, {"annotations"})

Splits = tuple[Source | None, Source, Source | None]


class ToPack(NamedTuple):
    """What is packed."""

    sources: dict[str, Source]  # by split
    notes: list[str]
    place: str  # as the manifest names it: a path in full, a URL without credentials
    folder: str | None  # the name of the data set's folder, where its annotations are packed too
    corrupt: dict[str, str]  # images that the source itself has left out, with the reason


def open_to_pack(data: str, scene_size: int, storage: Storage, images_only: bool) -> ToPack:
    """Open data with its annotations, unless only its images are wanted."""
    notes: list[str] = []
    apart, train, val = _open(data, scene_size, notes, storage)
    named = ((UNLABELLED, apart), (TRAIN, train), (VAL, val))
    sources = {split: source for split, source in named if source is not None}
    folder, corrupt = None, dict[str, str]()
    if not images_only and data != "scenes" and data not in NAMES:
        more, folder, corrupt = _annotations(data, list(sources.values()), storage)
        if more is not None:
            sources[ANNOTATIONS] = more
            notes.append(
                f"{folder} has masks or boxes: they are packed too, and images stay as they are "
                "(--images-only packs and shrinks the images alone)."
            )
    path = None if is_url(data) else user_path(data)
    place = str(path.resolve()) if path is not None and path.exists() else shown(data)
    return ToPack(sources, notes, place, folder, corrupt)


def _annotations(
    data: str, images: list[Source], storage: Storage
) -> tuple[Attached | None, str | None, dict[str, str]]:
    """The annotations of data, the name of its folder and images left out; empty without."""
    if isinstance(images[0], Packed):
        store = open_store(data, storage)
        index = read_index(store, shown(data))
        if ANNOTATIONS not in index.shards:
            return None, None, {}
        shards, tables = index.shards[ANNOTATIONS], index.tables[ANNOTATIONS]
        packed_files = Packed(store, shards, tables, name=index.name)
        return AttachedAgain(packed_files), index.folder, index.corrupt
    if is_url(data) or not user_path(data).is_dir():
        return None, None, {}
    root = Path(os.path.realpath(user_path(data)))
    packed = (source.describe(n) for source in images for n in range(len(source)))
    files = attached_files(root, packed)
    return (Attached(root, files), root.name, {}) if files else (None, None, {})


def _open(data: str, scene_size: int, notes: list[str], storage: Storage) -> Splits:
    """Images only for pre-training, if there are any; all others; the validation set."""
    named = split_query(data)[0]
    if named.endswith(TAR) and (is_url(data) or not os.path.isdir(user_path(data))):
        return None, *_open_pattern(data, notes, storage)
    if is_url(data):
        return _open_url(data, notes, storage)
    try:
        return open_splits(data, scene_size, notes)
    except UserError:
        path = user_path(data)
        tars = sorted(str(one.relative_to(path)) for one in _tars_below(path))
        if not tars or is_packed(str(path)):  # a damaged pack is no folder of plain tars
            raise
        return None, *open_tars(open_store(str(path)), tars, path.resolve().name, notes)


def _tars_below(path: Path) -> list[Path]:
    found = path.rglob("*" + TAR) if path.is_dir() else ()
    return [one for one in found if one.is_file() and not is_hidden(str(one.relative_to(path)))]


def _open_pattern(data: str, notes: list[str], storage: Storage) -> tuple[Fetched, Fetched | None]:
    """Tar files that a name, or a pattern with braces, lists."""
    place, query = split_query(data if is_url(data) else str(user_path(data)))
    base = place.partition("{")[0].rpartition("/")[0]
    files = [one[len(base) + 1 :] if base else one for one in expanded(place)]
    store = open_store((f"{base}?{query}" if query else base) or ".", storage)
    name = os.path.basename(shown(base)) or os.path.basename(place).removesuffix(TAR)
    return open_tars(store, files, name, notes)


def _open_url(data: str, notes: list[str], storage: Storage) -> Splits:
    """Packed data, plain images or tar files at a URL."""
    store = Remote(data, storage)
    try:
        store.read_file(INDEX)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"{shown(data)} cannot be read ({error}).") from None
    else:
        return open_packed(data, notes, storage)
    files = made_on_rank_0(lambda: listed(store), "listed")
    if MANIFEST in files:
        raise UserError(
            f"{shown(data)} is packed data without its index: run the `lewel pack` that wrote it "
            "again, to resume."
        )
    images = [file for file in files if suffix_of(file) in SUFFIXES]
    name = shown(data).rstrip("/").rpartition("/")[2] or "images"
    tars = [file for file in files if suffix_of(file) == TAR]
    if images:
        return None, *_open_images(store, images, files, name, notes)
    if tars:
        return None, *open_tars(store, tars, name, notes)
    raise UserError(
        f"{shown(data)} holds no image: {len(files):,} files were listed; expected packed data, "
        f"{EXPECTED} files, or tar files of WebDataset."
    )


def listed(store: Remote) -> list[str]:
    """The paths of all files below a URL, sorted, without hidden ones."""

    def find(files: Any, path: str) -> list[str]:
        files.invalidate_cache()
        found = [str(one) for one in files.find(path)]
        folder = split_query(path)[0].rstrip("/") + "/"
        return [split_query(one)[0][len(folder) :] for one in found if one.startswith(folder)]

    try:
        found = store.ask(find)
    except OSError as error:
        raise UserError(f"{shown(store.url)} cannot be listed ({error}).") from None
    return sorted(file for file in found if not is_hidden(file))


def _open_images(
    store: Remote, images: Sequence[str], files: Sequence[str], name: str, notes: list[str]
) -> tuple[Fetched, Fetched | None]:
    """Plain images; train/, val/ and class folders mean what they mean in a folder."""
    folders = {file.partition("/")[0] for file in files if "/" in file}
    if any(one <= folders for one in ANNOTATED):
        raise UserError(
            f"{name} at a URL has annotations, which are packed from a folder only: copy it to "
            "this machine first."
        )

    def find(below: tuple[str, ...]) -> Fetched:
        prefix = f"{below[0]}/" if below[0] else ""
        own = [file for file in images if file.startswith(prefix)]
        if not own:
            raise UserError(f"{name}/{prefix} holds no image; expected {EXPECTED} files.")
        names = [unquote(file) if scheme_of(store.url) in WEB else file for file in own]
        parts = [file[len(prefix) :].rpartition("/")[0].partition("/")[0] for file in names]
        groups = tuple(sorted(set(parts)))
        if not are_classes(groups):
            return Fetched(store, own, name=name, names=names)
        numbers = {group: number for number, group in enumerate(groups)}
        labels = [numbers[part] for part in parts]
        return Fetched(store, own, name=name, names=names, labels=labels, classes=groups)

    splits = {folder.lower(): folder for folder in folders}
    return open_folders(name, splits, ("",), notes, find)
