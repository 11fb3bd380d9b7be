"""Storage that does not answer for a while is waited for; what lasts counts as corrupt images."""

import os
import pickle
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.http import HTTPFileSystem

from lewel.data.pack.storage import Storage
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Source
from tests.data.pack.photos import make_packed
from tests.faults.storage import Faults, impatient, served, without_cache
from tests.faults.test_resume import assert_same_run
from tests.running import metrics, start_process, tiny_run

FLAGS = ("--limit", "200", "--epochs", "2")
STEPS = 24
OUTAGE = 40  # requests before an outage: in the middle of the run


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_packed(tmp_path_factory.mktemp("storage"), train=96, val=12, shard_images=40)


@pytest.fixture(scope="module")
def whole(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the folder, which nothing interrupts."""
    out = tmp_path_factory.mktemp("undisturbed") / "whole"
    assert tiny_run(out, *FLAGS, data=str(packed)) == 0
    return out


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    impatient(monkeypatch)
    return Faults()


@pytest.fixture
def url(packed: Path, faults: Faults) -> Iterator[str]:
    with served(packed, faults) as place:
        yield place


def opened(place: str, minutes: float = 1.0) -> Source:
    return open_data(place, image_size=16, storage=Storage(timeout=minutes)).unlabelled


@pytest.mark.parametrize(
    "fault",
    [
        {"unavailable": 5},
        {"unavailable": 2, "status": 429},
        {"hang_ups": 3},
        {"stalls": 1},
        {"truncated": 2},
        {"short": 2},
        {"flipped": 1},
    ],
    ids=str,
)
def test_what_passes_is_waited_for(
    packed: Path, faults: Faults, url: str, fault: dict[str, int]
) -> None:
    source, local = opened(url), opened(str(packed))
    for name, value in fault.items():
        setattr(faults, name, value)
    for index in range(len(local)):
        assert torch.equal(source.read(index), local.read(index))
    assert not any(getattr(faults, name) for name in fault if name != "status")


@pytest.mark.parametrize("status", [403, 404, 410])
def test_what_lasts_is_a_corrupt_image_at_once(faults: Faults, url: str, status: int) -> None:
    source = opened(url)
    faults.unavailable, faults.status = 1, status
    with pytest.raises(UnreadableImage, match=r"train-000000.tar cannot be read"):
        source.read(0)
    assert source.read(0).shape[0] == 3  # the next request may be answered


def test_bytes_that_are_wrong_twice_are_a_corrupt_image(faults: Faults, url: str) -> None:
    source = opened(url)
    faults.flipped = 2
    with pytest.raises(UnreadableImage, match=r"^train-000000.tar is damaged$"):
        source.read(0)
    assert source.read(0).shape[0] == 3  # it was the line, not the shard


def test_the_index_is_waited_for(faults: Faults, url: str) -> None:
    faults.only, faults.unavailable = "lewel-", 3
    assert len(opened(url)) == 96


def test_a_host_name_that_was_never_resolved_is_wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    impatient(monkeypatch)
    monkeypatch.setattr(socket, "getaddrinfo", unknown_name)
    began = time.monotonic()
    assert tiny_run(tmp_path / "run", data="http://me:secret@no-such-host.invalid/shards") == 2
    said = capfd.readouterr().err
    assert "The host name of http://no-such-host.invalid/shards cannot be resolved" in said
    assert "secret" not in said and "Traceback" not in said and time.monotonic() - began < 30
    assert not (tmp_path / "run").exists()


def test_a_host_name_that_was_resolved_before_is_an_outage(
    packed: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cache(monkeypatch)
    with served(packed, faults) as place:
        name = place.replace("127.0.0.1", "localhost")
        source, local = opened(name), opened(str(packed))
        source.read(0)
        HTTPFileSystem.clear_instance_cache()
        again = pickle.loads(pickle.dumps(source))  # as in a spawned worker: a new connection
        known, failed = socket.getaddrinfo, list[object]()

        def fails_at_first(*arguments: Any, **options: Any) -> Any:
            failed.append(arguments)
            return (unknown_name if len(failed) < 8 else known)(*arguments, **options)

        monkeypatch.setattr(socket, "getaddrinfo", fails_at_first)
        assert torch.equal(again.read(50), local.read(50))
        assert len(failed) >= 8


def unknown_name(*_: Any, **__: Any) -> Any:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_through_an_outage_equals_one_without(
    whole: Path,
    tmp_path: Path,
    faults: Faults,
    url: str,
    workers: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    without_cache(monkeypatch)
    faults.down_after, faults.down_for = OUTAGE, 1.0
    assert tiny_run(tmp_path / "run", *FLAGS, "--workers", workers, data=url) == 0
    said = capfd.readouterr().err
    assert re.search(r"storage does not answer since \d s: waiting \(http.*503\)", said)
    assert said.count("does not answer") == said.count("answers again after") == 1
    assert not (tmp_path / "run" / "corrupt_images.jsonl").exists()
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_long_outage_saves_and_the_same_command_resumes(
    whole: Path,
    tmp_path: Path,
    faults: Faults,
    url: str,
    workers: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_cache(monkeypatch)
    flags = (*FLAGS, "--workers", workers, "--checkpoint-minutes", "9")
    faults.down_after, faults.down_for = OUTAGE, 60
    assert tiny_run(tmp_path / "run", *flags, "--storage-timeout", "0.01", data=url) == 1
    said = capsys.readouterr().err
    assert "has not answered for 0.01 minutes (HTTP status 503)" in said and "Traceback" not in said
    saved = re.search(r"saved up to step (\d+): run the same command to resume", said)
    assert saved is not None and 0 < int(saved[1]) < STEPS
    assert metrics(tmp_path / "run")[-1]["step"] == int(saved[1])
    faults.down_until = 0.0
    assert tiny_run(tmp_path / "run", *flags, data=url) == 0
    assert f"resumed at step {saved[1]}" in capsys.readouterr().out
    assert_same_run(whole, tmp_path / "run")


def test_a_signal_during_an_outage_saves(
    whole: Path, tmp_path: Path, faults: Faults, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cache(monkeypatch)
    flags = (*FLAGS, "--workers", "1")

    def stop() -> None:
        while not faults.down_until:
            time.sleep(0.05)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    faults.down_after, faults.down_for = OUTAGE, 60
    threading.Thread(target=stop, daemon=True).start()
    assert tiny_run(tmp_path / "run", *flags, data=url) == 143
    faults.down_until = 0.0
    assert 0 < metrics(tmp_path / "run")[-1]["step"] < STEPS
    assert tiny_run(tmp_path / "run", *flags, data=url) == 0
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.slow
def test_an_outage_of_60_seconds(whole: Path, tmp_path: Path, packed: Path) -> None:
    faults = Faults(latency=0.05, down_after=6, down_for=60)
    out = tmp_path / "run"
    with served(packed, faults) as place:
        process = start_process(out, *FLAGS, "--workers", "2", data=place)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    assert said.count("storage does not answer since") == 1
    assert faults.down_until and "storage answers again after" in said
    assert_same_run(whole, out)
