"""Every method from its settings to its report, on real tiny runs that the tests share."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image

from lewel.cli.main import run
from lewel.config.methods import taken
from lewel.methods.registry import find_method, method_names
from tests.cli.making import images
from tests.running import metrics, tiny_run

NOTES = {  # what is written below the two views
    "densecl": "DenseCL's correspondence",
    "pixpro": "PixPro's pairs",
    "resim": "ReSim's regions",
    "swav": "SwAV's assignment",
}
SWAV = ("--options.prototypes", "12", "--options.frozen_steps", "1", "--views.small-crops", "2")
OWN = {
    "resim": ("--options.region_dim", "8"),
    "swav": SWAV,
    "lewel_swav": SWAV,
    "pcl": ("--options.warmup", "0", "--options.clusters", "4"),
}
every_method = pytest.mark.parametrize("method", method_names())


def flags_of(method: str) -> tuple[str, ...]:
    """The flags of a tiny run of one epoch."""
    grouped = "contrast.norm_groups" in taken(find_method(method))
    groups = ("--contrast.norm-groups", "2") if grouped else ()
    return ("--method", method, "--epochs", "1", *groups, *OWN.get(method, ()))


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run folder of a method, trained when it is first asked for."""
    folder = tmp_path_factory.mktemp("methods")

    def trained(method: str) -> Path:
        out = folder / method
        if not out.exists():
            assert tiny_run(out, *flags_of(method)) == 0
        return out

    return trained


@every_method
def test_it_trains_and_shows_where(method: str, run_of: Callable[[str], Path]) -> None:
    out, note = run_of(method), NOTES.get(method)
    assert all("embedding_std" in line for line in metrics(out)[1:])
    assert run(["maps", str(out), "scenes", "--limit", "2", "--n", "2"]) == 0
    page = (out / "maps" / "maps.html").read_text().replace("&#39;", "'")
    assert page.count("linked by colour</figcaption>") == (0 if note is None else 2)
    assert note is None or note in page
    assert Image.open(out / "maps" / "maps.png").width > 0
    flags = ("--data", "scenes", "--accelerator", "cpu", "--limit", "6")
    assert run(["where", str(out), *flags]) == 0
    (entry,) = json.loads((out / "results" / "where.json").read_text())
    numbers = entry["result"]["baselines"]["run"]
    for name in ("consistency", "pointing", "iou"):
        assert numbers[name]["value"] is not None, name


@pytest.mark.parametrize(
    "method",  # those with learned maps differ in their heads only, which are not exported
    [
        pytest.param(name, marks=[pytest.mark.slow] if name.startswith("lewel_") else [])
        for name in method_names()
    ],
)
def test_it_is_reported_and_exported(method: str, run_of: Callable[[str], Path]) -> None:
    out = run_of(method)
    assert run(["report", str(out)]) == 0
    assert find_method(method).about.title in (out / "report.html").read_text()
    assert run(["export", str(out), "--to", "torch-export"]) == 0


def test_a_run_that_is_shorter_than_pcls_warm_up_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["1" if word == "0" else word for word in flags_of("pcl")]  # epochs of warm-up
    for more in (("--dry-run",), ()):
        assert tiny_run(tmp_path / "run", *flags, *more) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "this run has 1: it is MoCo alone. Lower --options.warmup" in said


def test_accumulation_is_warned_of_where_images_of_a_batch_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = [name for name in method_names() if find_method(name).about.in_batch]
    assert compared == [
        *("barlow_twins", "lewel_barlow", "lewel_m", "lewel_simclr", "lewel_swav", "resim"),
        *("simclr", "swav"),
    ]
    batch = ("--contrast.negatives", "batch")
    cases = (("simclr", (), True), ("byol", (), False), ("moco_v2", (), False))
    for method, given, expected in (*cases, ("moco_v2", batch, True)):
        flags = (*flags_of(method), *given, "--accumulate", "2", "--dry-run")
        assert tiny_run(tmp_path / "run", *flags) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("with --accumulate 2 these are 4, not 8." in said) == expected


@every_method
def test_without_a_recipe_it_gets_settings_that_fit(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images(tmp_path / "photos", {"a": 40, "b": 30})
    out = tmp_path / "run"
    flags = ("--method", method, "--accelerator", "cpu", "--out", str(out), "--dry-run")
    assert run(["pretrain", str(tmp_path / "photos"), *flags]) == 0
    said = capsys.readouterr().out
    table, _, rest = said.partition("\ndata: ")
    config = yaml.safe_load("data: " + rest.partition("\nimages: ")[0])
    assert config["method"] == method and config["batch_size"] == 16
    assert config["knn"]["every"] <= config["epochs"] and "warning" not in rest
    assert "parameters trained: " in rest
    assert config.get("contrast", {}).get("queue") in (None, 64)
    assert "change it by" in table and not out.exists()
