"""What lewel wrote is replaced, what it did not write is not, and files get the usual mode."""

import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lewel.cli.main import run
from lewel.errors import UserError
from lewel.files import (
    free_path,
    is_output_of,
    refuse_foreign,
    refuse_unwritable,
    set_aside,
    user_path,
    write_atomically,
    write_marked,
)
from tests.cli.making import masks, refused
from tests.running import tiny_run

CPU = ["--accelerator", "cpu", "--workers", "0"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    assert tiny_run(out, "--epochs", "1") == 0
    torch.save(torch.nn.Linear(2, 2).state_dict(), out.parent / "linear.pt")
    return out


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def png(path: Path) -> None:
    Image.new("RGB", (3, 2)).save(path, format="PNG")


def page(path: Path) -> None:
    path.write_text("<!doctype html>\n<html></html>\n")


def arrays(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.arange(3))


@pytest.mark.parametrize("write", [png, page, arrays, lambda path: torch.save({}, path)])
def test_a_marked_file_is_known_by_its_command_only(tmp_path: Path, write: object) -> None:
    path = tmp_path / "file"
    write_marked(path, "maps", write)  # type: ignore[arg-type]
    assert is_output_of(path, "maps") and not is_output_of(path, "report")
    content = path.read_bytes()
    if write is png:
        Image.open(io.BytesIO(content)).load()
    if write is arrays:
        assert np.load(path)["a"].tolist() == [0, 1, 2]
    write_marked(path, "maps", write)  # type: ignore[arg-type]
    assert path.read_bytes() == content
    path.write_bytes(b"mine")
    assert free_path(path, "maps") == tmp_path / "file-2"
    with pytest.raises(Exception, match="was not written by `lewel maps`"):
        refuse_foreign(path, "maps")
    refuse_foreign(path, "maps", overwrite=True)


def test_files_get_the_mode_of_the_umask(trained: Path, umask: None, tmp_path: Path) -> None:
    def secret(path: Path) -> None:
        path.unlink()
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))

    write_atomically(tmp_path / "file", secret)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    assert tiny_run(tmp_path / "run", "--epochs", "1") == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".safetensors", ".pt", ".json", ".yaml", ".png"}
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o644"}


def commands(run_folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Each command that writes files, in the current folder, and the files that it writes."""
    one, maps = str(run_folder), ["maps", str(run_folder), "scenes", "--limit", "2"]
    torchvision = ["export", one, "--to"]
    return {
        "report": (["report", one, "--out", "page.html"], ["page.html"]),
        "maps": ([*maps, "--out", "."], ["maps.png", "maps.html"]),
        "embed": (["embed", one, "scenes", "--limit", "8", *CPU, "--out", "f.npz"], ["f.npz"]),
        "parquet": (["embed", one, "scenes", "--limit", "8", *CPU, "--out", "f.parquet"],
                    ["f.parquet"]),
        "torch-export": ([*torchvision, "torch-export", "--out", "net.pt2"], ["net.pt2"]),
        "bench": (["bench", "data", "photos", "--images", "2", "--image-size", "16", "--rounds",
                   "1", "--out", "."], ["data.json", "data.png"]),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["report", "maps", "embed", "parquet", "torch-export", "bench"])
def test_a_command_replaces_its_own_files_only(
    name: str,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for index in range(2):
        Image.new("RGB", (32, 32), (90 * index, 5, 5)).save(f"photos/{index}.jpg")
    words, files = commands(trained)[name]
    for file in files:
        Path(file).write_bytes(b"my own work")
    for file in files:
        assert run(words) == 2
        assert f"{file} exists and was not written by `lewel" in capsys.readouterr().err
        assert Path(file).read_bytes() == b"my own work"
        Path(file).unlink()
    assert run(words) == 0
    assert run(words) == 0, "its own files are replaced"
    for file in files:
        Path(file).write_bytes(b"my own work")
    assert run([*words, "--overwrite"]) == 0
    assert all(Path(file).read_bytes() != b"my own work" for file in files)


def test_sources_of_a_run_are_not_replaced(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were written by lewel, but not by these commands."""
    before = {path: path.read_bytes() for path in trained.iterdir() if path.is_file()}
    for words in (
        ["report", str(trained), "--out", str(trained / "card.json")],
        ["export", str(trained), "--to", "timm", "--out", str(trained / "backbone.safetensors")],
    ):
        code = run(words)
        said = capsys.readouterr().err
        assert code == 2 and ("was not written by" in said or "cannot be exported" in said), said
    assert {path: path.read_bytes() for path in before} == before


def test_outputs_in_a_run_folder_of_version_0_1_are_replaced(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Path(shutil.copytree(trained, tmp_path / "old"))
    lines = (old / "config.yaml").read_text().splitlines(keepends=True)
    (old / "config.yaml").write_text("".join(lines[1:-1]))
    (old / "report.html").write_text("<!doctype html>\n")
    assert run(["report", str(old), "--out", str(old / "card.json")]) == 2
    assert run(["report", str(old)]) == 0
    (old / "config.yaml").write_text("".join(lines))
    (old / "report.html").write_text("<!doctype html>\n")
    assert run(["report", str(old)]) == 2
    os.mkfifo(old / "pipe.html")
    assert run(["report", str(old), "--overwrite", "--out", str(old / "pipe.html")]) == 2
    assert "is not a file that can be replaced" in capsys.readouterr().err


def test_export_does_not_replace_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchvision import models

    monkeypatch.chdir(tmp_path)
    torch.save(models.resnet18().state_dict(), "theirs.pth")
    assert run(["import", "theirs.pth", "--image-size", "32", "--out", "x"]) == 0
    before = Path("x/backbone.safetensors").read_bytes()
    words = ["export", "x", "--to", "timm", "--out", "x/backbone.safetensors"]
    assert run(words) == 2
    assert "backbone.safetensors exists and was not written by" in capsys.readouterr().err
    assert Path("x/backbone.safetensors").read_bytes() == before
    assert run([*words[:-1], "new.safetensors"]) == 0
    for to in ("torchvision", "detectron2", "mmseg"):
        for _ in range(2):
            assert run(["export", "x", "--to", to]) == 0
    Path("x/export/mmseg.py").write_text("mine = 1\n")
    assert run(["export", "x", "--to", "mmseg"]) == 2
    assert Path("x/export/mmseg.py").read_text() == "mine = 1\n"


def test_a_hub_folder_is_replaced_as_its_message_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.safetensors").write_text("somebody's")
    (tmp_path / "README.md").write_text("somebody's")
    words = ["export", "timm/test_resnet", "--random-init", "--to", "hub", "--out", str(tmp_path)]
    assert "replace it with --overwrite" in refused(words, capsys)
    assert run([*words, "--overwrite"]) == 0
    assert is_output_of(tmp_path / "model.safetensors", "export")
    assert (tmp_path / "README.md").read_text() == "somebody's"


def test_import_keeps_another_card(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchvision import models

    torch.save(models.resnet18().state_dict(), "theirs.pth")
    Path("x").mkdir()
    Path("x/card.json").write_text('{"number": 4111}')
    assert run(["import", "theirs.pth", "--out", "x"]) == 2
    assert "x/card.json exists and was not written by `lewel import`" in capsys.readouterr().err
    assert Path("x/card.json").read_text() == '{"number": 4111}'
    assert [path.name for path in Path("x").iterdir()] == ["card.json"]
    assert run(["import", "theirs.pth", "--out", "x", "--overwrite"]) == 0
    assert run(["import", "theirs.pth", "--out", "x"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert run(["import", "theirs.pth", "--out", "x", "--overwrite"]) == 0
    assert json.loads(Path("x/card.json").read_text())["method"] == "imported"
    assert run(["import", "theirs.pth", "--out", str(trained), "--overwrite"]) == 2


def test_a_foreign_folder_of_parts_is_not_used(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("f.npz.parts").mkdir()
    np.save("f.npz.parts/mine.npy", np.arange(3))
    assert run(["embed", str(trained), "scenes", "--limit", "8", *CPU, "--out", "f.npz"]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert Path("f.npz.parts/mine.npy").exists()


@pytest.mark.parametrize("out", ["photos", "photos/packed", "photos/../photos/a/b"])
def test_pack_into_the_data_is_refused(
    out: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for index in range(3):
        Image.new("RGB", (32, 32), (90 * index, 5, 5)).save(f"photos/{index}.jpg")
    assert run(["pack", "photos", out, "--workers", "0"]) == 2
    assert "lies in the data photos" in capsys.readouterr().err
    assert len(list(Path("photos").iterdir())) == 3
    assert run(["pack", "photos", "packed", "--workers", "0"]) == 0


def test_reproduce_needs_a_folder_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "table5", "--slurm", "--out", str(tmp_path)]
    inside = ("thesis.md", "pages/index.html", "slurm/array.sbatch")
    for foreign in ("photo.jpg", *(f"minutes/{one}" for one in inside)):
        (tmp_path / foreign).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / foreign).write_text("mine")
        assert run(words) == 2
        assert "holds other files" in capsys.readouterr().err
        assert (tmp_path / foreign).read_text() == "mine"
        (tmp_path / foreign).unlink()
        if foreign.count("/") > 1:
            (tmp_path / foreign).parent.rmdir()
    assert run(words) == 0
    assert run(words) == 0


def test_a_path_of_no_home_or_with_a_zero_byte_is_one_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert user_path("~/x") == Path.home() / "x"
    with pytest.raises(UserError, match="holds a zero byte"):
        user_path("a\0b")
    for words in ("pretrain ~no-such-user/x", "embed ~no-such-user/x scenes"):
        assert run(words.split()) == 2
        assert "~no-such-user, a home folder that is not known" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_and_not_made(tmp_path: Path) -> None:
    refuse_unwritable(tmp_path)
    refuse_unwritable(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"file/below cannot be written \(not a directory\)"):
        refuse_unwritable(tmp_path / "file" / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_maps_into_the_photos_are_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        Image.new("RGB", (32, 32), (90 * number, 5, 5)).save(tmp_path / f"{number}.jpg")
    assert run(["maps", str(trained), str(tmp_path), "--out", str(tmp_path)]) == 2
    assert f"lies in the data {tmp_path}" in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("command", ["knn", "linear", "finetune", "segment", "detect"])
def test_an_evaluation_into_its_data_is_refused(
    command: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = masks(tmp_path / "photos", [0, 1, 2, 3])
    words = [command, str(trained), "--data", str(data), "--out", str(data / "images" / "out")]
    assert "lies in the data" in refused(words, capsys)
    if command in ("segment", "detect"):
        assert "lies in the data" in refused([*words, "--dry-run"], capsys)
    assert not (data / "images" / "out").exists()


@pytest.mark.parametrize(
    ("words", "file"),
    [("pretrain scenes --limit 60 --out v", "config.yaml"), ("pack scenes v", "lewel-pack.json")],
)
def test_a_refusal_leaves_no_lock_in_a_foreign_folder(
    words: str,
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("v").mkdir()
    Path("v", file).write_text("a word of somebody's")
    assert run(words.split()) == 2
    assert file in capsys.readouterr().err
    assert [path.name for path in Path("v").iterdir()] == [file]


@pytest.mark.parametrize("deeper", ["", "/a/b"])
def test_a_file_in_the_place_of_a_folder_is_named(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str], deeper: str
) -> None:
    Path("file").write_text("mine")
    data = ["--data", "scenes", "--limit", "40"]
    for words in (
        ["report", str(trained), "--out", f"file{deeper}/x.html"],
        ["export", str(trained), "--to", "torch-export", "--out", f"file{deeper}/x.pt2"],
        ["maps", str(trained), "scenes", "--out", f"file{deeper}/x.png"],
        ["embed", str(trained), *data[1:], *CPU, "--out", f"file{deeper}/x.npz"],
        ["knn", str(trained), *data, *CPU, "--out", f"file{deeper}"],
        ["pretrain", "scenes", "--recipe", "scenes_demo", "--out", f"file{deeper}"],
        ["pack", "scenes", f"file{deeper}"],
        ["reproduce", "table9", "--out", f"file{deeper}"],
        ["compare", "scenes", "--out", f"file{deeper}", "--budget", "1m"],
        ["demo", "--out", f"file{deeper}"],
    ):
        assert run(words) == 2, words
        text = capsys.readouterr().err
        said = ("is a file", "cannot be written", f"folder file{deeper} does not exist")
        assert "file" in text and any(words in text for words in said), words
        assert "File exists" not in text and Path("file").read_text() == "mine"


def test_a_partial_download_of_another_program_is_kept(trained: Path) -> None:
    """Beside an output, and anywhere in a run folder that is opened again."""
    mine = [trained / "report.html.partial", trained / "notes" / "movie.partial"]
    ours = trained / "checkpoints" / "step-000000009.pt.lewel-partial"
    mine[1].parent.mkdir()
    for path in (*mine, ours):
        path.write_text("some bytes")
    assert run(["report", str(trained)]) == 0
    assert tiny_run(trained, "--epochs", "1") == 0
    assert all(path.read_text() == "some bytes" for path in mine) and not ours.exists()


def test_damaged_files_that_were_set_aside_are_kept(tmp_path: Path) -> None:
    for text in ("first", "second", "third"):
        (tmp_path / "card.json").write_text(text)
        set_aside(tmp_path / "card.json")
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {
        "card.json.damaged": "first",
        "card.json.damaged-2": "second",
        "card.json.damaged-3": "third",
    }
