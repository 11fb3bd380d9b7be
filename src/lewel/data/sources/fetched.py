"""Images that are fetched one by one, from a URL or from the tars of other tools, to be packed."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from lewel.data.pack.remote import Remote
from lewel.data.pack.stores import REQUESTS, Extent, Store
from lewel.data.sources.images import UnreadableImage, decode_image
from lewel.data.sources.names import Names
from lewel.data.sources.source import Labels
from lewel.errors import too_many_files

WHOLE: Final = -1  # instead of an offset: all bytes of a file


class Fetched:
    """A source over whole files of a store, or over byte ranges of its files."""

    def __init__(
        self,
        store: Store,
        files: Sequence[str],
        *,
        name: str,
        labels: Iterable[int] | None = None,
        classes: tuple[str, ...] | None = None,
        places: npt.NDArray[np.int64] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        """`places` (N, 3) are file, offset and size of each image; without them a file is one."""
        self.name, self.classes = name, classes
        self._store, self._files, self._places = store, Names.of(files), places
        self._names = self._files if names is None else Names.of(names)
        self.labels: Labels | None = None
        if labels is not None:
            self.labels = np.fromiter(labels, np.int64, len(self._names))
        self._ahead: dict[int, bytearray | UnreadableImage] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": {}}

    def without_labels(self) -> "Fetched":
        """The same images without labels and classes."""
        self.labels, self.classes = None, None
        return self

    def describe(self, index: int) -> str:
        """The path of the image, below the place that was given."""
        return self._names[index]

    def read(self, index: int) -> torch.Tensor:
        """The image, uint8 (3, H, W); raises UnreadableImage."""
        return decode_image(self.load(index))

    def load(self, index: int) -> bytearray:
        """The file's bytes as they are; raises UnreadableImage."""
        found = self._ahead.pop(index, None)
        if isinstance(found, UnreadableImage):
            raise found
        return self._fetch(index) if found is None else found

    def prefetch(self, indices: Sequence[int]) -> None:
        """Fetch images that are loaded next, several requests at a time."""

        def fetch(index: int) -> bytearray | UnreadableImage:
            try:
                return self._fetch(index)
            except UnreadableImage as error:
                return error

        if isinstance(self._store, Remote) and len(indices) > 1:
            with ThreadPoolExecutor(min(REQUESTS, len(indices))) as threads:
                self._ahead = dict(zip(indices, threads.map(fetch, indices), strict=True))

    def _fetch(self, index: int) -> bytearray:
        try:
            if self._places is None:
                data = bytearray(self._store.read_file(self._files[index]))
            else:
                file, start, size = self._places[index].tolist()
                extent = Extent(self._files[file], start, start + size)
                if not size:
                    raise UnreadableImage("empty file")
                data = bytearray(self._store.read_range(extent))
        except EOFError as error:
            raise UnreadableImage(f"{extent.file} is truncated") from error
        except OSError as error:
            if too_many_files(error):  # no fault of this image
                raise
            reason = error.strerror or str(error) or type(error).__name__
            raise UnreadableImage(f"cannot be read ({reason})") from error
        if not data:
            raise UnreadableImage("empty file")
        return data
