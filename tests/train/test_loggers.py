"""Loggers with the real packages, offline: logged values are read back, also after a resume."""

import json
import os
import pty
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lewel.errors import UserError
from lewel.train import loggers
from lewel.train.loggers import Lines, Logger, Session, flatten, open_loggers

CONFIG = {"optim": {"name": "lars", "lr": 0.3}, "epochs": 5, "symmetric": True, "init": None}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))  # where an API key could be


def lines(first: int, last: int, shift: float = 0.0) -> Lines:
    numbers = [
        {"step": step, "epoch": step / 4, "loss": step + shift, "note": "text", "ok": True}
        for step in range(first, last)
    ]
    numbers[-1]["knn"] = 0.25
    return numbers


def open_one(name: str, folder: Path, resumed_at: int | None, **more: Any) -> Logger:
    [logger] = open_loggers([name], folder, "photos", CONFIG | more, resumed_at)
    return logger


def read_events(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    return events.Reload()


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    killed = open_one("tensorboard", tmp_path, None)
    killed.log(lines(0, 10))
    assert len(read_events(tmp_path).Scalars("loss")) == 10  # on the disk before any close
    time.sleep(1)  # TensorBoard orders its files by the second that they were made in
    logger = open_one("tensorboard", tmp_path, 5)
    logger.log(lines(6, 12, shift=0.5))
    logger.close()
    events = read_events(tmp_path)
    assert set(events.Tags()["scalars"]) == {"epoch", "loss", "knn"}
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        *((step, step) for step in range(6)),
        *((step, step + 0.5) for step in range(6, 12)),
    ]
    assert [(event.step, event.value) for event in events.Scalars("knn")] == [(11, 0.25)]


def test_tensorboard_drops_a_run_that_was_never_saved(tmp_path: Path) -> None:
    open_one("tensorboard", tmp_path, None).log(lines(0, 10))
    time.sleep(1)
    open_one("tensorboard", tmp_path, None).log(lines(0, 3, shift=0.5))
    assert [event.value for event in read_events(tmp_path).Scalars("loss")] == [0.5, 1.5, 2.5]


def test_tensorboard_has_the_config_as_hyperparameters(tmp_path: Path) -> None:
    open_one("tensorboard", tmp_path, None).close()
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    content = read_events(tmp_path).SummaryMetadata(metadata.SESSION_START_INFO_TAG)
    found = metadata.parse_session_start_info_plugin_data(content.plugin_data.content).hparams
    assert found["optim.lr"].number_value == 0.3
    assert found["optim.name"].string_value == "lars"


WANDB_SCRIPT = """
import sys
from pathlib import Path
from lewel.train.loggers import open_loggers

folder = Path(sys.argv[1])
open_loggers([], folder, "photos", {}, None)
assert not {"tensorboard", "wandb", "mlflow"} & set(sys.modules)
for first, last, resumed_at in ((0, 10, None), (6, 12, 5)):
    config = {"optim": {"lr": 0.3}, "workers": first}
    [logger] = open_loggers(["wandb"], folder, "photos", config, resumed_at)
    logger.log([{"step": step, "loss": float(step), "note": "text"} for step in range(first, last)])
    assert (folder / ".wandb_step").read_text() == ("-1" if resumed_at is None else "9")  # so far
    logger.close()
"""


def read_wandb(folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [json.loads(line) for line in out.splitlines()]


def test_loggers_are_imported_on_demand_and_wandb_without_a_key_logs_offline_without_a_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    server.setblocking(False)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
    ours, theirs = pty.openpty()  # a terminal: wandb could prompt there, and would wait for ever
    command = [sys.executable, "-c", WANDB_SCRIPT, str(tmp_path)]
    subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, check=True, timeout=60)
    said = os.read(ours, 10_000).decode()
    name = (tmp_path / ".wandb_id").read_text()
    assert said.count(f"wandb sync {tmp_path}/wandb/offline-run-*-{name}") == 2
    assert len(said.splitlines()) == 2
    with pytest.raises(BlockingIOError):
        server.accept()  # no connection was made
    sessions = [read_wandb(path) for path in sorted(tmp_path.glob("wandb/offline-run-*"))]
    runs = [record["run"] for session in sessions for record in session if "run" in record]
    assert [run["run_id"] for run in runs] == [name, name]
    assert all(run["resume"] for run in runs)
    assert runs[0]["config"]["update"]["optim"] == {"lr": 0.3}
    rows = [r["history"]["item"] for session in sessions for r in session if "history" in r]
    assert [(row["_step"], row["loss"]) for row in rows] == [(step, step) for step in range(12)]
    assert not any("note" in row for row in rows)


def test_mlflow_keeps_one_run_with_each_step_once(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    many = {f"value{number}": number for number in range(150)}
    open_one("mlflow", tmp_path, None, long="x" * 7000, many=many).log(lines(0, 50))  # and killed
    logger = open_one("mlflow", tmp_path, 5, epochs=9)  # MLflow refuses to change a parameter
    logger.log(lines(6, 60, shift=0.5))
    logger.close()
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    name = (tmp_path / ".mlflow_id").read_text()
    history = client.get_metric_history(name, "loss")
    assert sorted((metric.step, metric.value) for metric in history) == [
        *((step, step) for step in range(50)),
        *((step, step + 0.5) for step in range(50, 60)),
    ]
    run = client.get_run(name)
    assert set(run.data.metrics) == {"epoch", "loss", "knn"}
    assert run.data.params["many.value149"] == "149" and run.data.params["optim.lr"] == "0.3"
    assert run.data.params["epochs"] == "5" and set(run.data.params["long"]) == {"x"}
    assert run.info.run_name == "photos" and run.info.status == "FINISHED"
    open_one("mlflow", tmp_path, None).close(failed=True)
    other = client.get_run((tmp_path / ".mlflow_id").read_text())
    assert other.info.run_id != name and other.info.status == "FAILED"


def test_a_server_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)  # closed again
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match="logger 'mlflow' could not be opened") as caught:
        open_one("mlflow", tmp_path, None)
    assert len(str(caught.value).splitlines()) == 1
    said: list[str] = []
    opened = open_loggers(["mlflow", "tensorboard"], tmp_path, "photos", CONFIG, 5, said.append)
    assert len(opened) == 1 and len(said) == 1 and "continues without it" in said[0]
    assert not (tmp_path / "mlruns").exists()


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("tensorboard", "tensorboard"),
        ("wandb", "wandb"),
        ("mlflow", "mlflow"),
        ("mlflow", "alembic"),
    ],
)
def test_a_missing_package(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{package}.*pip install 'lewel\[{name}\]'"):
        open_loggers(["tensorboard", name], tmp_path, "photos", CONFIG, None)
    assert not any(tmp_path.iterdir())  # all packages are checked before any logger is opened


def test_an_unknown_logger(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no logger 'comet': expected tensorboard, wandb, mlflow"):
        open_loggers(["comet"], tmp_path, "photos", CONFIG, None)


class Broken:
    """Fails at the second call."""

    def __init__(self, session: Session) -> None:
        self.calls = 0

    def log(self, lines: Lines) -> None:
        self.calls += 1
        if self.calls > 1:
            raise OSError(28, "No space left on device")

    def close(self, failed: bool = False) -> None:
        raise AssertionError("it was dropped")


def test_a_logger_that_fails_is_dropped_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loggers.BACK_ENDS, "wandb", (Broken, []))
    said: list[str] = []
    names = ["wandb", "tensorboard", "wandb"]
    opened = open_loggers(names, tmp_path, "photos", CONFIG, None, said.append)
    assert len(opened) == 2
    for step in range(4):
        for logger in opened:
            logger.log(lines(step, step + 1))
            logger.log([])
    for logger in opened:
        logger.close()
    assert len(said) == 1
    assert "wandb failed" in said[0] and "No space left on device" in said[0]
    assert [event.step for event in read_events(tmp_path).Scalars("loss")] == [0, 1, 2, 3]


def test_nested_values_get_dotted_keys() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [1, 2]}, "e": True, "f": None, "g": 0.5}) == {
        "a.b.c": 1,
        "a.d": "[1, 2]",
        "e": "True",
        "f": "None",
        "g": 0.5,
    }
