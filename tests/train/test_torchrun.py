"""torchrun's own report has our message as the root cause, by the file that it names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from lewel.cli import main
from lewel.errors import Interrupted, LostRank, RunError
from lewel.train import torchrun
from lewel.train.heartbeat import Lost
from lewel.train.lost_ranks import WatchedRanks
from tests.ddp.test_launch import TORCHRUN

LINK = "To enable traceback see"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


def root_cause(file: Path, code: int = 1) -> str:
    """What torch itself prints of a failed process."""
    report = ChildFailedError("lewel", {0: ProcessFailure(0, 123, code, str(file))})
    return str(report).split("Root Cause")[1]


def test_without_a_record_torchrun_prints_a_link(file: Path) -> None:
    assert LINK in root_cause(file)
    torchrun.record_failure("the first message")
    torchrun.record_failure("what followed from it")
    said = root_cause(file)
    assert "traceback : the first message\n" in said and LINK not in said
    assert "what followed" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pretrain", "nowhere"], "nowhere does not exist: expected a folder"),
        (["pretrain", "scenes", "--epochs", "0"], "epochs is '0', but"),
        (["nothing"], "nothing"),
        (["pretrain", ""], "An argument is empty"),
    ],
)
def test_wrong_input_is_recorded(file: Path, words: list[str], message: str) -> None:
    assert main.run(words) == 2
    assert message in root_cause(file, 2)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RunError("It failed."), 1, "It failed."),
        (LostRank("Rank 1 has ended.", said=True), 1, "Rank 1 has ended."),
        (OSError(28, "No space left on device", "run/x"), 1, "run/x: No space left on device"),
        (Interrupted(15, 7), 143, "stopped by SIGTERM after step 7: run the same command"),
        (ZeroDivisionError("a bug"), None, "ZeroDivisionError: a bug"),
    ],
)
def test_every_end_of_a_command_is_recorded(
    file: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int | None, message: str
) -> None:
    def fail(*words: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    if code is None:
        with pytest.raises(type(error)):
            main.run(["pretrain"])
    else:
        assert main.run(["pretrain"]) == code
    assert message in root_cause(file)


def test_a_lost_rank_is_recorded_before_the_process_ends(file: Path) -> None:
    watch = WatchedRanks(10, report=lambda text: None)

    class Beat:
        step = 12

    watch.beat = Beat()  # type: ignore[assignment]
    watch.ended.set()
    watch._on_lost(Lost(1, "has ended"))
    assert "Rank 1 has ended. Training is saved up to step 12" in root_cause(file)


def test_a_file_that_cannot_be_written_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/nowhere/error.json")
    assert main.run(["pretrain", "nowhere"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err


def test_two_processes_of_torchrun(tmp_path: Path) -> None:
    words = [sys.executable, *TORCHRUN, "-m", "lewel", "pretrain", "nowhere"]
    here = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    root = done.stderr.split("Root Cause (first observed failure):")[1]
    assert "nowhere does not exist: expected a folder of images" in root
    assert LINK not in done.stderr
