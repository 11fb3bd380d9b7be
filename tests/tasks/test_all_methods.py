"""Every method with a head of its own from training to its report, on real tiny runs."""

import json
from pathlib import Path

import pytest
from PIL import Image

from lewel.cli.main import run
from tests.running import tiny_run

KINDS = {  # method: what is written below the two views, and settings for a tiny run
    "densecl": ("DenseCL's correspondence", ()),
    "pixpro": ("PixPro's pairs", ()),
    "resim": ("ReSim's regions", ("--options.region_dim", "8")),
    "swav": ("SwAV's assignment", ("--options.prototypes", "12")),
    "inst_disc": (None, ()),
    "pcl": (None, ("--options.warmup", "0", "--options.clusters", "4")),
}
NORMED = ("densecl", "resim", "pcl")


@pytest.mark.parametrize("method", KINDS)
def test_it_trains_and_shows_its_maps(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note, flags = KINDS[method]
    out = tmp_path / "run"
    extra = ["--contrast.norm-groups", "2"] if method in NORMED else []
    command = ("--method", method, "--epochs", "1", *extra, *flags)
    assert tiny_run(out, *command, "--dry-run") == 0
    assert "parameters trained" in capsys.readouterr().out and not out.exists()
    assert tiny_run(out, *command) == 0
    assert run(["maps", str(out), "scenes", "--limit", "2", "--n", "2"]) == 0
    flags = ("--data", "scenes", "--accelerator", "cpu", "--limit", "6")
    assert run(["where", str(out), *flags]) == 0
    (entry,) = json.loads((out / "results" / "where.json").read_text())
    numbers = entry["result"]["baselines"]["run"]
    for name in ("consistency", "pointing", "iou"):
        assert numbers[name]["value"] is not None, name
    page = (out / "maps" / "maps.html").read_text().replace("&#39;", "'")
    assert page.count("linked by colour</figcaption>") == (0 if note is None else 2)
    assert note is None or note in page
    assert Image.open(out / "maps" / "maps.png").width > 0
    assert run(["report", str(out)]) == 0
    assert run(["export", str(out), "--to", "torch-export"]) == 0
