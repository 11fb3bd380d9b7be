"""`lewel watch`: a live page of a run in progress, served on localhost only."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lewel.cli.main import run
from lewel.tasks.watch import LivePage, Server
from lewel.train import metrics as metrics_module
from tests.pages.browsing import browser, complaints, show
from tests.pages.making import metric_lines, random_gallery
from tests.running import tiny_run

CONFIG = "data: scenes\nmethod: lewel_b\nbackbone: resnet10\nepochs: 4\n"


@contextmanager
def served(folder: Path, **choices: object) -> Iterator[Server]:
    with Server(LivePage(folder, 1, **choices)) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server: Server, path: str = "/", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", path, headers={"Host": host} if host else {})
    response = connection.getresponse()
    return response.status, response.read().decode()


def begin(folder: Path, steps: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG)
    lines = "".join(json.dumps(line) + "\n" for line in metric_lines(steps))
    (folder / "metrics.jsonl").write_text(lines)


def eventually(page: Callable[[], str], words: str) -> str:
    """The page once it has these words."""
    end = time.monotonic() + 60
    while words not in (text := page()) and time.monotonic() < end:
        time.sleep(0.02)
    assert words in text
    return text


def test_a_page_follows_its_run_from_before_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with served(folder) as server:
        assert "Nothing written yet" in get(server)[1]
        folder.mkdir()
        assert "Nothing written yet" in get(server)[1]
        (folder / "config.yaml").write_text(CONFIG)
        assert "starting" in get(server)[1]
        begin(folder, 100)
        page = get(server)[1]
        assert "epoch 1.00 of 4" in page and "Nothing written yet" not in page
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 101, "epoch": 1.01, "lo')
            file.flush()
            assert "epoch 1.00 of 4" in get(server)[1]
            file.write('ss": 0.5}\n')
        assert "epoch 1.01 of 4" in get(server)[1]
        begin(folder, 400)
        assert "finished" in get(server)[1]


def test_a_live_page_leaves_out_what_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: Path) -> None:
        raise AssertionError("a live page searches no neighbours")

    monkeypatch.setattr("lewel.tasks.neighbours.neighbours_of_run", fail)
    monkeypatch.setattr("lewel.tasks.report.neighbours_of_run", fail)
    assert tiny_run(tmp_path / "run", "--epochs", "1", "--limit", "8") == 0
    live = LivePage(tmp_path / "run", 1)
    page = eventually(lambda: live.now().decode(), "<h2>Alignment maps</h2>")
    assert "Nearest neighbours" not in page


def test_only_one_page_is_served_on_localhost_only(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        port = server.server_port
        assert server.server_address[0] == "127.0.0.1"
        assert get(server)[0] == get(server, host=f"localhost:{port}")[0] == 200
        assert get(server, host=f"example.org:{port}")[0] == 403
        assert get(server, "/config.yaml")[0] == get(server, "/../secret")[0] == 404


def test_maps_are_computed_once_for_each_checkpoint(tmp_path: Path) -> None:
    calls = []

    def gallery(path: Path) -> object:
        calls.append(path)
        return random_gallery(images=1)

    begin(tmp_path, 10)
    with served(tmp_path, galleries=gallery) as server:
        assert "<h2>Alignment maps</h2>" not in get(server)[1] and not calls
        (tmp_path / "backbone.safetensors").write_bytes(b"")
        for steps in (20, 30):
            begin(tmp_path, steps)
            eventually(lambda: get(server)[1], "<h2>Alignment maps</h2>")
        assert len(calls) == 1


def test_a_long_run_and_slow_maps_do_not_delay_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, parsed, parse = threading.Event(), [], metrics_module.parse
    monkeypatch.setattr(metrics_module, "parse", lambda b: parsed.extend(b) or parse(b))

    def gallery(path: Path) -> object:
        assert ready.wait(60)
        return random_gallery(images=1)

    begin(tmp_path, 3000)
    (tmp_path / "backbone.safetensors").write_bytes(b"")
    with served(tmp_path, galleries=gallery) as server:
        assert "<h2>Curves</h2>" in (page := get(server)[1]) and "<h2>Alignment" not in page
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 3001, "epoch": 30.01, "loss": 0.5}\n')
        assert "30" in get(server)[1] and len(parsed) == 3002
        ready.set()
        eventually(lambda: get(server)[1], "<h2>Alignment maps</h2>")


def test_a_server_that_ends_waits_for_maps(tmp_path: Path) -> None:
    done = []

    def gallery(path: Path) -> object:
        time.sleep(1)
        done.append(path)
        return None

    begin(tmp_path, 10)
    (tmp_path / "backbone.safetensors").write_bytes(b"")
    with served(tmp_path, galleries=gallery) as server:
        get(server)
    assert done


def test_ctrl_c_ends_it_without_output(tmp_path: Path) -> None:
    begin(tmp_path, 10)
    watching = subprocess.Popen(
        [sys.executable, "-m", "lewel", "watch", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "20"},
    )
    assert watching.stdout is not None
    line = watching.stdout.readline()
    (url,) = re.findall(r"http://127\.0\.0\.1:\d+/", line)
    assert "epoch 0.10 of 4" in urllib.request.urlopen(url, timeout=60).read().decode()
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=60)
    assert watching.returncode in (0, 130) and errors == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "99999"], "--port is 99999"),
        (["--every", "0"], "--every is 0"),
    ],
)
def test_mistakes_get_one_message(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["watch", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(tmp_path) as server:
        assert run(["watch", str(tmp_path), "--port", str(server.server_port)]) == 2
    assert "cannot be used" in capsys.readouterr().err


def test_an_open_page_is_updated_and_keeps_the_selected_map(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begin(folder, 100)
    (folder / "backbone.safetensors").write_bytes(b"")
    with (
        browser(tmp_path / "profile") as opened,
        served(folder, galleries=lambda _: random_gallery()) as server,
    ):
        show(opened, server.url)
        opened.execute_script("document.querySelector('.next-map').click()")
        begin(folder, 230)
        text, end = "", time.monotonic() + 60
        while "epoch 2.30 of 4" not in text and time.monotonic() < end:
            time.sleep(0.1)
            text = opened.execute_script("return document.querySelector('header').innerText")
        assert "epoch 2.30 of 4" in text
        assert opened.execute_script("return document.querySelector('.pick-map').value") == "1"
        assert complaints(opened) == []


def test_a_long_file_without_a_summary_is_read_aside_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, 350)
    monkeypatch.setattr(metrics_module, "KEPT_EVERY", 100)
    parse, parsed = metrics_module.parse, list[int]()

    def slow(block: list[bytes]) -> list[dict[str, object] | None]:
        parsed.append(len(block))
        time.sleep(1.0)
        return parse(block)

    monkeypatch.setattr(metrics_module, "parse", slow)
    with served(tmp_path) as server:
        began = time.monotonic()
        page = get(server)[1]
        assert time.monotonic() - began < 0.9 and "is being read" in page
        page = eventually(lambda: get(server)[1], "Loss, last steps")
        assert "is being read" not in page and sum(parsed) == 351
    assert (tmp_path / ".metrics_summary.npz").exists()
    with served(tmp_path) as server:  # the summary was kept: nothing is read again
        assert "is being read" not in get(server)[1]
    assert sum(parsed) == 351 and not list(tmp_path.glob("*.lewel-partial"))
