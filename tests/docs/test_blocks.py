"""Every command and every Python block of the documents works, or is listed here with a reason.

A command runs in a folder with a few images, a tiny run and the embedded data, with flags that make
it small. One that cannot run (`CANNOT`) is parsed, and its recipe and settings are checked.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import lewel
from lewel.cli.main import app, run
from lewel.cli.parameters import with_recipe
from lewel.config.configure import configure
from lewel.config.evaluate import EvaluateConfig
from lewel.config.pretrain import PretrainConfig
from lewel.config.recipes import read_recipe
from lewel.data.sources import scenes
from tests.docs.pages import blocks, commands
from tests.running import tiny_command, tiny_flags

CANNOT = {  # a pattern of commands -> why they cannot run here
    r"make (demo|test|docs)": "minutes; the targets are checked to exist",
    r"source ": "the shell's own",
    r"(torchrun|srun|sbatch|nvidia-smi)\b": "needs several GPUs or a cluster",
    r"lewel .*--devices 8": "needs eight GPUs",
    r"lewel .*\b(imagenet|VOCdevkit\S*|coco/)": "needs ImageNet, Pascal VOC or COCO",
    r"\.venv/bin/python -m tests\.hostile": "minutes; tests/hostile/test_hostile.py runs a part",
    r"lewel .*(\bresnet18 --data|--init timm/)": "downloads weights",
    r"lewel bench": "minutes; tests/bench runs it",
    r"lewel doctor": "half a minute, --deep minutes; tests/tasks/test_doctor.py runs it",
    r"lewel pretrain .*--budget": "hours; tests/tasks/test_auto.py runs it",
    r"lewel .*s3://": "needs a bucket; tests/faults/test_s3.py runs it",
    r"lewel compare": "minutes for each method; tests/tasks/test_compare.py runs it",
    r"lewel reproduce": "minutes to days; tests/tasks/test_reproduce.py runs it",
    r"lewel watch": "serves until Ctrl-C; tests/tasks/test_watch.py runs it",
}
REFUSED = {
    r"lewel pretrain scenes --method byol --contrast\.queue": 2
}  # exit codes that pages name
SLOW = r"lewel (detect|segment) |--to onnx"  # seconds each: the default run leaves them out
SIZES = {"train": 120, "val": 30}  # of the embedded data, here
SMALL = {  # flags that make a command small; those of a page are replaced
    "knn": {"--accelerator": "cpu"},
    "linear": {"--epochs": "1", "--accelerator": "cpu"},
    "finetune": {"--epochs": "1", "--batch-size": "16", "--accelerator": "cpu"},
    "segment": {"--iterations": "2", "--batch-size": "2", "--crop": "32", "--limit": "4"},
    "detect": {"--iterations": "2", "--batch-size": "2", "--limit": "4", "--val-limit": "2"},
    "maps": {"--limit": "2"},
    "where": {"--limit": "4"},
    "pack": {"--workers": "0"},
}


@pytest.fixture(scope="module", autouse=True)
def _few_scenes() -> Iterator[None]:
    before = dict(scenes.SIZES)
    scenes.SIZES.update(SIZES)
    yield
    scenes.SIZES.update(before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, _few_scenes: None) -> Path:
    """A folder with what the pages talk of: photos, two runs, weights of another project."""
    folder = tmp_path_factory.mktemp("docs")
    drawn = scenes.Scenes("train", size=32, seed=0)
    for index in range(64):
        path = folder / "photos" / f"class{index % 2}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawn.read(index).permute(1, 2, 0).numpy()).save(path)
    for name in ("cat.jpg", "dog.jpg"):
        Image.fromarray(drawn.read(0).permute(1, 2, 0).numpy()).save(folder / name)
    for name, method in (("photos", "lewel_b"), ("photos-byol", "byol"), ("scenes", "lewel_b")):
        words = tiny_command(folder / "runs" / name, "--method", method, "--epochs", "1")
        assert run(words) == 0
        assert run(["knn", words[3], "--data", "scenes", "--accelerator", "cpu"]) == 0
    weights = lewel.load_backbone(folder / "runs" / "photos").state_dict()
    for name in ("moco_v2_800ep.pth", "resnet50.pth"):
        torch.save(weights, folder / name)
    shared = ["--image-size", "64", "--out", str(folder / "runs" / "photos" / "export" / "hub")]
    assert run(["export", "resnet10", "--random-init", "--to", "hub", *shared]) == 0
    assert run(["pack", str(folder / "photos"), str(folder / "shards"), "--workers", "0"]) == 0
    return folder


@pytest.fixture
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder as the current one, on one thread."""
    monkeypatch.chdir(place)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield place
    torch.set_num_threads(threads)


def reason_for(command: str) -> str | None:
    """Why a command cannot run; None where it can."""
    return next((why for pattern, why in CANNOT.items() if re.match(pattern, command)), None)


ALL = commands()
RUN = [one for one in ALL if reason_for(one) is None]
PARSE = [one for one in ALL if reason_for(one) is not None]


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[pytest.mark.slow] * bool(re.search(SLOW, c))) for c in RUN]
)
def test_a_command_runs(
    command: str, inside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, words = ALL[command]
    assert words[0] == "lewel", f"{where}: run it, or list it in CANNOT with the reason"
    expected = next((code for rule, code in REFUSED.items() if re.match(rule, command)), 0)
    code = run(words[1:] if expected else smaller(words[1:], tmp_path))
    said = capsys.readouterr()
    assert code == expected, f"{where}: {command}\n{said.out}\n{said.err}"


@pytest.mark.parametrize("command", PARSE)
def test_a_command_that_cannot_run_here_is_well_formed(command: str) -> None:
    where, words = ALL[command]
    if words[0] == "make":
        makefile = (Path(__file__).parents[2] / "Makefile").read_text()
        assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), where
    if words[0] == "sbatch":  # script, data, run folder, flags
        assert (Path(__file__).parents[2] / words[1]).is_file(), where
        words = ["lewel", "pretrain", words[2], "--out", *words[3:]]
    if "lewel" in words:
        check(words[words.index("lewel") + 1 :])


def check(words: list[str]) -> None:
    """The command, its flags, its recipe and its settings exist and fit together."""
    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    given = bound.arguments
    config, recipe = given.get("config"), given.get("recipe")
    if isinstance(config, EvaluateConfig):
        with_recipe(config, recipe)
    elif words[0] == "pretrain":
        config = PretrainConfig() if config is None else config
        named = config.model_dump(exclude_unset=True)
        configure(given.get("data") or "scenes", recipe, named)


def smaller(words: list[str], out: Path) -> list[str]:
    """The same command at a size that takes a second."""
    name = words[0]
    flags = dict(SMALL.get(name, {}))
    if name == "pretrain" and "--dry-run" not in words and "--help" not in words:
        flags = {**tiny_flags(method_of(words)), "--epochs": "1", "--out": str(out / "run")}
        if "--contrast.queue" not in words and method_of(words) in {"moco_v2", "lewel_m"}:
            flags |= {"--contrast.queue": "8", "--contrast.norm-groups": "2"}
    if name == "pretrain" and "--dry-run" in words:
        flags = {**tiny_flags(method_of(words))}
    if name == "pretrain" and "--recipe" not in words:  # chosen for the images, 50 or more
        flags["--limit"] = "64"
    if name == "pack" and "--check" not in words:
        words = [*words[:2], str(out / "shards"), *words[3:]]
    if name in {"knn", "linear"} and words[1].endswith(".pth"):
        flags |= {"--image-size": "16"}
    if name == "import":
        flags = {"--out": str(out / "imported")}
    if name == "export":  # a width that torchvision and timm do not have
        lacking = {"torchvision", "hub"}
        words = ["torch-export" if word in lacking else word for word in words]
    return replaced(words, flags)


def method_of(words: list[str]) -> str:
    """The method that a command trains."""
    if "--method" in words:
        return words[words.index("--method") + 1]
    recipe = words[words.index("--recipe") + 1] if "--recipe" in words else "paper"
    if recipe != "paper" and not recipe.endswith(".yaml"):
        return str(read_recipe(recipe)["method"])
    return "lewel_b" if "--recipe" in words else "lewel_m"


def replaced(words: list[str], flags: dict[str, str]) -> list[str]:
    """Flags with their values, in place of those that the command has."""
    kept, rest = [], iter(words)
    for word in rest:
        if word in flags:
            next(rest)
        else:
            kept.append(word)
    return [*kept, *(word for pair in flags.items() for word in pair)]


PYTHON = [block for block in blocks() if block.language == "python"]


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_a_python_block_runs(
    block: Any, inside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretrain(data: str, **settings: Any) -> Any:
        words = tiny_command(tmp_path / "run", data=data)
        words = replaced(words, {"--epochs": "1"})
        _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        config = bound.arguments["config"].model_dump(exclude_unset=True)
        checked = configure(data, settings.pop("recipe", None), without_out(settings))
        assert checked.data
        return original(data, recipe="paper", out=tmp_path / "run", **config)

    def quick(name: str, **small: Any) -> None:
        task = getattr(lewel.api, name)
        monkeypatch.setattr(
            lewel.api, name, lambda *given, **named: task(*given, **{**named, **small})
        )

    import lewel.api

    original = lewel.api.pretrain
    monkeypatch.setattr(lewel.api, "pretrain", pretrain)
    quick("segment", iterations=2, batch_size=2, crop=32, limit=4)
    quick("where", limit=4)
    exec(compile(block.text, block.place, "exec"), {"__name__": "documentation"})


def without_out(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without the run folder."""
    return {key: value for key, value in settings.items() if key not in {"out", "console"}}


def test_every_block_has_a_language() -> None:
    known = {
        "sh",
        "python",
        "toml",
        "text",
    }  # bash: scripts of docs/slurm, which test_slurm.py runs
    strange = [block.place for block in blocks() if block.language not in known | {"bash"}]
    assert not strange, f"write sh, python or toml behind the fence: {strange}"


def test_reasons_are_used() -> None:
    unused = [rule for rule in (*CANNOT, *REFUSED) if not any(re.match(rule, c) for c in ALL)]
    assert not unused


def test_words_of_a_command_survive() -> None:
    assert replaced(shlex.split("a --x 1 b"), {"--x": "2", "--y": "3"}) == [
        *("a", "b", "--x", "2", "--y", "3")
    ]
