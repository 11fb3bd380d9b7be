"""`lewel bench step` at a tiny size, and lightly's models against ours."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from lewel.bench.lightly_steps import LIGHTLY, LightlyBYOL, LightlyDenseCL, LightlyMoCo
from lewel.bench.machine import describe_machine
from lewel.bench.memory import peak_bytes
from lewel.bench.output import put_section
from lewel.bench.step import _choose, _in_new_process
from lewel.bench.steps import BOUND, BackboneStep, OurStep, new_method
from lewel.bench.workload import Workload
from lewel.cli.main import run
from lewel.errors import RunError
from lewel.methods.base import Method
from lewel.methods.byol import BYOL
from lewel.methods.moco_v2 import MoCoV2
from lewel.methods.registry import all_methods, find_method, method_names

CPU = torch.device("cpu")
TINY = Workload(
    backbone="resnet10",
    stem="small",
    width=8,
    image_size=32,
    batch_size=4,
    dim=8,
    hidden=16,
    aligned_dim=8,
    groups=2,
    queue=32,
    statistics="ema",
)
FLAGS = [
    *("--backbone", "resnet10", "--stem", "small", "--width", "8", "--image-size", "32"),
    *("--batch-size", "4", "--dim", "8", "--hidden", "16", "--groups", "2", "--queue", "32"),
    *("--rounds", "2", "--threads", "1"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench")
    threads = torch.get_num_threads()
    words = ["bench", "step", *FLAGS, "--out", str(out), "--markdown", str(out / "p.md")]
    assert run(words) == 0
    torch.set_num_threads(threads)
    return out


def test_json_has_every_entry(written: Path) -> None:
    result = json.loads((written / "step.json").read_text())
    assert list(result["steps"]) == [*(m.about.title for m in all_methods()), BOUND, *LIGHTLY]
    for row in result["steps"].values():
        assert row["seconds"] > 0 and row["memory"]["total"] > row["memory"]["kept"] > 0
        assert set(row["ratios"]) == {"BYOL", BOUND, "lightly BYOL"}
    assert result["steps"]["BYOL"]["ratios"]["BYOL"] == 1
    assert result["machine"]["threads"] == 1 and "torch" in result["machine"]["versions"]
    parts = result["breakdown"]["LEWEL_B"]
    assert set(parts) >= {"decode wait", "augment", "backbone", "heads", "loss", "backward"}
    assert all(seconds > 0 for seconds in parts.values())


@pytest.mark.parametrize("name", method_names())
def test_only_knows_every_method_by_its_name(name: str) -> None:
    title = find_method(name).about.title
    assert list(_choose(Workload(), [name])) == [title]
    assert list(_choose(Workload(compile=True), [name])) == [title, f"{title} compiled"]


def test_plot_and_table_are_written(written: Path) -> None:
    with Image.open(written / "step.png") as picture:
        assert picture.format == "PNG"
    text = (written / "p.md").read_text()
    assert "\n| LEWEL_B | " in text and "\n| lightly BYOL | " in text
    assert "| x BYOL |" in text and "Python" in text


@pytest.mark.slow
def test_rounds_of_processes_are_pooled(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--processes", "2", "--only", "byol", "lightly_byol", "--markdown"]
    file = tmp_path / "p.md"
    assert run(["bench", "step", *FLAGS, *words, str(file), "--out", str(tmp_path)]) == 0
    row = json.loads((tmp_path / "step.json").read_text())["steps"]["BYOL"]
    ratios = row["ratios_by_process"]["lightly BYOL"]
    assert len(set(ratios)) == 2 and min(ratios) <= row["ratios"]["lightly BYOL"] <= max(ratios)
    assert "| by process | x BYOL | x lightly BYOL |" in file.read_text()
    assert "2 rounds in each of 2 processes." in file.read_text()


def test_a_killed_process_is_one_message() -> None:
    with pytest.raises(RunError, match="was killed"):
        _in_new_process(signal.raise_signal, signal.SIGKILL)


@pytest.mark.slow
def test_compiled_steps_are_timed_too(tmp_path: Path) -> None:
    words = ["--compile", "--only", "byol", "--out", str(tmp_path)]
    assert run(["bench", "step", *FLAGS, *words]) == 0
    rows = json.loads((tmp_path / "step.json").read_text())["steps"]
    assert list(rows) == ["BYOL", "BYOL compiled"]
    assert rows["BYOL compiled"]["ratios"]["BYOL"] != 1
    assert rows["BYOL compiled"]["flops"] == rows["BYOL"]["flops"]


def test_a_new_table_replaces_the_old_one(tmp_path: Path) -> None:
    machine = describe_machine(1)
    file = tmp_path / "docs" / "p.md"
    for title, body in (("one", "old"), ("two", "other"), ("one", "new")):
        put_section(file, title, body, machine)
    text = file.read_text()
    assert text.index("new") < text.index("other") and "old" not in text
    assert text.count("### one") == text.count("### two") == 1


def test_one_flag_changes_one_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def note(*arguments: Any, **given: Any) -> None:
        seen.update(given, work=arguments[0])
        raise RunError("noted")

    for name, module in (("step", "bench_step"), ("data", "bench_data"), ("scale", "bench_scale")):
        monkeypatch.setattr(f"lewel.bench.{name}.{module}", note)
    out = ["--out", str(tmp_path)]
    assert run(["bench", "step", *out]) == 1 and seen["rounds"] == 15
    assert run(["bench", "data", "photos", "--rounds", "2", *out]) == 1
    assert (seen["threads"], seen["rounds"]) == (1, 2)
    assert run(["bench", "scale", "--dim", "128", *out]) == 1
    assert (seen["work"].dim, seen["work"].batch_size, seen["work"].hidden) == (128, 32, 1024)


def test_an_unknown_entry_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "step", *FLAGS, "--only", "moco_v9"]) == 2
    assert "moco_v9" in capsys.readouterr().err


def parameters(module: torch.nn.Module) -> list[torch.Tensor]:
    return [p for p in module.parameters() if p.requires_grad]


@pytest.mark.parametrize(("kind", "baseline"), [(BYOL, LightlyBYOL), (MoCoV2, LightlyMoCo)])
def test_lightlys_models_have_exactly_our_parameters(kind: type[Method], baseline: Any) -> None:
    ours, theirs = new_method(kind, TINY), baseline(TINY, CPU).module
    assert sorted(p.shape for p in parameters(ours)) == sorted(p.shape for p in parameters(theirs))
    count = [sum(p.numel() for p in module.parameters()) for module in (ours, theirs)]
    assert count[0] == count[1]


def test_densecl_adds_a_dense_head_to_mocos_backbone() -> None:
    step = LightlyDenseCL(TINY, CPU)
    heads = [sum(p.numel() for p in step.student[n].parameters()) for n in step.student]
    assert heads[1] == heads[2] and torch.isfinite(step.step())


def test_at_equal_weights_byol_has_lightlys_loss() -> None:
    ours, theirs = OurStep(new_method(BYOL, TINY), TINY, CPU), LightlyBYOL(TINY, CPU)
    method: Any = ours.method
    with torch.no_grad():
        for mine, other in (
            (method.student.backbone.net, theirs.student["backbone"]),
            (method.student.head.project, theirs.student["project"]),
            (method.predict, theirs.student["predict"]),
            (method.teacher.network.backbone.net, theirs.teacher["backbone"]),
            (method.teacher.network.head.project, theirs.teacher["project"]),
        ):
            for one, two in zip(mine.parameters(), other.parameters(), strict=True):
                one.copy_(two + 0.05 * torch.randn_like(two))
                two.copy_(one)
    loss, negative_cosine = ours.method(ours.views).loss, theirs.loss(*theirs.views)
    # 2 - 2 cosine in both directions, against half the sum of their negative cosines
    assert loss.item() == pytest.approx(4 + 4 * negative_cosine.item(), abs=1e-5)


def test_the_bound_trains_only_the_backbone() -> None:
    bound = BackboneStep(TINY, CPU)
    before = [p.clone() for p in bound.student.parameters()]
    bound.step()
    assert any(
        not torch.equal(a, b) for a, b in zip(before, bound.student.parameters(), strict=True)
    )
    assert len(before) == len(list(TINY.new_backbone().parameters()))


def test_peak_memory_counts_simultaneous_allocations() -> None:
    def step() -> None:
        one = torch.zeros(1_000_000)
        del one
        two, three = torch.zeros(2_000_000), torch.zeros(500_000)
        del two, three

    peaks = [peak_bytes(step, CPU) for _ in range(2)]
    assert peaks[0] == peaks[1] == pytest.approx(10_000_000, rel=1e-3)
