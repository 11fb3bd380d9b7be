"""Tar files in WebDataset's format, byte-identical on every machine."""

import hashlib
import json
import tarfile
import zlib
from pathlib import Path
from typing import Any, Final

BLOCK: Final = 512  # bytes; members of a tar are padded to a multiple
END: Final = bytes(2 * BLOCK)


class TarWriter:
    """Writes the samples of a shard, and records their offsets."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.hash = hashlib.sha256()
        self.position = 0
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.checksums: list[int] = []
        self.names: list[str] = []
        self.labels: list[int] = []

    def __enter__(self) -> "TarWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._write(END)
        self.file.close()

    def add(
        self, key: str, suffix: str, data: bytes, name: str, label: int | None, text: str | None
    ) -> None:
        """Add a sample: image, label, class name and original path."""
        self._header(f"{key}.{suffix}", len(data))
        self.offsets.append(self.position)
        self.sizes.append(len(data))
        self.checksums.append(zlib.crc32(data))
        self.names.append(name)
        self._padded(data)
        about = {"name": name}
        if label is not None:
            self.labels.append(label)
            self._member(f"{key}.cls", str(label).encode())
            about["class"] = text or str(label)
        self._member(f"{key}.json", json.dumps(about).encode())

    def record(self) -> dict[str, Any]:
        """The data of this shard for the index; complete after the end of the `with`."""
        return {
            "bytes": self.position,
            "sha256": self.hash.hexdigest(),
            "offsets": self.offsets,
            "sizes": self.sizes,
            "checksums": self.checksums,
            "names": self.names,
            "labels": self.labels,
        }

    def _member(self, name: str, data: bytes) -> None:
        self._header(name, len(data))
        self._padded(data)

    def _header(self, name: str, size: int) -> None:
        # A new TarInfo has no owner and no time: the file does not depend on the machine.
        info = tarfile.TarInfo(name)
        info.size = size
        self._write(info.tobuf(tarfile.USTAR_FORMAT))

    def _padded(self, data: bytes) -> None:
        self._write(data)
        self._write(bytes(-len(data) % BLOCK))

    def _write(self, data: bytes) -> None:
        self.file.write(data)
        self.hash.update(data)
        self.position += len(data)
