"""After a kill or a signal the same command resumes a run, with exactly the same result."""

import os
import pty
import random
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from lewel.errors import RunError, signals_to_heed
from lewel.methods.registry import method_names
from lewel.train.checkpoint import Checkpoints
from lewel.train.interrupt import Interruption
from lewel.train.run_folder import RunFolder
from tests.running import metrics, start_process, tiny_command, tiny_run


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "backbone.safetensors") | load_file(out / "heads.safetensors")


def assert_same_run(one: Path, other: Path) -> None:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    losses = [[line.get("loss") for line in metrics(run)] for run in (one, other)]
    assert losses[0] == losses[1]


EPOCHS, STEPS = "14", 56


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts."""
    out = tmp_path_factory.mktemp("uninterrupted") / "whole"
    assert tiny_run(out, "--epochs", EPOCHS) == 0
    return out


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_killed_run_resumes_exactly(tmp_path: Path, whole: Path, workers: str) -> None:
    flags = ("--epochs", EPOCHS, "--checkpoint-minutes", "0.001", "--workers", workers)
    killed = tmp_path / "killed"
    process = start_process(killed, *flags)
    wanted = random.Random().randint(8, 28)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        done = sorted((killed / "checkpoints").glob("step-*.pt"))
        if done and int(done[-1].stem.removeprefix("step-")) >= wanted:
            break
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL, "it finished before it was killed"

    again = start_process(killed, *flags)
    said, _ = again.communicate(timeout=120)
    assert again.returncode == 0, said
    resumed = int(said.split("resumed at step ")[1].split()[0])
    assert wanted <= resumed < STEPS
    assert [line["step"] for line in metrics(killed)] == list(range(STEPS + 1))
    assert_same_run(whole, killed)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_reports_how_to_resume(
    tmp_path: Path, whole: Path, number: signal.Signals, code: int
) -> None:
    flags = ("--epochs", EPOCHS, "--workers", "1")
    process = start_process(tmp_path / "run", *flags)
    while not metrics_grow(tmp_path / "run"):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "run the same command to resume" in said
    assert "Traceback" not in said
    stopped = metrics(tmp_path / "run")[-1]["step"]
    assert 0 < stopped < STEPS

    again = start_process(tmp_path / "run", *flags)
    said, _ = again.communicate(timeout=120)
    assert f"resumed at step {stopped}" in said
    assert_same_run(whole, tmp_path / "run")


def metrics_grow(out: Path) -> bool:
    path = out / "metrics.jsonl"
    return path.exists() and len(path.read_text().splitlines()) > 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_to_the_whole_group_saves_too(tmp_path: Path, number: signal.Signals) -> None:
    """As a cluster's time limit does it: workers must not die before the parent has saved."""
    process = start_process(tmp_path / "run", "--epochs", "400", "--workers", "2")
    while not metrics_grow(tmp_path / "run"):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said
    step = metrics(tmp_path / "run")[-1]["step"]
    assert (tmp_path / "run" / "checkpoints" / f"step-{step:09d}.pt").exists()


def test_a_closed_terminal_saves(tmp_path: Path) -> None:
    """As a lost ssh connection does it: the terminal is gone when the signal comes."""
    out = tmp_path / "run"
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
        words = [sys.executable, "-m", "lewel", *tiny_command(out, "--epochs", "400")]
        os.execv(sys.executable, words)
    os.set_blocking(terminal, False)
    while not metrics_grow(out):
        with suppress(BlockingIOError):
            os.read(terminal, 4096)
        time.sleep(0.02)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    step = metrics(out)[-1]["step"]
    assert (out / "checkpoints" / f"step-{step:09d}.pt").exists()


def test_a_closed_pipe_saves(tmp_path: Path) -> None:
    """As in `lewel pretrain photos | head -1`."""
    out = tmp_path / "run"
    words = shlex.join([sys.executable, "-m", "lewel", *tiny_command(out, "--epochs", "400")])
    done = subprocess.run(
        ["bash", "-c", f"{words} | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    assert done.returncode == 129 and len(done.stdout.splitlines()) == 1
    assert "The output was closed" in done.stderr and "to resume" in done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    step = metrics(out)[-1]["step"]
    assert (out / "checkpoints" / f"step-{step:09d}.pt").exists()


def test_nohup_is_respected(tmp_path: Path) -> None:
    """A SIGHUP that is ignored from outside stays ignored, by ranks that are started too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert signal.SIGHUP in signals_to_heed()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interruption.number is None
        assert signal.SIGHUP not in signals_to_heed()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_killed_before_the_second_checkpoint(tmp_path: Path) -> None:
    assert tiny_run(tmp_path / "whole", "--epochs", "1") == 0
    assert tiny_run(tmp_path / "cut", "--epochs", "1") == 0
    newest = sorted((tmp_path / "cut" / "checkpoints").glob("*.pt"))[-1]
    newest.unlink()
    assert tiny_run(tmp_path / "cut", "--epochs", "1") == 0
    assert [line["step"] for line in metrics(tmp_path / "cut")] == list(range(5))
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_killed_before_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*arguments: object) -> None:
        raise RunError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", kill)
        assert tiny_run(tmp_path / "cut", "--epochs", "1") == 1
    assert (tmp_path / "cut" / "backbone.safetensors").exists()  # of step 0
    assert tiny_run(tmp_path / "cut", "--epochs", "1") == 0
    assert [line["step"] for line in metrics(tmp_path / "cut")] == list(range(5))


def test_exports_are_written_before_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for owner, name in ((RunFolder, "export"), (Checkpoints, "save")):
        real = getattr(owner, name)

        def spy(*args: object, _name: str = name, _real: object = real) -> object:
            order.append(_name)
            return _real(*args)  # type: ignore[operator]

        monkeypatch.setattr(owner, name, spy)
    assert tiny_run(tmp_path / "run", "--epochs", "1") == 0
    assert order == ["export", "save"] * 2  # a finished run always has its backbone


def test_data_that_changed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "photos"
    data.mkdir()
    for index in range(33):
        Image.new("RGB", (20, 20), (7 * index, 0, 0)).save(data / f"{index}.png")
    assert tiny_run(tmp_path / "run", "--epochs", "1", "--limit", "99", data=str(data)) == 0
    (data / "5.png").unlink()
    assert tiny_run(tmp_path / "run", "--epochs", "2", "--limit", "99", data=str(data)) == 2
    assert "33 then, 32 now" in capsys.readouterr().err
    assert tiny_run(data / "run", "--epochs", "1", "--limit", "99", data=str(data)) == 2
    assert "lies in the data" in capsys.readouterr().err


def test_more_epochs_resume_and_the_same_command_is_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert tiny_run(out, "--epochs", "1") == 0
    before = weights(out)
    assert tiny_run(out, "--epochs", "1") == 0
    assert "This run is finished" in capsys.readouterr().out
    assert tiny_run(out, "--epochs", "2") == 0
    assert "resumed at step 4" in capsys.readouterr().out
    assert [line["step"] for line in metrics(out)] == list(range(9))
    assert any(not torch.equal(value, before[name]) for name, value in weights(out).items())


def test_workers_do_not_change_the_numbers(tmp_path: Path) -> None:
    assert tiny_run(tmp_path / "0", "--epochs", "2", "--workers", "0") == 0
    assert tiny_run(tmp_path / "2", "--epochs", "2", "--workers", "2") == 0
    assert_same_run(tmp_path / "0", tmp_path / "2")


SWAV = ["--options.prototypes", "6", "--options.frozen_steps", "2", "--views.small-crops", "1"]
SWAV += ["--options.queue", "16", "--options.queue_from_epoch", "1"]
OWN_FLAGS = {
    "lewel_m": ["--contrast.queue", "20", "--contrast.norm-groups", "2"],
    "moco_v2": ["--contrast.norm-groups", "4", "--contrast.symmetric"],
    "densecl": ["--contrast.norm-groups", "2", "--contrast.symmetric"],
    "resim": ["--contrast.norm-groups", "2", "--options.levels", "fpn"],
    "pcl": ["--contrast.norm-groups", "2", "--options.warmup", "1"],  # its clusters are none
    "inst_disc": ["--options.negatives", "9"],
    "pixpro": ["--options.instance_weight", "0.5"],
    "swav": SWAV,
    "lewel_swav": SWAV,
}


@pytest.mark.parametrize(
    "flags",
    [
        *([*["--method", method], *OWN_FLAGS.get(method, [])] for method in method_names()),
        ["--optim.name", "sgd"],
        ["--optim.name", "adamw", "--optim.lr", "0.001"],
        ["--teacher.statistics", "ema"],
        ["--accumulate", "2"],
        ["--channels-last"],
        ["--seed", "7"],
    ],
    ids=lambda flags: " ".join(flags[:2]),
)
def test_every_kind_of_run_resumes_exactly(tmp_path: Path, flags: list[str]) -> None:
    assert tiny_run(tmp_path / "whole", "--epochs", "3", *flags) == 0
    assert tiny_run(tmp_path / "cut", "--epochs", "3", *flags) == 0
    for path in sorted((tmp_path / "cut" / "checkpoints").glob("*.pt"))[1:]:
        path.unlink()  # as if it had been killed in its last epoch
    assert tiny_run(tmp_path / "cut", "--epochs", "3", *flags) == 0
    assert [line["step"] for line in metrics(tmp_path / "cut")] == list(range(13))
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("method", ["inst_disc", "pcl"])
def test_banks_and_centroids_survive_a_stop_within_an_epoch(tmp_path: Path, method: str) -> None:
    flags = ["--method", method, "--epochs", "3", *OWN_FLAGS[method]]
    flags += ["--checkpoint-minutes", "0", "--keep-checkpoints", "20"]
    states = []
    for name in ("whole", "cut"):
        out = tmp_path / name
        assert tiny_run(out, *flags) == 0
        if name == "cut":
            for path in (out / "checkpoints").glob("*.pt"):
                if int(path.stem.split("-")[1]) > 6:  # in the middle of the second epoch
                    path.unlink()
            assert tiny_run(out, *flags) == 0
        last = out / "checkpoints" / "step-000000012.pt"
        states.append(torch.load(last, weights_only=True)["method"])
    kept = "bank.entries" if method == "inst_disc" else "prototypes.labels"
    assert kept in states[0]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
