"""metrics.jsonl has every step once."""

from pathlib import Path

import torch

from lewel.train.metrics import Metrics, read_metrics


def write(path: Path, first: int, last: int, resumed_at: int) -> None:
    metrics = Metrics(path, resumed_at)
    for step in range(first, last):
        metrics.add({"step": step}, {"loss": torch.tensor(float(step))})
    metrics.flush()


def test_lines_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 0, 10, 0)
    write(path, 6, 12, resumed_at=5)
    assert [line["step"] for line in read_metrics(path)] == list(range(12))


def test_a_line_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 0, 5, 0)
    path.write_bytes(path.read_bytes()[:-4])
    write(path, 4, 6, resumed_at=9)
    assert [line["step"] for line in read_metrics(path)] == list(range(6))


def test_scalars_stay_on_the_device_until_the_flush(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl", 0)
    metrics.add({"step": 1}, {"loss": torch.tensor(2.0), "embedding_std": torch.tensor(0.5)})
    assert not metrics.path.exists()
    metrics.annotate({"knn": 0.25})
    assert metrics.flush() == [{"step": 1, "knn": 0.25, "loss": 2.0, "embedding_std": 0.5}]
    assert metrics.flush() == []
