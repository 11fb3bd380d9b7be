"""`lewel bench data` on a few small files."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lewel.bench.data import file_paths, find_pack, same_images
from lewel.cli.main import run
from lewel.data.sources.open import open_data

READERS = {
    "lewel, files, crop",
    "lewel, files, all",
    "torchvision, all",
    "torchvision, all, its own blur",
    "torchvision, crop",
    "lightly, all",
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "photos"
    folder.mkdir()
    numbers = np.random.default_rng(0)
    for index in range(4):
        pixels = numbers.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.jpg")
    return folder


def bench(photos: Path, out: Path, *more: str) -> dict[str, object]:
    words = ["bench", "data", str(photos), "--image-size", "32", "--rounds", "2"]
    threads = torch.get_num_threads()
    assert run([*words, "--out", str(out), *more]) == 0
    torch.set_num_threads(threads)
    result: dict[str, object] = json.loads((out / "data.json").read_text())
    return result


def test_every_implementation_is_timed(photos: Path, tmp_path: Path) -> None:
    result = bench(photos, tmp_path, "--markdown", str(tmp_path / "p.md"))
    readers = result["readers"]
    assert set(readers) == READERS
    assert readers["torchvision, all"]["speedup"] == 1
    assert all(row["images_per_second"] > 0 for row in readers.values())
    assert "| lewel, files, crop |" in (tmp_path / "p.md").read_text()
    with Image.open(tmp_path / "data.png") as picture:
        assert picture.format == "PNG"


def test_packed_data_is_timed_too(photos: Path, tmp_path: Path) -> None:
    result = bench(photos, tmp_path, "--packed", str(photos))  # any data of the same images
    assert set(result["readers"]) == READERS | {"lewel, packed, crop", "lewel, packed, all"}
    assert find_pack(str(photos)) is None
    beside = photos.parent / "photos-packed"
    beside.mkdir()
    assert find_pack(f"{photos}/") == str(beside)
    beside.rmdir()


def test_packed_data_of_other_images_is_refused(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    assert run(["bench", "data", str(photos), "--packed", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "lacks 4 of the 4 images" in message and "the packed data of the same folder" in message
    folder = tmp_path / "moving"
    folder.mkdir()
    Image.new("RGB", (8, 8)).save(folder / "one.gif")
    assert run(["bench", "data", str(folder)]) == 2
    assert "ImageFolder does not read" in capsys.readouterr().err


def test_the_same_images_are_read_from_packed_data(photos: Path, tmp_path: Path) -> None:
    assert run(["pack", str(photos), str(tmp_path / "out"), "--workers", "0"]) == 0
    source = open_data(str(photos), image_size=32, limit=2).unlabelled
    shards = open_data(str(tmp_path / "out"), image_size=32).unlabelled
    same = same_images(source, shards, "out")
    assert [same.describe(i) for i in range(2)] == [source.describe(i) for i in range(2)]


def test_limited_sources_name_their_own_files(photos: Path) -> None:
    source = open_data(str(photos), image_size=32, limit=2).unlabelled
    paths = file_paths(source)
    assert paths is not None and len(paths) == 2
    for index, path in enumerate(paths):
        assert Path(path).name == Path(source.describe(index)).name
