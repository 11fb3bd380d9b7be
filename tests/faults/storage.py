"""A file server with range requests, as object storage has, and with its faults.

`python -m tests.faults.storage FOLDER --latency 0.05` serves a folder until it is stopped; it
answers GET /-/counts with what it has sent as JSON, and sets counts back.
"""

import argparse
import functools
import http.server
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

STALL = 3.0  # seconds without a byte in the middle of an answer


@dataclass
class Faults:
    """What a server does wrong; counts are of answers that still go wrong in this way."""

    latency: float = 0.0  # seconds before each answer
    down_after: int | None = None  # requests after which every one is answered 503, ...
    down_for: float = 0.0  # ... for so many seconds
    down_until: float = 0.0
    unavailable: int = 0  # answers 503, or another `status`
    status: int = 503
    heads: int = 0  # answers 503 to HEAD
    hang_ups: int = 0  # the connection is closed without an answer
    stalls: int = 0  # half of an answer, then nothing for a while
    truncated: int = 0  # fewer bytes than the header promises
    short: int = 0  # fewer bytes than asked for, and a header that agrees
    flipped: int = 0  # some bits of the answer are wrong
    only: str = ".tar"  # of files whose names contain this
    sent: Counter[str] = field(default_factory=Counter)  # bytes by file
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def down(self) -> bool:
        """Whether there is an outage now."""
        with self.lock:
            if self.down_after is not None and len(self.requests) >= self.down_after:
                self.down_after, self.down_until = None, time.monotonic() + self.down_for
        return time.monotonic() < self.down_until

    def take(self, kind: str) -> bool:
        """Whether this answer goes wrong in a way; counts it."""
        with self.lock:
            left = int(getattr(self, kind))
            setattr(self, kind, max(0, left - 1))
        return left > 0


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers range requests, rightly or wrongly."""

    protocol_version = "HTTP/1.1"  # keeps connections, as object storage does

    def __init__(self, faults: Faults, *arguments: Any, **options: Any) -> None:
        self.faults = faults
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if self.path == "/-/counts":
            self.send_counts()
            return
        time.sleep(self.faults.latency)
        if self.goes_wrong(path):
            return
        if not path.is_file():
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        with path.open("rb") as file:
            if wanted is None:
                self.answer(200, file.read(), path)
                return
            start, end = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
            file.seek(start)
            self.answer(206, file.read(end + 1 - start), path)

    def do_HEAD(self) -> None:
        if self.faults.take("heads"):
            self.send_error(self.faults.status)
        else:
            super().do_HEAD()

    def goes_wrong(self, path: Path) -> bool:
        """Answer with an error, or not at all, where that is due -> whether."""
        faults = self.faults
        if faults.down or (faults.only in path.name and faults.take("unavailable")):
            self.send_error(faults.status)
            return True
        if faults.only in path.name and faults.take("hang_ups"):
            self.close_connection = True
            return True
        return False

    def answer(self, status: int, data: bytes, path: Path) -> None:
        faults, promised = self.faults, len(data)
        with faults.lock:
            faults.sent[path.name] += len(data)
            faults.requests.append(f"{path.name} {self.headers.get('Range', '')}")
        stalls = False
        if faults.only in path.name:
            stalls = faults.take("stalls")
            if faults.take("short"):
                data = data[: promised // 2]
                promised = len(data)
            if faults.take("truncated"):
                data, self.close_connection = data[: promised // 2], True
            if faults.take("flipped"):
                changed = bytearray(data)
                for place in range(200, len(changed), 500):
                    changed[place] ^= 1
                data = bytes(changed)
        self.send_response(status)
        self.send_header("Content-Length", str(promised))
        self.end_headers()
        if stalls:
            self.wfile.write(data[: promised // 2])
            time.sleep(STALL)
            self.close_connection = True
            return
        self.wfile.write(data)

    def send_counts(self) -> None:
        with self.faults.lock:
            counts = {
                "bytes": sum(n for name, n in self.faults.sent.items() if name.endswith(".tar")),
                "others": sum(
                    n for name, n in self.faults.sent.items() if not name.endswith(".tar")
                ),
                "requests": len(self.faults.requests),
            }
            self.faults.sent.clear()
            self.faults.requests.clear()
        data = json.dumps(counts).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Does not print the connections that clients close."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        pass


def make_server(folder: Path, faults: Faults, port: int = 0) -> Server:
    handler = functools.partial(Handler, faults, directory=str(folder))
    return Server(("127.0.0.1", port), handler)


@contextmanager
def served(folder: Path, faults: Faults) -> Iterator[str]:
    """The URL of a folder while it is served."""
    server = make_server(folder, faults)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def impatient(patch: pytest.MonkeyPatch) -> None:
    """Shorter pauses and limits, so that a test of an outage takes a second."""
    patch.setattr("lewel.data.pack.patience.FIRST_WAIT", 0.02)
    patch.setattr("lewel.data.pack.patience.LONGEST_WAIT", 0.2)
    patch.setattr("lewel.data.pack.patience.SILENT", 0.3)
    patch.setattr("lewel.data.pack.remote.STALLED", 1.0)


def without_cache(patch: pytest.MonkeyPatch) -> None:
    """Each process keeps only the last block: nearly every image is a request."""
    patch.setattr("lewel.data.pack.remote.open_cache", lambda *_: None)
    patch.setattr("lewel.data.pack.remote.CACHE_BYTES", 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    server = make_server(options.folder, Faults(latency=options.latency), options.port)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
