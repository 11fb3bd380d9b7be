"""`lewel doctor`: facts are read as they are, and every line names its fix."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import lewel
from lewel.cli.main import run
from lewel.data.workers import cores
from lewel.errors import UserError
from lewel.tasks import doctor, doctor_facts, doctor_speed
from lewel.tasks.doctor_facts import Device, Facts, gather, requirements
from lewel.tasks.doctor_lines import Finding, assess, assess_speeds
from lewel.tasks.doctor_speed import Checkpoint, Reading, Size, Speeds, Stepped, Trial, measure
from tests.running import as_torchrun

GB = 10**9
CPU = Device("cpu", "Some CPU", 64 * GB, 60 * GB)
GPU = Device("cuda:0", "Some GPU", 24 * GB, 23 * GB, bf16=True, tf32=True)
HEALTHY = Facts(
    python="3.12.1",
    system="Linux x86_64",
    versions={"lewel": "0.2.0", "torch": "2.8.0"},
    unmet={},
    extras={"onnx": (), "wandb": ("wandb",)},
    cuda="12.8",
    cuda_problem="",
    driver=False,
    visible=None,
    devices=(CPU,),
    cpus=16,
    cores=16,
    load=0.2,
    threads=12,
    omp="12",
    workers=4,
    shm=32 * GB,
    open_files=4096,
    open_files_hard=4096,
    disk=500 * GB,
)
STEPS = (Stepped("small", 64, 0.1), Stepped("large", 32, 0.1))
SPEEDS = Speeds(Reading("500 x 375 px", 200.0, 100.0), {"cpu": STEPS}, Checkpoint(544 * 10**6, 1.5))


def line(findings: list[Finding], name: str) -> Finding:
    return next(one for one in findings if one.name == name)


@pytest.mark.parametrize(
    ("changes", "name", "status", "words"),
    [
        ({}, "Python", "ok", "3.12.1"),
        ({"unmet": {"torch>=2.6": "2.4.0"}}, "packages", "failed", "torch>=2.6 (2.4.0)"),
        ({"unmet": {"timm>=1.0.12": ""}}, "packages", "failed", "upgrade 'timm>=1.0.12'"),
        ({}, "GPU", "note", "training uses the CPU"),
        ({"devices": (CPU, GPU)}, "GPU", "ok", "1, torch for CUDA 12.8"),
        ({"driver": True, "cuda": ""}, "GPU", "note", "built without CUDA: install"),
        ({"driver": True, "visible": ""}, "GPU", "note", "CUDA_VISIBLE_DEVICES is ''"),
        ({"driver": True, "cuda_problem": "too old"}, "GPU", "note", "(too old): update"),
        ({"devices": (CPU, GPU)}, "cuda:0", "ok", "24.0 GB of memory (23.0 GB free), bf16, TF32"),
        ({"devices": (CPU, GPU._replace(free=GB))}, "cuda:0", "note", "nvidia-smi"),
        ({"devices": (CPU, GPU._replace(error="ECC"))}, "cuda:0", "failed", "--accelerator cpu"),
        ({}, "cpu", "ok", "no bf16, no TF32"),
        ({"devices": (CPU._replace(free=GB),)}, "cpu", "note", "top shows"),
        ({"cpus": 64}, "cores", "ok", "16 usable of 64"),
        ({"devices": (CPU, *[GPU] * 8)}, "cores", "note", "8 GPUs want 32"),
        ({"load": 40.0}, "cores", "note", "40 processes want to run"),
        ({}, "threads", "ok", "OMP_NUM_THREADS 12"),
        ({"omp": None, "threads": 16}, "threads", "note", "export OMP_NUM_THREADS=12."),
        ({"omp": None, "threads": 16, "workers": 0}, "threads", "ok", "not set"),
        ({"omp": None, "threads": 64}, "threads", "note", "64 threads on 16 cores"),
        ({"omp": "1", "threads": 1}, "threads", "note", "export OMP_NUM_THREADS=12."),
        ({"omp": "1", "threads": 1, "devices": (CPU, GPU)}, "threads", "ok", "1"),
        ({"shm": 64 * 2**20}, "/dev/shm", "failed", "--shm-size=8g"),
        ({"shm": 64 * 2**20, "workers": 0}, "/dev/shm", "ok", "0.1 GB free"),
        ({"shm": GB}, "/dev/shm", "note", "--workers 0"),
        ({"shm": None}, "/dev/shm", "ok", "none"),
        ({"open_files": 128}, "open files", "note", "ulimit -n 4096, or use --workers 1."),
        (
            {"open_files": 48, "open_files_hard": 48},
            "open files",
            "failed",
            "4 data workers need 182: use --workers 0.",
        ),
        ({"disk": GB}, "disk", "failed", "free some, or use --out"),
        ({"disk": 5 * GB}, "disk", "note", "delete checkpoints"),
        ({}, "optional", "ok", "onnx; not installed: wandb (pip install 'lewel[wandb]')"),
    ],
)
def test_a_line_names_its_fix(changes: dict[str, Any], name: str, status: str, words: str) -> None:
    found = line(assess(replace(HEALTHY, **changes)), name)
    assert (found.status, words in found.text) == (status, True), found
    assert found.status == "ok" or found.text.endswith("."), found


@pytest.mark.parametrize(
    ("changes", "name", "status", "words"),
    [
        ({}, "reading", "ok", "decodes 200 JPEG files a second (500 x 375 px)"),
        ({"reading": Reading("", error="no decoder")}, "reading", "failed", "torchvision"),
        ({}, "step on cpu", "ok", "a core, small: 640 images/s; large: 320 images/s"),
        ({"steps": {"cpu": ()}}, "step on cpu", "skipped", "cannot be used"),
        (
            {"steps": {"cpu": (*STEPS[:1], Stepped("large", 0, skipped="too little memory"))}},
            "step on cpu",
            "ok",
            "640 images/s; large: too little memory",
        ),
        (
            {"steps": {"cpu": (Stepped("small", 64, error="illegal"),)}},
            "step on cpu",
            "failed",
            "small: illegal: torch and this CPU do not fit",
        ),
        ({}, "checkpoint", "ok", "544 MB in 1.5 s"),
        ({"checkpoint": Checkpoint(10, 99.0)}, "checkpoint", "note", "--checkpoint-minutes"),
        ({"checkpoint": Checkpoint(error="full")}, "checkpoint", "failed", "another disk"),
    ],
)
def test_a_measurement_names_its_fix(
    changes: dict[str, Any], name: str, status: str, words: str
) -> None:
    found = line(assess_speeds(HEALTHY, replace(SPEEDS, **changes)), name)
    assert (found.status, words in found.text) == (status, True), found


def test_reading_that_is_slower_than_the_gpus_is_noted() -> None:
    facts = replace(HEALTHY, devices=(CPU, GPU), cores=4)
    slow = replace(SPEEDS, steps={"cpu": STEPS, "cuda:0": (Stepped("large", 64, 0.1),)})
    found = line(assess_speeds(facts, slow), "reading")
    assert found.status == "note" and "4 cores read 400 images a second" in found.text
    broken = {"cpu": STEPS, "cuda:0": (Stepped("large", 64, error="launch failed"),)}
    lines = assess_speeds(facts, replace(SPEEDS, steps=broken))
    assert line(lines, "reading").status == "ok"
    assert "--accelerator cpu" in line(lines, "step on cuda:0").text


def no_bf16(precision: str) -> None:
    raise UserError(f"{precision} does not work")


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process that tries bf16, and steps of a tiny size."""
    monkeypatch.setattr(doctor_facts, "check_cpu_precision", no_bf16)
    tiny = {"backbone": "resnet10", "width": 8, "image_size": 64, "head": {"hidden": 8, "dim": 8}}
    sizes = (Size("tiny", tiny, 2, 4), Size("small", tiny, 4, 8))
    monkeypatch.setattr(doctor_speed, "SIZES", sizes)
    monkeypatch.setattr(doctor_speed, "FILES", 2)


@pytest.mark.usefixtures("_quick")
def test_facts_of_this_machine_and_of_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(index: int) -> SimpleNamespace:
        if index == 2:
            raise RuntimeError("device is busy\nsecond line")
        return SimpleNamespace(name=f"GPU {index}", major=(7, 8)[index])

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (5, 6 + index))
    facts = gather()
    cpu, turing, ampere, busy = facts.devices
    assert (facts.cores, facts.threads) == (cores(), torch.get_num_threads())
    assert 0 < cpu.free <= cpu.memory and not cpu.bf16
    assert turing == Device("cuda:0", "GPU 0", 6, 5, bf16=False, tf32=False)
    assert ampere == Device("cuda:1", "GPU 1", 7, 5, bf16=True, tf32=True)
    assert busy.error == "device is busy"
    assert facts.versions["torch"] and facts.unmet == {} and "onnx" in facts.extras
    assert facts.disk > 0 and facts.open_files > 0


def test_requirements_that_are_not_met() -> None:
    lines = [
        "torch>=1",
        "numpy>=999",
        "no-such-package",
        "pywin32; sys_platform == 'win32'",
        "pillow; extra == 'pictures'",
        "no-such-package; extra == 'odd'",
        "no-such-package; extra == 'dev'",
    ]
    unmet, extras = requirements(lines)
    assert unmet.keys() == {"numpy>=999", "no-such-package"} and unmet["no-such-package"] == ""
    assert extras == {"odd": ("no-such-package",), "pictures": ()}


@pytest.mark.usefixtures("_quick")
def test_measurements_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    speeds = measure(replace(HEALTHY, devices=(CPU, GPU._replace(error="busy"))), told.append)
    assert 0 < speeds.reading.views < speeds.reading.decoded
    assert [one.images for one in speeds.steps["cpu"]] == [2, 4]
    assert all(one.seconds > 0 and not one.error for one in speeds.steps["cpu"])
    assert speeds.steps["cuda:0"] == ()
    assert speeds.checkpoint.bytes > 10_000 and speeds.checkpoint.seconds > 0
    assert list(tmp_path.iterdir()) == [] and len(told) == 4

    def without_jpeg(*given: object, **named: object) -> None:
        raise RuntimeError("decode_jpeg: torchvision not compiled with libjpeg support")

    monkeypatch.setattr(doctor_speed, "open_data", without_jpeg)
    few = measure(replace(HEALTHY, devices=(CPU._replace(free=GB),)), told.append)
    assert [bool(one.skipped) for one in few.steps["cpu"]] == [False, True]  # would not fit
    assert few.checkpoint.bytes > 10_000
    assert "not compiled with libjpeg" in few.reading.error


@pytest.mark.usefixtures("_quick")
def test_a_busy_machine_is_not_timed_for_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor_speed, "PATIENCE", 0.0)
    speeds = measure(HEALTHY, print)
    first, second = speeds.steps["cpu"]
    assert first.seconds > 0 and "the machine is busy" in second.skipped
    assert speeds.checkpoint.bytes > 0


@pytest.mark.usefixtures("_quick")
def test_a_step_that_fails_and_a_checkpoint_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(self: Trial, images: int, device: torch.device) -> float:
        if images > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if device.type == "meta":
            raise RuntimeError("no kernel image is available.\nCompile with ...")
        return 0.5

    trial = Trial(doctor_speed.SIZES[0])
    assert "no step was taken" in trial.checkpoint(tmp_path).error
    trial.step(2, torch.device("cpu"))
    assert "No such file" in trial.checkpoint(tmp_path / "none").error
    monkeypatch.setattr(Trial, "step", step)
    assert trial.timed(32, torch.device("cpu")) == Stepped("tiny", 8, 0.5)
    failed = trial.timed(32, torch.device("meta"))
    assert failed.error == "no kernel image is available"


def test_a_report_has_no_host_user_or_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "node", lambda: "node17.lab")
    monkeypatch.setattr(doctor.getpass, "getuser", lambda: "alice")
    text = (
        "/home/alice/x/lib.so: no; alice@node17.lab '/opt' /srv/a/b, /dev/shm is full, 3 images/s, "
        "https://pytorch.org/get-started, GPU-8f1c2d3e-0000-1111"
    )
    shown = doctor.anonymous({"a": [text], "n": 1.5})
    assert shown == {
        "n": 1.5,
        "a": [
            "lib.so: no; ...@... 'opt' b, /dev/shm is full, 3 images/s, "
            "https://pytorch.org/get-started, GPU-..."
        ],
    }


@pytest.fixture
def _this(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "gather", lambda: HEALTHY)
    monkeypatch.setattr(doctor, "measure", lambda facts, tell: SPEEDS)


@pytest.mark.usefixtures("_this")
def test_the_command_prints_a_screen_or_json_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor"]) == 0
    said = capsys.readouterr()
    assert "Everything that is needed works" in said.out and "doctor --deep" in said.out
    assert "reading versions, devices and limits ..." in said.err
    assert len(said.out.splitlines()) < 24  # one screen
    monkeypatch.setattr(doctor, "gather", lambda: replace(HEALTHY, disk=5))
    assert run(["doctor", "--json"]) == 1
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert report["healthy"] is False and report["facts"]["disk"] == 5
    assert {"name", "status", "text"} == report["findings"][0].keys()
    assert report["speeds"]["steps"]["cpu"][1]["images"] == 32
    assert "Not ready: disk." in said.err


@pytest.mark.usefixtures("_this")
def test_from_python(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = lewel.doctor()
    assert found.healthy and found.speeds == SPEEDS
    assert "ok: 3.12.1" in found._repr_html_()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(doctor, "examine", lambda facts, tell: [Finding("deep", "failed", "no")])
    assert not lewel.doctor(deep=True).healthy
    as_torchrun(monkeypatch, 2, 2)
    with pytest.raises(UserError, match="examines one machine"):
        lewel.doctor()
