"""metrics.jsonl has every step once."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lewel.train import metrics as module
from lewel.train.metrics import Metrics, MetricsReader
from lewel.train.summary import Summary
from tests.pages.making import metric_lines
from tests.running import metrics as read_metrics


def write(path: Path, first: int, last: int, resumed_at: int) -> None:
    metrics = Metrics(path, resumed_at)
    for step in range(first, last):
        metrics.add({"step": step}, {"loss": torch.tensor(float(step))})
    metrics.flush()


def test_lines_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 0, 10, 0)
    write(path, 6, 12, resumed_at=5)
    assert [line["step"] for line in read_metrics(path.parent)] == list(range(12))


def test_a_line_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 0, 5, 0)
    path.write_bytes(path.read_bytes()[:-4])
    write(path, 4, 6, resumed_at=9)
    assert [line["step"] for line in read_metrics(path.parent)] == list(range(6))


def test_scalars_stay_on_the_device_until_the_flush(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl", 0)
    metrics.add({"step": 1}, {"loss": torch.tensor(2.0), "embedding_std": torch.tensor(0.5)})
    assert not metrics.path.exists()
    metrics.annotate({"knn": 0.25})
    assert metrics.flush() == [{"step": 1, "knn": 0.25, "loss": 2.0, "embedding_std": 0.5}]
    assert metrics.flush() == []


def append(path: Path, lines: list[dict[str, object]]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_a_reader_parses_each_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lines, parsed = tmp_path / "metrics.jsonl", metric_lines(300), []
    parse = module.parse
    monkeypatch.setattr(module, "parse", lambda block: parsed.extend(block) or parse(block))
    reader = MetricsReader(path)
    assert not reader.update()
    for start in range(0, 301, 70):
        append(path, lines[start : start + 70])
        reader.update()
    assert reader.summary == Summary.of(lines) and len(parsed) == 301
    reader.keep()
    append(path, [{"step": 301, "epoch": 3.01, "loss": 0.5}])
    assert MetricsReader(path).update().last("loss") == 0.5
    assert len(parsed) == 302


@pytest.mark.parametrize("other", ["shorter", "of another run"])
def test_a_summary_of_another_file_is_not_used(tmp_path: Path, other: str) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, metric_lines(300))
    reader = MetricsReader(path)
    reader.update()
    reader.keep()
    lines = metric_lines(100) if other == "shorter" else metric_lines(600, seed=1)
    path.unlink()
    append(path, lines)
    assert reader.update() == MetricsReader(path).update() == Summary.of(lines)
    reader.beside.write_bytes(reader.beside.read_bytes()[:-30])
    assert MetricsReader(path).update() == Summary.of(lines)


def test_a_resume_reads_only_what_the_kept_summary_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lines, parsed = tmp_path / "metrics.jsonl", metric_lines(300), []
    monkeypatch.setattr(module, "KEPT_EVERY", 100)
    append(path, lines[:251])
    Metrics(path, resumed_at=250).keep_summary()
    append(path, lines[251:])
    parse = module.parse
    monkeypatch.setattr(module, "parse", lambda block: parsed.extend(block) or parse(block))
    resumed = Metrics(path, resumed_at=270)
    assert read_metrics(tmp_path) == lines[:271] and len(parsed) == 50
    assert resumed.summary() == Summary.of(lines[:271])
    resumed = Metrics(path, resumed_at=120)  # the newest checkpoints were damaged
    assert read_metrics(tmp_path) == lines[:121]
    assert resumed.summary() == Summary.of(lines[:121])
    assert not Metrics(path, resumed_at=None).summary() and os.path.getsize(path) == 0


def test_a_line_that_is_completed_while_a_file_is_read_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = b"".join(json.dumps({"step": n, "loss": 1.0}).encode() + b"\n" for n in range(40))
    path.write_bytes(whole[: len(whole) // 2 + 3])

    def parse(block: list[bytes]) -> list[Any]:
        path.write_bytes(whole)  # the run writes on
        return real(block)

    real = module.parse
    monkeypatch.setattr(module, "parse", parse)
    reader = MetricsReader(path)
    reader.update()
    assert reader.update().steps == 40 and reader.damaged == 0
