"""The page of a run while it trains, served to browsers of this machine only."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lewel.errors import UserError
from lewel.looking import gallery_of_run
from lewel.report.gallery import Gallery
from lewel.report.page import report_page
from lewel.report.words import age_word
from lewel.reporting import Look, Reader, read_run
from lewel.train.folder import RunFolder

HOST = "127.0.0.1"
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class LivePage:
    """A run's page, made anew when something in the run folder has changed."""

    def __init__(self, run: Path, seconds: int, look: Look = gallery_of_run) -> None:
        self.run, self.seconds, self.look = run, seconds, look
        self.lock = threading.Lock()
        self.seen: object = None
        self.page = b""
        self.maps: tuple[int, Gallery | None] | None = None

    def now(self) -> bytes:
        """The page as the folder is now."""
        with self.lock:
            seen = self.state()
            if seen != self.seen or not self.page:
                told = read_run(self.run, self.maps_of)
                page = report_page([told], refresh=self.seconds)
                self.page, self.seen = page.encode("utf-8", "replace"), seen
            return self.page

    def state(self) -> list[object]:
        """Size and time of every file that the page tells of, and how old it says the run is."""
        folder = RunFolder(self.run)
        files = [folder.config, folder.metrics, folder.card, folder.bad_images, folder.views]
        files += sorted(self.run.glob("results/*.json")) + sorted(
            self.run.glob("predictions/*.png")
        )
        found: list[object] = [age_word(Reader(self.run).age())]
        for file in files:
            try:
                about = file.stat()
            except OSError:  # not yet written, or just being replaced
                continue
            found.append((file.name, about.st_size, about.st_mtime_ns))
        return found

    def maps_of(self, run: Path) -> Gallery | None:
        """The maps, computed once for each checkpoint: they take longer than the rest."""
        try:
            written = RunFolder(run).backbone.stat().st_mtime_ns
        except OSError:
            return None
        if self.maps is None or self.maps[0] != written:
            self.maps = (written, self.look(run))
        return self.maps[1]


class Server(ThreadingHTTPServer):
    """Answers with the page; a free port where 0 is asked for."""

    daemon_threads = True

    def __init__(self, page: LivePage, port: int = 0) -> None:
        self.live = page
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise UserError(
                f"--port {port} cannot be had ({error.strerror}): choose another, or leave it out."
            ) from None
        except OverflowError:
            raise UserError(f"--port is {port}: expected a number from 0 to 65535.") from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        """The page, to those who asked for it by this machine's own name."""
        # Another site's name that was made to point here could else read the page.
        hosts = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in hosts:
            self.send_error(403, "Ask for 127.0.0.1 or localhost.")
        elif self.path != "/":
            self.send_error(404, "There is only one page.")
        else:
            self.answer(self.server.live.now())

    def answer(self, page: bytes) -> None:
        try:
            self.send_response(200)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the reader has left

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is for the user."""
