"""`lewel watch`: the report of a run while it trains, served on this machine only."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lewel.errors import UserError
from lewel.pages.gallery import Gallery
from lewel.pages.page import report_page
from lewel.pages.text import age_text
from lewel.tasks.maps import gallery_of_run
from lewel.tasks.report import Galleries, Reader, read_run
from lewel.train.run_folder import RunFolder

HOST = "127.0.0.1"
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class LivePage:
    """The page of a run, rebuilt when the run folder has changed."""

    def __init__(self, run: Path, seconds: int, galleries: Galleries = gallery_of_run) -> None:
        self.run, self.seconds, self.galleries = run, seconds, galleries
        self.lock = threading.Lock()
        self.seen: object = None
        self.page = b""
        self.maps: tuple[int, Gallery | None] | None = None

    def now(self) -> bytes:
        """The current page."""
        with self.lock:
            seen = self.state()
            if seen != self.seen or not self.page:
                data = read_run(self.run, self.maps_of)
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
        found: list[object] = [age_text(Reader(self.run).age())]
        for file in files:
            try:
                about = file.stat()
            except OSError:  # not yet written, or being replaced
                continue
            found.append((file.name, about.st_size, about.st_mtime_ns))
        return found

    def maps_of(self, run: Path) -> Gallery | None:
        """The maps, computed once per checkpoint because they are slow."""
        try:
            written = RunFolder(run).backbone.stat().st_mtime_ns
        except OSError:
            return None
        if self.maps is None or self.maps[0] != written:
            self.maps = (written, self.galleries(run))
        return self.maps[1]


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
