"""`lewel watch`: the report of a run while it trains, served on this machine only."""

import copy
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lewel.errors import RunError, UserError
from lewel.pages.gallery import Gallery
from lewel.pages.page import report_page
from lewel.pages.text import age_text
from lewel.tasks.maps import gallery_of_run
from lewel.tasks.run_reader import Galleries, Reader, read_run
from lewel.train.metrics import MetricsReader
from lewel.train.run_folder import RunFolder
from lewel.train.summary import Summary

HOST = "127.0.0.1"
LAST = 10.0  # seconds that a server which ends waits for them
PATIENCE = 0.1  # seconds that a page waits for maps; later ones are on the next page
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class LivePage:
    """The page of a run, rebuilt when the run folder has changed."""

    def __init__(self, run: Path, seconds: int, galleries: Galleries = gallery_of_run) -> None:
        self.run, self.seconds = run, seconds
        self.metrics = LiveMetrics(RunFolder(run).metrics)
        self.lock = threading.Lock()
        self.seen: object = None
        self.page = b""
        self.maps = LiveMaps(galleries)

    def now(self) -> bytes:
        """The current page."""
        with self.lock:
            seen = self.state()
            if seen != self.seen or not self.page or self.metrics.reading:
                data = read_run(self.run, self.maps.now, metrics=self.metrics)
                page = report_page([data], refresh=self.seconds)
                self.page, self.seen = page.encode("utf-8", "replace"), seen
            return self.page

    def state(self) -> list[object]:
        """Size and time of every file on the page, and the age of the last step."""
        folder = RunFolder(self.run)
        files = [folder.config, folder.metrics, folder.card, folder.corrupt_images, folder.views]
        files += sorted(self.run.glob("results/*.json")) + sorted(
            self.run.glob("predictions/*.png")
        )
        found: list[object] = [age_text(Reader(self.run, self.metrics).age()), self.maps.made]
        for file in files:
            try:
                about = file.stat()
            except OSError:  # not yet written, or being replaced
                continue
            found.append((file.name, about.st_size, about.st_mtime_ns))
        return found


class LiveMetrics(MetricsReader):
    """The metrics of a run, read aside where that takes long: a page never waits for them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reader = MetricsReader(path)
        self.reader.block, self.reader.pause = 1 << 16, 0.002  # leaves the interpreter to pages
        self.error: OSError | None = None
        self.thread: threading.Thread | None = None

    def update(self, last: int | None = None) -> Summary:
        """The summary of all lines, or the one before while new lines are read."""
        if self.thread is None or not self.thread.is_alive():
            self.thread = threading.Thread(target=self.read, daemon=True)
            self.thread.start()
        self.thread.join(PATIENCE)
        self.reading = self.thread.is_alive()
        if self.error is not None and not self.reading:
            raise self.error
        return self.summary

    def read(self) -> None:
        """Read the new lines; runs aside."""
        try:
            found = self.reader.update()
            self.reader.keep_long()
        except OSError as error:
            self.error = error
        else:
            # A copy: the next lines are added while a page is made of this one.
            self.error, self.damaged = None, self.reader.damaged
            self.summary = copy.deepcopy(found)

    def keep_long(self) -> None:
        """Nothing: it was done aside."""


class LiveMaps:
    """The maps of the newest weights, computed aside, once for each checkpoint."""

    def __init__(self, galleries: Galleries) -> None:
        self.galleries = galleries
        self.written: int | None = None  # when the weights were
        self.gallery: Gallery | None = None
        self.error: UserError | RunError | None = None
        self.made = 0  # how many times
        self.thread: threading.Thread | None = None

    def now(self, run: Path) -> Gallery | None:
        """The newest maps that are there."""
        try:
            written = RunFolder(run).backbone.stat().st_mtime_ns
        except OSError:
            return None
        busy = self.thread is not None and self.thread.is_alive()
        if not busy and written != self.written:
            self.written = written
            self.thread = threading.Thread(target=self.make, args=(run,), daemon=True)
            self.thread.start()
            self.thread.join(PATIENCE)
        if self.error is not None:
            raise self.error
        return self.gallery

    def finish(self) -> None:
        """Wait for maps that are being computed: ending meanwhile, torch would abort."""
        if self.thread is not None:
            self.thread.join(LAST)
            if self.thread.is_alive():
                sys.stdout.flush()
                os._exit(0)

    def make(self, run: Path) -> None:
        try:
            self.gallery, self.error = self.galleries(run), None
        except (UserError, RunError) as error:
            self.gallery, self.error = None, error
        self.made += 1


class Server(ThreadingHTTPServer):
    """Serves the page; port 0 is any free port."""

    daemon_threads = True

    def __init__(self, page: LivePage, port: int = 0) -> None:
        self.live = page
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise UserError(
                f"--port {port} cannot be used ({error.strerror}): choose another, or leave it out."
            ) from None
        except OverflowError:
            raise UserError(f"--port is {port}: expected a number from 0 to 65535.") from None

    def server_close(self) -> None:
        super().server_close()
        self.live.maps.finish()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    """Handles a request."""

    server: Server

    def do_GET(self) -> None:
        """Send the page, for requests to 127.0.0.1 or localhost only."""
        # Against DNS rebinding: another site's host name could point here and read the page.
        hosts = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in hosts:
            self.send_error(403, "Use 127.0.0.1 or localhost.")
        elif self.path != "/":
            self.send_error(404, "There is only one page.")
        else:
            self.send_page(self.server.live.now())

    def send_page(self, page: bytes) -> None:
        try:
            self.send_response(200)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the browser has closed the connection

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests to the terminal."""
