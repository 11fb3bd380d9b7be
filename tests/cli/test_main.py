"""The command line: output, messages and exit codes."""

import errno
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml
from torchvision.models import ResNet

import lewel
from lewel.cli.main import GROUPS, run
from lewel.config.configure import configure
from lewel.config.methods import taken
from lewel.config.recipes import list_recipes, read_recipe
from lewel.errors import UserError
from lewel.methods.registry import find_method
from lewel.progress import rank_from_outside
from tests.data.pack.photos import make_photos
from tests.running import metrics, tiny_command, tiny_flags, tiny_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    flags = ("--epochs", "2", "--knn.every", "1", "--knn.bank", "60", "--knn.queries", "40")
    assert tiny_run(out, *flags) == 0
    return out


def test_a_run_folder_holds_everything(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names >= {
        "config.yaml",
        "metrics.jsonl",
        "checkpoints",
        "backbone.safetensors",
        "heads.safetensors",
        "card.json",
        "views.png",
    }
    card = json.loads((finished / "card.json").read_text())
    assert card["method"] == "lewel_b"
    assert (card["steps"], card["epochs"], card["image_size"]) == (8, 2.0, 16)
    assert 0 <= card["knn"] <= 1
    lines = metrics(finished)
    assert [line["step"] for line in lines] == list(range(9))
    assert [line["step"] for line in lines if "knn" in line] == [0, 4, 8]
    assert {"lr", "loss", "embedding_std", "teacher_momentum"} <= lines[5].keys()
    assert {"images_per_s", "data_wait"} <= lines[6].keys()


def test_the_backbone_is_a_plain_torchvision_module(finished: Path) -> None:
    net = lewel.load_backbone(finished)
    assert isinstance(net, ResNet)
    assert not net.training
    assert net(torch.randn(2, 3, 16, 16)).shape == (2, 64)
    same = lewel.load_backbone(finished / "backbone.safetensors")
    state = torch.load(sorted((finished / "checkpoints").glob("*.pt"))[-1], weights_only=True)
    for name, value in net.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
        assert torch.equal(value, state["method"][f"student.backbone.net.{name}"])


def test_loading_a_folder_without_a_backbone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no backbone"):
        lewel.load_backbone(tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(UserError, match="cannot be read"):
        lewel.load_backbone(tmp_path / "x.safetensors")


def test_a_run_ends_with_its_files_and_the_next_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny_run(tmp_path / "run", "--epochs", "1") == 0
    said = capsys.readouterr().out
    assert "backbone.safetensors" in said
    lines = said.split("next:\n")[1].splitlines()
    embed, resume = (line.split("#")[0].split() for line in lines[:2])
    assert Path(embed[0]).name == Path(resume[0]).name == "lewel"
    assert run([*embed[1:], "--limit", "20"]) == 0  # the lines can be pasted
    assert (tmp_path / "run" / "features.npz").exists()
    assert run(resume[1:]) == 0
    assert "resumed at step 4" in capsys.readouterr().out


def test_another_configuration_into_the_same_folder_is_refused(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "config.yaml").read_bytes()
    assert tiny_run(finished, "--epochs", "2", "--seed", "5", "--head.dim", "16") == 2
    said = capsys.readouterr().err
    assert "seed: 0 -> 5" in said
    assert "head.dim: 8 -> 16" in said
    assert (finished / "config.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--metod", "byol"], "Did you mean --method?"),
        (
            ["--method", "moco_v9"],
            "there is no method 'moco_v9': choose ",
        ),
        (["--optim.lr", "-1"], "change it with --optim.lr"),
        (["--backbone", "vgg"], "There is no backbone 'vgg'"),
        (["--recipe", "nothing"], "There is no recipe 'nothing'"),
        (["--head.dim", "7"], "head.dim (d) is 7, not a multiple of head.groups (h) 2"),
        (["--head.groups", "3", "--head.dim", "9"], "the channels of resnet10 is 64"),
        (["--batch-size", "64"], "The batch size 64 is larger than the data (32 images)"),
        (["--stem", "imagenet"], "at 1 locations, too few"),
        (["--precision", "16-mixed"], "needs a GPU"),
        (["--limit", "0"], "limit"),
        (["--accelerator", "cuda"], "--accelerator cuda --devices 1 cannot be used"),
    ],
)
def test_a_mistake_is_one_message_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    if "cuda" in flags and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert tiny_run(tmp_path / "run", *flags) == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_wrong_data_and_wrong_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_run(tmp_path / "run", data=str(tmp_path / "none")) == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    assert tiny_run(tmp_path / "full") == 2
    assert "holds other files and no run" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert tiny_run(tmp_path / "file") == 2
    assert run(["recipes", "please"]) == 2
    assert "Unexpected arguments 'please'" in capsys.readouterr().err
    assert run(["pretran"]) == 2
    assert 'Did you mean "pretrain"?' in capsys.readouterr().err


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys; from pathlib import Path; from lewel.train.run_folder import RunFolder;"
        f"folder = RunFolder(Path({str(tmp_path / 'run')!r})); folder.open();"
        "print('held', flush=True);"
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert tiny_run(tmp_path / "run") == 2
    assert "Another process is training" in capsys.readouterr().err
    holder.communicate("")
    assert tiny_run(tmp_path / "run", "--epochs", "1") == 0


def test_dry_run_shows_the_configuration_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["pretrain", "scenes", "--recipe", "scenes_demo", "--seed", "3", "--dry-run"]) == 0
    said = capsys.readouterr().out
    shown = yaml.safe_load(said.split("images:")[0])
    assert (shown["seed"], shown["width"]) == (3, 8)
    assert "steps: 1,875" in said
    assert "memory of a device: about 20 MB for 32 images at a time" in said
    assert "exports: onnx, torch-export" in said
    assert re.search(
        r"^time: about .* on 1 x cpu: .* s a step, .* without reading images$", said, re.MULTILINE
    )
    assert list(tmp_path.iterdir()) == []


def test_flags_are_checked_with_the_recipe_not_with_the_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "backbone: resnet10\nstem: small\nwidth: 8\nimage_size: 32\nhead: {hidden: 16}\n"
    (tmp_path / "mine.yaml").write_text(f"batch_size: 96\n{small}")
    command = ["pretrain", "scenes", "--recipe", str(tmp_path / "mine.yaml"), "--dry-run"]
    assert run([*command, "--accumulate", "3"]) == 0
    assert "learning rate: 0.3375" in capsys.readouterr().out  # 1.8 at 512
    assert run([*command, "--accumulate", "5"]) == 2


def test_scenes_is_the_embedded_data_even_where_a_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenes").mkdir()
    assert configure("scenes", None, {}).data == "scenes"
    assert configure("./scenes", None, {}).data == str(tmp_path / "scenes")


def test_from_python(tmp_path: Path) -> None:
    words = tiny_command(tmp_path)
    assert "--width" in words
    out = lewel.pretrain(
        "scenes",
        recipe="paper",
        method="byol",
        out=tmp_path / "run",
        backbone="resnet10",
        stem="small",
        width=8,
        image_size=16,
        batch_size=8,
        epochs=1,
        limit=16,
        head={"dim": 8, "hidden": 16},
        optim={"lr": 0.1, "warmup_epochs": 0},
        knn={"every": 0},
        workers=0,
        accelerator="cpu",
    )
    assert (out.folder, out.steps, out.knn) == (tmp_path / "run", 2, None)
    assert Path(out) == tmp_path / "run" and (out / "card.json").exists()
    assert str(tmp_path / "run") in out._repr_html_()
    assert lewel.load_backbone(out)(torch.randn(1, 3, 16, 16)).shape == (1, 64)


def distinct_recipes() -> list[str]:
    """Recipes without those that differ from another in the number of epochs only."""
    found = {yaml.safe_dump({**read_recipe(n), "epochs": 1}): n for n in list_recipes()}
    return sorted(found.values())


@pytest.mark.parametrize("name", distinct_recipes())
def test_every_recipe_takes_two_steps(tmp_path: Path, name: str) -> None:
    method = read_recipe(name)["method"]
    sizes = tiny_flags(method)
    sizes = {k: v for k, v in sizes.items() if k not in ("--limit", "--log-every")}
    for key in [k for k in sizes if k.startswith("--optim")]:
        del sizes[key]
    words = [word for pair in sizes.items() for word in pair]
    command = ["pretrain", "scenes", "--recipe", name, "--out", str(tmp_path / "run"), *words]
    small = ["--limit", "16", "--epochs", "1"]
    if "contrast.norm_groups" in taken(find_method(method)):
        small += ["--contrast.norm-groups", "2"]
    if find_method(method).about.small_crops:
        small += ["--views.small-size", "8"]
    assert run([*command, *small, "--precision", "32"]) == 0
    assert [line["step"] for line in metrics(tmp_path / "run")] == [0, 1, 2]


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from lewel.cli.main import run; run(['--help']); run(['pretrain', '--help']);"
        "heavy = {'torch', 'torchvision', 'lightning_fabric', 'numpy'} & sys.modules.keys();"
        "sys.exit(3 if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    took = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, "-m", "lewel", "--help"], capture_output=True)
        after = os.times()  # CPU time: another job on the machine must not fail this
        took.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
        assert done.returncode == 0
    assert min(took) < 0.5


def test_ctrl_c_during_imports_prints_no_traceback(tmp_path: Path) -> None:
    early = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "cyclopts.py").write_text(early)  # imported in place of the real one
    done = subprocess.run(
        [sys.executable, "-m", "lewel", "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_fabric_is_imported_without_torchmetrics_but_with_its_version() -> None:
    code = (
        "import sys; from importlib.metadata import version; version('torchmetrics');"
        "import lewel.api;"
        "from lightning_fabric.utilities import imports;"
        "assert imports._TORCHMETRICS_GREATER_EQUAL_1_0_0;"
        "assert not {'torchmetrics', 'scipy', 'matplotlib'} & sys.modules.keys();"
        "import torchmetrics; assert torchmetrics.MeanMetric"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_results_are_shown_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from lewel.cli.main import run; assert run(['results', sys.argv[1]]) == 2;"
        "assert not {'torch', 'lightning_fabric'} & sys.modules.keys()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "has no results yet" in done.stderr


def test_the_list_of_commands_agrees_with_their_help() -> None:
    commands = {name: what for group in GROUPS.values() for name, what in group.items()}
    for name, what in commands.items():
        place = "import_" if name == "import" else name
        command = getattr(import_module(f"lewel.cli.{place}"), place)
        if name != "bench":  # an application of its own
            assert inspect.getdoc(command).splitlines()[0] == what, name
        # The module of a command has its name.
        assert name in ("bench", "recipes") or import_module(f"lewel.tasks.{place}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pack scenes out --workers -1", "--workers"),
        ("embed resnet18 scenes --batch-size 0", "--batch-size"),
        ("embed resnet18 scenes --workers -1", "--workers"),
        ("export resnet18 --to onnx --untrained --image-size 0", "--image-size"),
        ("import resnet18 --image-size 0", "--image-size"),
        ("bench step --rounds 0", "--rounds"),
        ("bench step --threads -1", "--threads"),
        ("bench step --dim 6", "--dim 6 is no multiple of --groups 4"),
        ("bench step --batch-size 1", "--batch-size 1"),
        ("bench data scenes --rounds 0", "--rounds"),
        ("bench scale --name a/b", "expected a name without a folder"),
        ("bench data nowhere", "nowhere does not exist"),
        ("bench data nowhere --images 1.5", "--images"),
        ("bench step --threads 1.5", "'1.5' is no whole number"),
        ("reproduce table1 --list --seeds 1.5", "'1.5' is no whole number"),
        ("watch . --port 1.5", "'1.5' is no whole number"),
    ],
)
def test_numbers_out_of_range_are_one_message(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words.split()) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (*(n for group in GROUPS.values() for n in group), "bench step"):
        assert run([*name.split(), "--help"]) == 0
        assert f"Usage: lewel {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EACCES, 2), (errno.ENAMETOOLONG, 2), (errno.ENOSPC, 1)]
)
def test_the_exit_code_tells_a_wrong_path_from_a_full_disk(
    number: int,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(runs: list[Path]) -> None:
        raise OSError(number, os.strerror(number), "given")

    monkeypatch.setattr("lewel.tasks.results.results_table", fails)
    assert run(["results", "given"]) == code
    assert capsys.readouterr().err == f"given: {os.strerror(number)}.\n"


@pytest.mark.parametrize(
    ("names", "number"),
    [
        ({"RANK": "1"}, 0),
        ({"RANK": "abc", "WORLD_SIZE": "2"}, 0),
        ({"RANK": "1", "WORLD_SIZE": "1"}, 0),
        ({"RANK": "1", "WORLD_SIZE": "2"}, 1),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, 0),  # of a batch script, without srun
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, 1),
    ],
)
def test_a_rank_is_believed_among_several(
    names: dict[str, str], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert rank_from_outside() == number


def test_a_name_that_the_locale_cannot_show_is_escaped(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", train=3, val=0)
    plain = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    words = ["pack", str(photos), str(tmp_path / "r\u00fcn"), "--workers", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "lewel", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **plain},
    )
    assert done.returncode == 0 and "r\\xfcn" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("code", "environment", "exit_code", "message"),
    [
        ("pass", {"COLUMNS": "0"}, 0, ""),
        ("pass", {"RANK": "x"}, 2, "RANK is 'x' in the environment, expected a number"),
        ("import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')", {}, 2, "cd to"),
    ],
)
def test_an_odd_environment_is_one_message(
    tmp_path: Path, code: str, environment: dict[str, str], exit_code: int, message: str
) -> None:
    start = "import sys; sys.argv = ['lewel', '--help']; from lewel.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {start}"],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == exit_code and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and (exit_code or "pretrain" in done.stdout)
