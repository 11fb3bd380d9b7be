"""A data folder and a fake internet, for all tests of named data sets."""

import io
import socket
import time
from pathlib import Path
from urllib.error import URLError

import pytest

from lewel.data.sources import catalogue


class Internet:
    """Replaces urlopen: serves given files, or fails, and logs transfers."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.error: Exception = URLError(socket.gaierror(-2, "Name or service not known"))
        self.breaks: Exception | None = None  # the exception that interrupts a transfer
        self.log: Path | None = None

    def __call__(self, request: object, *_: object, **__: object) -> object:
        url = request.full_url
        name = url.rpartition("/")[2]
        if name not in self.files:
            raise self.error
        content, breaks, log = self.files[name], self.breaks, self.log

        class Response(io.BytesIO):
            length = len(content)

            def read(self, size: int | None = -1) -> bytes:
                chunk = super().read(size)
                if log is not None:
                    time.sleep(0.3)
                    with log.open("a") as file:
                        file.write("." if chunk else "")
                if breaks is not None and self.tell() * 2 >= len(content):
                    raise breaks
                return chunk

        response = Response(content)
        response.url = url
        return response


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEWEL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(catalogue, "STL10_IMAGES", {"train": 20, "test": 6, "unlabeled": 30})
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def internet(monkeypatch: pytest.MonkeyPatch) -> Internet:
    fake = Internet()
    monkeypatch.setattr("urllib.request.urlopen", fake)
    return fake


@pytest.fixture
def any_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny files have other checksums than the real ones."""
    monkeypatch.setattr("torchvision.datasets.utils.check_md5", lambda *_, **__: True)
