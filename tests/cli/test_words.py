"""What is printed can be used: quoted commands, text as it is, messages that are true."""

import pickle
import shlex
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from lewel.cli.main import run
from lewel.cli.output import command
from lewel.errors import RunError
from lewel.progress import Bar, plain_console, show
from lewel.train.checkpoint import Checkpoints
from lewel.train.monitor import CorruptImages
from tests.cli.making import CPU, images, refused, words_of
from tests.running import tiny_command, tiny_run

ODD = "it's :smile: [b]$x"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose name and data need quoting."""
    folder = tmp_path_factory.mktemp("words") / ODD
    images(folder / "data :tada:", {"a": 20, "b": 20})
    (folder / "out").mkdir()
    assert tiny_run(folder / "run", "--epochs", "1", data=str(folder / "data :tada:")) == 0
    return folder


def printed_commands(said: str) -> list[list[str]]:
    """The words of the commands after `next:`, as a shell would split them."""
    lines = said.split("next:")[1].splitlines()[1:]
    return [shlex.split(one, comments=True)[1:] for one in lines if "import lewel" not in one]


@pytest.mark.parametrize("name", ["pretrain", "knn", "maps", "where", "pack", "report", "import"])
def test_the_next_commands_can_be_pasted(
    odd: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder, data = str(odd / "run"), str(odd / "data :tada:")
    words = {
        "pretrain": tiny_command(odd / "run", "--epochs", "1", data=data),
        "knn": ["knn", run_folder, "--data", data, *CPU],
        "maps": ["maps", run_folder, f"{data}/a/0.png"],
        "where": ["where", run_folder, "--data", data, "--limit", "4"],
        "pack": ["pack", data, str(odd / "pack"), "--workers", "0"],
        "report": ["report", run_folder],
        "import": ["import", str(checkpoint(odd)), "--out", str(odd / "imported")],
    }[name]
    capsys.readouterr()
    assert run(words) == 0
    said = capsys.readouterr().out
    assert (
        ":smile: [b]$x" in said and "\N{SMILING FACE WITH OPEN MOUTH AND SMILING EYES}" not in said
    )
    paths = [word for one in printed_commands(said) for word in one if ODD in word]
    assert paths and all(Path(path).parents[0].exists() for path in paths)
    assert all(path.startswith(str(odd)) for path in paths)


def checkpoint(folder: Path) -> Path:
    """A third-party file of the run's backbone."""
    from safetensors.torch import load_file

    torch.save(load_file(folder / "run" / "backbone.safetensors"), folder / "theirs.pth")
    return folder / "theirs.pth"


def test_a_command_is_quoted_and_no_path_becomes_a_flag() -> None:
    line = command("results", Path("-x"), "a b", "c'd", note="look")
    assert shlex.split(line, comments=True)[1:] == ["results", "./-x", "a b", "c'd"]
    assert line.startswith("  ") and line.endswith("    # look")


def test_tables_messages_and_progress_print_text_as_it_is(
    odd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["knn", str(odd / "run"), "--data", str(odd / "data :tada:"), *CPU]) == 0
    assert run(["results", str(odd / "run"), str(odd / "run")]) == 0
    assert "data :tada:" in capsys.readouterr().out
    assert ":smile:[b]" in refused(["results", ":smile:[b]"], capsys)
    console = Console(force_terminal=True, file=StringIO(), record=True)
    show(console, "a :smile: [b]")  # a user's own console
    assert "a :smile: [b]" in console.export_text()
    show(console, "a\tpath", "x" * 500)
    assert f"a\tpath\n{'x' * 500}\n" in console.file.getvalue()  # type: ignore[attr-defined]
    terminal = plain_console(force_terminal=True, file=StringIO(), record=True)
    with Bar(":smile: [b]", 2, terminal) as bar:
        bar.advance(1)
        assert bar.progress is not None
        terminal.print(bar.progress.get_renderable())
    assert ":smile: [b]" in terminal.export_text()


def test_no_console_is_made_with_markup_or_emoji() -> None:
    source = Path(__file__).parents[2] / "src" / "lewel"
    made = [
        f"{path.name}: {line.strip()}"
        for path in source.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if " Console(" in line and "quiet=True" not in line and path.name != "progress.py"
    ]
    assert made == []


@pytest.mark.parametrize("kind", ["yaml", "script", "pickle", "letter", "zip"])
@pytest.mark.parametrize("used", ["knn", "import", "pretrain"])
def test_a_file_that_holds_no_weights(
    kind: str, used: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r1.yaml"
    if kind == "script":
        torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(str(file))
    else:
        content = {"yaml": b"a: 1\n", "pickle": pickle.dumps({"a": 1}), "letter": b"i"}
        file.write_bytes(content.get(kind, b"PK\x03\x04" + b"x" * 40))
    words = {
        "knn": words_of("knn", trained),
        "import": ["import", "FILE", "--out", str(tmp_path / "imported")],
        "pretrain": tiny_command(
            tmp_path / "run", "--init", "FILE", data=str(trained.parent / "data")
        ),
    }[used]
    words = [str(file) if word in ("FILE", str(trained)) else word for word in words]
    said = refused(words, capsys)
    assert "cannot be read as a checkpoint" in said or "holds no tensors by name" in said
    for advice in ("weights_only", "pop from", "Unpickler", "jit.load"):
        assert advice not in said


def test_a_checkpoint_of_other_objects_is_damaged_without_torchs_advice(tmp_path: Path) -> None:
    torch.save({"step": 3, "what": Path("x")}, tmp_path / "step-000000003.pt")
    said: list[str] = []
    with pytest.raises(RunError):
        Checkpoints(tmp_path, 1).load(said.append)
    assert "is damaged" in said[0] and "weights_only" not in said[0] and "trust" not in said[0]


def test_more_corrupt_images_than_were_read_since_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "corrupt_images.jsonl"
    line = '{{"index": {0}, "image": "{0}.png", "reason": "cut"}}\n'
    path.write_text("".join(line.format(index) for index in range(20)))
    with pytest.raises(RunError, match="20 of the 20 images read are corrupt"):
        CorruptImages(path, total=40, per_epoch=8).check(16, torch.device("cpu"))


LOOPS = [
    ["pretrain", "LINK"],
    ["pretrain", "scenes", "--recipe", "LINK"],
    ["knn", "LINK", "--data", "scenes"],
    ["results", "LINK"],
    ["report", "LINK"],
    ["export", "LINK", "--to", "onnx"],
    ["import", "LINK"],
    ["embed", "LINK", "scenes"],
    ["pack", "LINK", "out"],
    ["maps", "LINK", "scenes"],
    ["where", "LINK", "--data", "scenes"],
    ["maps", "RUN", "LINK"],
    ["knn", "RUN", "--data", "LINK"],
    ["segment", "RUN", "--data", "LINK"],
    ["detect", "RUN", "--data", "LINK"],
    ["knn", "RUN", "--data", "DATA", "--classes", "LINK"],
    ["knn", "RUN", "--data", "DATA", "--out", "LINK"],
    ["where", "RUN", "--data", "LINK"],
]


@pytest.mark.parametrize("words", LOOPS, ids=" ".join)
def test_links_that_lead_nowhere_are_named(
    trained: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    loop, broken = tmp_path / "loop", tmp_path / "broken"
    loop.symlink_to(loop)
    broken.symlink_to("/nowhere")
    names = {"RUN": str(trained), "DATA": str(trained.parent / "data")}
    for link, message in ((loop, "leads back to itself"), (broken, "is a broken link to /nowhere")):
        given = [names.get(word, str(link) if word == "LINK" else word) for word in words]
        assert message in refused(given, capsys)


def test_links_of_a_pretraining(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for flag in ("--init", "--classes"):
        words = tiny_command(tmp_path / "run", flag, str(loop), data=str(trained.parent / "data"))
        assert "leads back to itself" in refused(words, capsys)
    assert "leads back to itself" in refused(
        tiny_command(loop, data=str(trained.parent / "data")), capsys
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["segment", "RUN", "--data", "FILE"], "is a file: expected a Pascal VOC folder"),
        (["detect", "RUN", "--data", "FILE"], "is a file: expected a folder of Pascal VOC"),
        (["pretrain", "scenes", "--recipe", "FOLDER"], "is a folder: expected a YAML file"),
        (["knn", "RUN", "--data", "DATA", "--classes", "FOLDER"], "is a folder: expected a text"),
        (["knn", "RUN", "--data", "DATA", "--out", "FILE"], "is a file: expected a folder"),
        (["import", "FOLDER"], "is a folder: expected a checkpoint"),
        (["results", "FILE"], "is a file: expected a run folder"),
        (["report", "FILE"], "is a file: expected a run folder"),
    ],
)
def test_what_exists_is_not_said_to_be_missing(
    trained: Path,
    tmp_path: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("x")
    names = {
        "RUN": str(trained),
        "DATA": str(trained.parent / "data"),
        "FILE": str(tmp_path / "file"),
        "FOLDER": str(tmp_path),
    }
    said = refused([names.get(word, word) for word in words], capsys)
    assert message in said and "does not exist" not in said
