"""The queue of `lewel reproduce`: it survives a stop, and its pages follow from its runs."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lewel.cli.main import run
from lewel.config import reproduce as config
from lewel.config.reproduce import Experiment, Measurement, Row, Scale
from lewel.errors import RunError, UserError
from lewel.tasks import (
    reproduction_folder,
    reproduction_numbers,
    reproduction_plan,
    reproduction_tables,
)
from lewel.tasks.reproduce import Worker, state_of
from lewel.tasks.reproduction_folder import claimed, refuse_other_settings
from lewel.tasks.reproduction_numbers import FORMAT, Known, digest, read_numbers, write_numbers
from lewel.tasks.reproduction_plan import Backbone, Setup, plan, select
from lewel.tasks.reproduction_slurm import write_jobs
from tests.docs.pages import ROOT

SCALE = {
    "title": "a test",
    "needs": "nothing",
    "data": "scenes",
    "recipes": {"imagenet": {"byol": "scenes_byol", "lewel_b": "scenes_demo"}},
    "settings": {
        **{"epochs": 1, "limit": 64, "batch_size": 8, "image_size": 16, "knn.every": 0},
        **{"workers": 0, "head.hidden": 16, "head.dim": 8, "log_every": 1},
    },
    "evaluations": {
        "knn": {
            **{"title": "k-NN", "task": "knn", "data": "scenes", "metric": "top1"},
            "settings": {"limit": 40, "workers": 0},
        }
    },
}
EXPERIMENT = {
    "title": "Table 1: a test",
    "paper": 1,
    "evaluations": ["knn"],
    "rows": [
        {"name": "BYOL", "method": "byol"},
        {"name": "LEWEL_B", "method": "lewel_b", "baseline": "BYOL"},
        {"name": "random init", "method": "byol", "kind": "random_init", "control": True},
        {"name": "broken", "method": "byol", "settings": {"optim.lr": 1e30}},
    ],
    "claims": [{"better": "LEWEL_B", "worse": "BYOL"}],
}
TRAINED = EXPERIMENT["rows"][:3]  # type: ignore[index]
DRIVER = """
import json, sys
from lewel.config import reproduce as config
from lewel.config.reproduce import Experiment, Scale
from lewel.tasks import reproduction_plan

scale, experiment = json.loads(sys.argv[1])
scales = {**config.read_scales(), "minutes": Scale.model_validate(scale)}
reproduction_plan.read_scales = lambda: scales
config.read_experiments = lambda: {"table1": Experiment.model_validate(experiment)}
from lewel.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


def start(out: Path, *words: str, rows: int = 4, seeds: int = 2) -> "subprocess.Popen[str]":
    experiment = {**EXPERIMENT, "rows": EXPERIMENT["rows"][:rows]}
    given = json.dumps([SCALE, experiment])
    command = ["reproduce", "--out", str(out), "--seeds", str(seeds), "--jobs", "2", *words]
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, given, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    out = tmp_path_factory.mktemp("reproduce") / "out"
    process = start(out)
    output, _ = process.communicate(timeout=300)
    return out, output, process.returncode


def test_a_failed_row_is_one_line_and_the_others_are_done(finished: tuple[Path, str, int]) -> None:
    out, output, code = finished
    assert code == 1 and "2 parts failed" in output and "Traceback" not in output
    failed = [line for line in output.splitlines() if ": failed: " in line]
    assert len(failed) == 2 and all("lr=1e+30" in line for line in failed)
    assert "table1: LEWEL_B > BYOL, k-NN: " in output
    assert "next:" not in output  # first the failed parts
    folder = out / "minutes" / "backbones"
    assert json.loads((folder / "scenes_byol-seed1" / "knn.done.json").read_text())["seconds"] > 0
    assert (folder / "random_init-scenes_byol-seed0" / "knn.done.json").exists()


def test_the_page_has_means_intervals_and_the_papers_numbers(
    finished: tuple[Path, str, int],
) -> None:
    pages = finished[0] / "minutes" / "pages"
    text = (pages / "table1.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line[:2] == "| "}
    assert {"BYOL", "LEWEL_B", "random init (control)"} <= rows.keys()
    assert rows["LEWEL_B"].count("±") == 2  # its mean and its difference to BYOL
    assert "| broken | - |" in text
    page = (pages / "index.html").read_text()
    assert "Table 1: a test" in page and "random init (control)" in page


def test_the_list_shows_states_and_time(finished: tuple[Path, str, int]) -> None:
    process = start(finished[0], "--list")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    (line,) = (
        line for line in output.splitlines() if line.startswith("scenes_byol-lr=1e+30-seed0")
    )
    assert "pretrain" in line and "0 of 2" in line
    assert "core-hours" in output


def test_known_numbers_are_not_measured_again(
    finished: tuple[Path, str, int], tmp_path: Path
) -> None:
    numbers = finished[0] / "minutes" / "numbers.json"
    pages = [finished[0] / "minutes" / "pages" / "table1.md"]
    for _ in range(2):  # its own files are no obstacle
        process = start(tmp_path / "out", "--known", str(numbers), rows=3)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        words = f"--scale minutes --seeds 4 --out {tmp_path / 'out'} --known {numbers}"
        assert f"{words} --jobs 2    # more seeds" in output
    assert not (tmp_path / "out" / "minutes" / "backbones").exists()
    pages.append(tmp_path / "out" / "minutes" / "pages" / "table1.md")
    without_broken, mine = (page.read_text().replace("| broken | - |\n", "") for page in pages)
    assert mine == without_broken and "±" in mine
    again = tmp_path / "out" / "minutes" / "numbers.json"
    backbones = json.loads(again.read_text())["backbones"]
    assert backbones == json.loads(numbers.read_text())["backbones"] and len(backbones) == 6


def test_a_part_of_a_queue_keeps_the_numbers_of_the_rest(
    finished: tuple[Path, str, int], tmp_path: Path
) -> None:
    numbers = finished[0] / "minutes" / "numbers.json"
    known = read_numbers([numbers])
    experiments = {"table1": Experiment.model_validate({**EXPERIMENT, "rows": TRAINED})}
    setup = Setup("minutes", tmp_path, tmp_path, Scale.model_validate(SCALE), known)
    mine = tmp_path / "numbers.json"
    for seeds in (range(2), range(1)):
        write_numbers(plan(experiments, setup, seeds), mine)
        assert read_numbers([mine]) == known


def test_numbers_of_other_settings_are_not_known(
    finished: tuple[Path, str, int], tmp_path: Path
) -> None:
    known = read_numbers([finished[0] / "minutes" / "numbers.json"])
    experiments = {"table1": Experiment.model_validate({**EXPERIMENT, "rows": TRAINED})}

    def to_do(**changed: object) -> list[tuple[str, list[str]]]:
        scale = Scale.model_validate({**SCALE, **changed})
        setup = Setup("minutes", tmp_path, tmp_path, scale, known)
        queue = plan(experiments, setup, range(2))
        return [(one.folder.name, [p for p in one.parts() if one.to_do(p)]) for one in queue]

    assert all(parts == [] for _, parts in to_do())
    changed = {**SCALE["settings"], "limit": 65}  # type: ignore[dict-item]
    assert all(parts == ["pretrain", "knn"] for _, parts in to_do(settings=changed)[:2])
    other = Known("another", 0.5, 1.0)  # a file of other settings hides nothing
    known["scenes_byol-seed0"]["knn"][other.digest] = other
    assert all(parts == [] for _, parts in to_do())
    # A control needs the network of a run, whose own numbers are known.
    known["scenes_byol-seed0"].pop("knn")
    known["random_init-scenes_byol-seed1"].pop("knn")
    assert to_do() == [
        ("scenes_byol-seed0", ["pretrain", "knn"]),
        ("scenes_demo-seed0", []),
        ("random_init-scenes_byol-seed0", []),
        ("scenes_byol-seed1", ["pretrain"]),
        ("scenes_demo-seed1", []),
        ("random_init-scenes_byol-seed1", ["knn"]),
    ]


def test_a_smaller_call_keeps_the_page_and_its_seeds(finished: tuple[Path, str, int]) -> None:
    page = finished[0] / "minutes" / "pages" / "table1.md"
    before = page.read_text()
    process = start(finished[0], "--only", "scenes_demo", seeds=1)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "done in" not in output, output
    assert page.read_text() == before


def test_what_was_done_with_other_settings_is_not_used(
    finished: tuple[Path, str, int], tmp_path: Path
) -> None:
    shutil.copytree(finished[0], tmp_path / "out", symlinks=True)
    experiments = {"table1": Experiment.model_validate({**EXPERIMENT, "rows": TRAINED})}

    def queue(**changed: object) -> list[Backbone]:
        scale = Scale.model_validate({**SCALE, **changed})
        setup = Setup("minutes", tmp_path / "out" / "minutes", tmp_path, scale)
        return plan(experiments, setup, range(2))

    refuse_other_settings(queue())
    assert not any(one.to_do(part) for one in queue() for part in one.parts())
    changed = {**SCALE["evaluations"]["knn"], "settings": {"limit": 41}}  # type: ignore[index]
    left = {
        part
        for one in queue(evaluations={"knn": changed})
        for part in one.parts()
        if one.to_do(part)
    }
    assert left == {"knn"}
    other = queue(settings={**SCALE["settings"], "limit": 65})  # type: ignore[dict-item]
    with pytest.raises(UserError, match="were trained with other settings"):
        refuse_other_settings(other)
    assert all(one.number("knn") is None for one in other)
    file = other[0].file("knn", "done.json")
    file.write_text("")  # a power cut of a file system without order
    assert queue()[0].to_do("knn")


def test_other_numbers_of_a_table_are_columns_beside_the_papers(tmp_path: Path) -> None:
    setup = Setup("paper", tmp_path, tmp_path)
    tables = config.read_experiments()
    (masks,) = (row for row in tables["table4"].rows if row.name == "LEWEL_B")
    (labels,) = (row for row in tables["table2"].rows if row.name == "LEWEL_B")
    boxes = {"AP": 0.41, "AP50": 0.6, "AP75": 0.4, "mask": {"AP": 0.36, "AP50": 0.5, "AP75": None}}
    backbones = []
    for row, part, found in (
        (masks, "detect_coco_fpn_1x", boxes),
        (labels, "finetune_1", {"top1": 0.5, "top5": 0.75}),
    ):
        one = Backbone(setup, row, "imagenet", 0)
        (one.folder / part / "results").mkdir(parents=True)
        (one.folder / part / "results" / "x.json").write_text(json.dumps([{"result": found}]))
        one.file(part, "done.json").write_text(json.dumps({"seconds": 1.0}))
        one.evaluations.append(part)
        backbones.append(one)
    shown = reproduction_tables.show("table2", tables["table2"], setup, [0])
    assert shown.columns == ["1 % of the labels", "1 % of the labels, top-5", "10 % of the labels"]
    (mine,) = (row for row in shown.rows if row.name == "LEWEL_B")
    assert mine.cells[1].text() == "75.0 [paper 79.9]"
    shown = reproduction_tables.show("table4", tables["table4"], setup, [0])
    assert shown.columns[1:] == [
        "COCO FPN 1x box AP",
        *(f"COCO FPN 1x, {name}" for name in ("AP50", "AP75", "mask AP", "mask AP50")),
    ]
    assert len({one.evaluation for one in shown.orderings}) == 2  # not for these columns
    write_numbers(backbones, tmp_path / "numbers.json")
    elsewhere = tmp_path / "elsewhere"
    numbers = read_numbers([tmp_path / "numbers.json"])
    known = Setup("paper", elsewhere, tmp_path, known=numbers)
    assert reproduction_tables.show("table4", tables["table4"], known, [0]) == shown
    # Numbers of an older version lack the others, and do not take them away.
    older = json.loads((tmp_path / "numbers.json").read_text())
    for parts in older["backbones"].values():
        for one in parts.values():
            del one["also"]
    (tmp_path / "older.json").write_text(json.dumps(older))
    files = [tmp_path / "numbers.json", tmp_path / "older.json"]
    assert read_numbers(files) == read_numbers(files[::-1]) == numbers
    one = Backbone(replace(known, known=read_numbers(files[1:])), masks, "imagenet", 0)
    one.evaluations.append("detect_coco_fpn_1x")
    write_numbers([one], files[0])
    assert read_numbers(files[:1]) == numbers


def test_a_result_without_its_number_is_named(tmp_path: Path) -> None:
    (row,) = (row for row in config.read_experiments()["table2"].rows if row.name == "LEWEL_B")
    one = Backbone(Setup("paper", tmp_path, tmp_path), row, "imagenet", 0)
    (one.folder / "knn" / "results").mkdir(parents=True)
    found = [{"result": {"top5": math.nan}}]
    (one.folder / "knn" / "results" / "x.json").write_text(json.dumps(found))
    one.file("knn", "done.json").write_text(json.dumps({"seconds": 1.0}))
    with pytest.raises(RunError, match=r"has no top1: delete this folder and knn\.done\.json"):
        one.number("knn")
    assert one.others("knn") == {}


def test_a_control_alone_trains_the_run_that_it_needs(tmp_path: Path) -> None:
    experiments = {"table1": Experiment.model_validate({**EXPERIMENT, "rows": TRAINED})}
    setup = Setup("minutes", tmp_path, tmp_path, Scale.model_validate(SCALE))
    queue = select(plan(experiments, setup, range(1)), "random_init")
    assert [(one.folder.name, one.parts()) for one in queue] == [
        ("scenes_byol-seed0", ["pretrain"]),
        ("random_init-scenes_byol-seed0", ["knn"]),
    ]


def test_two_queues_do_not_work_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduction_folder, "PATIENCE", 0.2)
    told: list[str] = []
    with claimed(tmp_path / "out", told.append) as lock:
        held = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))  # a command of this queue
    with (
        pytest.raises(UserError, match="Another queue works in"),
        claimed(tmp_path / "out", told.append),
    ):
        pass
    held.kill()
    held.wait()
    with claimed(tmp_path / "out", told.append):
        assert len(told) == 1 and told[0].startswith("Waiting for another queue")


def test_a_command_that_is_killed_is_named_by_its_signal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a line of an earlier call\n")
    words = ["-c", "import os, signal; print('step 3'); os.kill(os.getpid(), signal.SIGKILL)"]
    worker = Worker(1, lambda text: None)
    with pytest.MonkeyPatch.context() as patch:
        real = subprocess.Popen
        patch.setattr(subprocess, "Popen", lambda given, **k: real([given[0], *words], **k))
        assert worker.call([], log) == (-9, "killed by SIGKILL: perhaps memory ran out")
        words[:] = ["-c", ""]
        assert worker.call([], log) == (0, "exit code 0")


@pytest.mark.slow
def test_a_killed_queue_resumes_to_the_same_page(
    finished: tuple[Path, str, int], tmp_path: Path
) -> None:
    """SIGKILL: its commands save and end, and the next call waits for them."""
    out = tmp_path / "out"
    process = start(out, rows=3)
    deadline = time.monotonic() + 120
    while not list((out / "minutes" / "backbones").glob("*/run/metrics.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate()
    (out / "minutes" / "numbers.json.lewel-partial").write_text("half a fi")
    process = start(out, rows=3)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "failed" not in output, output
    other = finished[0] / "minutes" / "pages" / "table1.md"
    mine = (out / "minutes" / "pages" / "table1.md").read_text()
    assert mine == other.read_text().replace("| broken | - |\n", "")


@pytest.mark.slow
def test_a_stopped_queue_resumes_to_the_same_page(
    finished: tuple[Path, str, int], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(out, rows=3)
    backbones = out / "minutes" / "backbones"
    deadline = time.monotonic() + 120
    while not list(backbones.glob("*/pretrain.done.json")):  # the first is done, others are not
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert "saved: run the same command to resume" in output and "first step" not in output
    assert len(list(backbones.glob("*/knn.done.json"))) < 6
    assert (out / "minutes" / "pages" / "table1.md").exists()  # with what is done
    assert "backbones" in json.loads((out / "minutes" / "numbers.json").read_text())
    process = start(out, rows=3)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    other = finished[0] / "minutes" / "pages" / "table1.md"
    mine = (out / "minutes" / "pages" / "table1.md").read_text()
    broken = "| broken | - |\n"
    assert mine == other.read_text().replace(broken, "")


def test_evaluations_can_be_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["reproduce", "table5", "figure3a", "--scale", "small", "--out", str(tmp_path / "out")]
    assert run([*words, "--list", "--skip", "segment"]) == 0
    output = capsys.readouterr().out
    assert "linear" in output and "segment" not in output
    assert run([*words, "--list"]) == 0
    assert "segment" in capsys.readouterr().out
    assert run([*words, "--skip", "knn", "--skip", "detect"]) == 2
    assert "only knn, linear_100, segment" in capsys.readouterr().err


def test_a_list_and_jobs_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for both in (["--list", "--slurm"], ["--list", "--pages"], ["--pages", "--slurm"]):
        assert run(["reproduce", "table1", *both]) == 2
        assert "give one of them" in capsys.readouterr().err


def test_pages_are_written_without_training_and_keep_known_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, known = tmp_path / "out", str(ROOT / "docs" / "measured" / "small.json")
    words = ["reproduce", "--scale", "small", "--pages", "--out", str(out)]
    assert run([*words, "table1", "--known", known]) == 0
    page = out / "small" / "pages" / "table1.md"
    before = page.read_text()
    assert "| MoCo v2 | 16.1" in before
    assert not (out / "small" / "backbones").exists()
    capsys.readouterr()
    assert run([*words, "table1", "table5"]) == 0  # numbers.json of the folder has them
    assert page.read_text() == before
    assert "table5: both > aligned only" in capsys.readouterr().out


def test_a_digest_is_of_the_values_wherever_they_are_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = Row(name="BYOL", method="byol", settings={"optim.lr": 0.3, "limit": 5})
    one = Backbone(Setup("minutes", tmp_path, tmp_path), row, "imagenet", 0, ["knn"])
    made = {}
    for name, optim in (("a", {"lr": 0.1}), ("b", {"lr": 0.3}), ("c", {"lr": 0.3, "momentum": 0})):
        recipe = {"method": "byol", "optim": optim}
        monkeypatch.setattr(reproduction_numbers, "_recipe", lambda *words, it=recipe: it)
        made[name] = [digest(one, "pretrain"), digest(one, "knn")]
    assert made["a"] == made["b"]  # the recipe took over what the row gives
    assert not set(made["a"]) & set(made["c"]) and made["a"][0] != made["a"][1]


def test_maps_are_drawn_once_and_stopped_parts_count(tmp_path: Path) -> None:
    setup = Setup("minutes", tmp_path, tmp_path)
    queue = plan(config.choose_experiments(["figure5", "table1"]), setup, range(2))
    assert {one.seed for one in queue if "maps" in one.parts()} == {0}
    parts = state_of(queue)
    assert {part.left for part in parts} == {None}
    trained = [one for one in queue if one.row.kind == "pretrained"]
    first, second = (one for one in trained if one.recipe == "scenes_byol")
    other = next(one for one in trained if one.recipe == "scenes_lewel_b")
    for one, ending, seconds in ((first, "done", 60), (other, "done", 100), (second, "spent", 20)):
        one.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"seconds": seconds, "digest": digest(one, "pretrain")})
        one.file("pretrain", f"{ending}.json").write_text(text)
    found = {part.backbone.folder: part for part in state_of(queue) if part.name == "pretrain"}
    assert found[first.folder][2:] == ("done", 60, 0)
    assert found[second.folder].spent == 20 and found[second.folder].left == 40  # by its recipe
    unlike = next(one for one in trained if one.recipe == "scenes_moco_v2")
    assert found[unlike.folder].left == 80  # by all


def test_slurm_jobs_hold_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup("paper", tmp_path / "paper", Path("data"))
    queue = plan(config.choose_experiments(["table1", "table5", "table9"]), setup, range(3))
    script, jobs = write_jobs(queue, setup)
    text = script.read_text()
    controls = [one for one in queue if one.row.kind == "random_init"]
    assert controls  # in the scripts of the runs that they need
    many = len(queue) - len(controls)
    assert jobs == many
    assert f"--array=0-{many - 1}" in text and "--signal=USR1@120" in text
    assert "--cpus-per-task=12" in text and "export SRUN_CPUS_PER_TASK=${SLURM_CPUS" in text
    scripts = sorted(script.parent.glob("*.sh"))
    assert len(scripts) == many
    for control in controls:
        one = (script.parent / f"{control.source.parent.name}.sh").read_text()
        assert one.index("lewel pretrain") < one.index("--untrained")
    (steps,) = script.parent.glob("step_times*.sh")
    assert "srun --ntasks=1 --kill-on-bad-exit=1 lewel bench step" in steps.read_text()
    for path in scripts:
        subprocess.run(["bash", "-n", str(path)], check=True)
    one = (script.parent / "imagenet100_lewel_m_240ep-maps=separate-seed2.sh").read_text()
    assert "lewel pretrain imagenet --recipe imagenet100_lewel_m_240ep" in one
    assert "--head.maps separate --seed 2" in one and "lewel linear" in one


STUB = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
echo "$2" >> calls
case "$2" in $FAILS) exit $CODE;; esac
"""


def test_a_slurm_job_runs_what_is_left_and_stops_by_a_signal(
    finished: tuple[Path, str, int], tmp_path: Path
) -> None:
    """A stub srun runs no command, and may fail."""
    experiments = {"table1": Experiment.model_validate({**EXPERIMENT, "rows": TRAINED})}
    numbers = read_numbers([finished[0] / "minutes" / "numbers.json"])
    scale = Scale.model_validate(SCALE)
    setup = Setup("minutes", tmp_path / "all", tmp_path, scale, numbers)
    with pytest.raises(UserError, match="Nothing is left to do"):
        write_jobs(plan(experiments, setup, range(1)), setup)
    (tmp_path / "srun").write_text(STUB)
    (tmp_path / "srun").chmod(0o755)

    def call(fails: str, code: int) -> tuple[int, list[str], list[str]]:
        setup = Setup("minutes", tmp_path / f"{fails}{code}", tmp_path, scale)
        queue = plan(experiments, setup, range(1))
        write_jobs(queue, setup)
        (tmp_path / "calls").unlink(missing_ok=True)
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FAILS": fails}
        script = setup.out / "slurm" / "scenes_byol-seed0.sh"
        given = {"cwd": tmp_path, "env": {**env, "CODE": str(code)}}
        done = subprocess.run(["bash", str(script)], check=False, **given)  # type: ignore[call-overload]
        kept = [one for one in queue for part in one.parts() if one.seconds(part) is not None]
        names = [one.folder.name for one in kept]
        return done.returncode, (tmp_path / "calls").read_text().split(), names

    byol, control = "scenes_byol-seed0", "random_init-scenes_byol-seed0"
    assert call("none", 1) == (0, ["pretrain", "knn", "knn"], [byol, byol, control])
    assert call("knn", 1) == (1, ["pretrain", "knn", "knn"], [byol])
    assert call("pretrain", 1) == (1, ["pretrain"], [])
    assert call("knn", 138) == (138, ["pretrain", "knn"], [byol])


def test_wrong_input_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = tmp_path / "list.json"
    numbers.write_text('{"format": "lewel-numbers-1", "backbones": [1]}')
    wrong, found = tmp_path / "wrong.json", {"digest": "a", "number": math.nan, "seconds": 1}
    wrong.write_text(json.dumps({"format": FORMAT, "backbones": {"a": {"knn": found}}}))
    for words, message in (
        (["table10"], "There is no 'table10'"),
        (["methods"], "methods: not at --scale minutes; try another --scale."),
        (["table1", "rates"], "rates: not at --scale minutes; try another --scale."),
        (["table1", "--skip", "knn", "--skip", "linear"], "table1: --skip leaves nothing"),
        (["table4", "--scale", "small"], "table4: not at --scale small; try another --scale."),
        (["table9", "--skip", "knn"], "no such evaluation here, these experiments have none"),
        (["--known", str(wrong)], "is no numbers.json"),
        (["--scale", "small", "--data-root", str(tmp_path)], "needs"),
        (["--only", "vgg"], "no backbone has this in its name"),
        (["--seeds", "0"], "--seeds"),
        (["--known", str(tmp_path / "none.json")], "does not exist"),
        (["--known", str(numbers)], "is no numbers.json"),
    ):
        assert run(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_all_tables_and_figures_at_the_scale_of_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reproduce", "all", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path)]) == 0
    assert "failed" not in capsys.readouterr().out
    pages = {file.stem: file.read_text() for file in (tmp_path / "minutes/pages").glob("*.md")}
    numbered = [*(f"table{number}" for number in range(1, 10)), "figure3a", "figure3b", "figure5"]
    assert set(pages) == {*numbered, "maps"}
    for name in {*numbered[:8], "figure3a", "figure3b", "maps"}:
        rows = [line for line in pages[name].splitlines() if "(control)" not in line]
        assert not [line for line in rows if line.endswith("| - |")], name
    assert "both, coupled > both" in pages["table5"]
    assert "LEWEL_B / BYOL: " in pages["table9"]
    index = (tmp_path / "minutes/pages/index.html").read_text()
    assert index.count("data:image/png;base64,") == 4  # two figures, the maps of two methods
    assert run(["reproduce", "all", "--seeds", "1", "--list", "--out", str(tmp_path)]) == 0
    assert "core-hours; left nothing" in capsys.readouterr().out


def test_models_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="unknown rows"):
        Experiment.model_validate({**EXPERIMENT, "claims": [{"better": "a", "worse": "BYOL"}]})
    with pytest.raises(ValueError, match="same name"):
        Experiment.model_validate({**EXPERIMENT, "rows": [*EXPERIMENT["rows"]] * 2})
    claim = {"better": "LEWEL_B", "worse": "BYOL", "evaluations": ["linear"]}
    with pytest.raises(ValueError, match="unknown evaluations \\['linear'\\]"):
        Experiment.model_validate({**EXPERIMENT, "claims": [claim]})
    assert Scale.model_validate(SCALE).evaluations["knn"].metric == "top1"
    assert Measurement.model_fields["metric"].is_required()
    assert reproduction_plan.applies("random_init", Scale.model_validate(SCALE), "knn")
