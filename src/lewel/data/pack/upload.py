"""A URL that shards are packed to: each is made on this machine, then uploaded."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from lewel.data.pack.folder import (
    RECORDS,
    FolderTarget,
    Record,
    Target,
    refuse_other_settings,
    write_text,
)
from lewel.data.pack.format import INDEX, MANIFEST
from lewel.data.pack.remote import Remote
from lewel.data.pack.storage import Storage
from lewel.data.pack.stores import Extent, Store
from lewel.data.pack.urls import is_url, shown
from lewel.errors import UserError
from lewel.files import user_path

READ: Final = 8 * 2**20  # bytes of a shard that are read at once
READ_ONLY: Final = ("http", "https", "data", "zip", "tar", "github")
FLAT: Final = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "r2", "memory")  # no folders


def open_target(place: str, storage: Storage) -> Target:
    """The target for a folder or a URL."""
    if is_url(place):
        return UrlTarget(place, storage)
    return FolderTarget(user_path(place))


class UrlTarget:
    """Files at a URL that fsspec can write to; a shard counts as written with its record.

    There is no lock. Two processes that pack the same data write the same bytes.
    """

    def __init__(self, url: str, storage: Storage) -> None:
        self.shown, self.kind = shown(url), url.partition("://")[0]
        if self.kind in READ_ONLY:
            raise UserError(
                f"{self.shown} cannot be written to by {self.kind}: give a folder, or a URL such "
                "as s3://bucket/shards."
            )
        self._remote = Remote(url, storage)

    @contextmanager
    def claimed(self, manifest: dict[str, Any]) -> Iterator[None]:
        """Refuse a place with other files, or with settings that differ from its manifest."""
        try:
            names = self._list()
            if MANIFEST in names:
                refuse_other_settings(self.shown, self.read(MANIFEST), manifest)
            elif names - {RECORDS} or (RECORDS in names and self._list(RECORDS)):
                raise UserError(
                    f"{self.shown} holds other files, no packed data: use a new or empty place."
                )
            if self.kind not in FLAT:
                self._remote.ask(lambda files, path: files.makedirs(path, exist_ok=True), RECORDS)
            if MANIFEST not in names:
                write_text(self, MANIFEST, json.dumps(manifest, indent=1))
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"{self.shown} cannot be written: {reason}.") from None
        yield

    def _list(self, folder: str = "") -> set[str]:
        """The names in a folder."""

        def list_now(files: Any, path: str) -> list[str]:
            files.invalidate_cache()
            found = list(files.ls(path, detail=False))
            files.invalidate_cache()  # or shards that other ranks upload would not exist here
            return found

        try:
            found = self._remote.ask(list_now, folder)
        except FileNotFoundError:  # nothing was written there yet
            return set()
        return {name.rstrip("/").rpartition("/")[2] for name in found} - {folder}

    def write(self, file: str, fill: Callable[[Path], object]) -> None:
        with tempfile.TemporaryDirectory(prefix="lewel-pack-") as folder:
            temp = Path(folder, os.path.basename(file))
            fill(temp)
            self._remote.ask(lambda files, path: files.put_file(str(temp), path), file)

    def read(self, file: str) -> bytes:
        return self._remote.read_file(file)

    def remove(self, file: str) -> None:
        with suppress(FileNotFoundError):
            self._remote.ask(lambda files, path: files.rm_file(path), file)

    def is_intact(self, file: str, record: Record) -> bool:
        """By its size while the index is missing, so that resuming reads nothing; else SHA-256."""
        try:
            if self._remote.size(file) != record["bytes"]:
                return False
            if not self._complete:
                return True
            state = hashlib.sha256()
            for start in range(0, record["bytes"], READ):
                end = min(start + READ, record["bytes"])
                state.update(self._remote.read_range(Extent(file, start, end)))
        except (FileNotFoundError, EOFError):
            return False
        return state.hexdigest() == str(record["sha256"])

    @cached_property
    def _complete(self) -> bool:
        """Whether the index was written: then nothing is left but to repair."""
        try:
            self._remote.size(INDEX)
        except FileNotFoundError:
            return False
        return True

    def store(self) -> Store:
        return self._remote
