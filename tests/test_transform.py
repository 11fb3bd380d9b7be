"""The preprocessing from Python: a backbone with its transform gives what `lewel embed` writes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lewel
from lewel.cli.main import run
from lewel.errors import UserError
from lewel.interop.lookup import read_card
from lewel.nn.backbone import build_resnet

SHAPES = [(32, 32), (20, 31), (33, 32), (64, 48), (100, 35), (7, 9), (250, 333)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("transformed")
    torch.manual_seed(0)
    torch.save(build_resnet("resnet10", stem="small", width=8).state_dict(), out / "small.pt")
    words = ["import", str(out / "small.pt"), "--image-size", "32", "--out", str(out / "run")]
    assert run(words) == 0
    return out / "run"


def make_images(folder: Path) -> list[Path]:
    draw = np.random.default_rng(0)
    folder.mkdir()
    for number, (height, width) in enumerate(SHAPES):
        noise = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
        kind = ("png", "jpg")[number % 2]
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 3 else 1  # lies on its side
        Image.fromarray(noise).save(folder / f"{number}.{kind}", exif=exif)
    Image.fromarray(noise[..., 0]).save(folder / "grey.png")
    return sorted(folder.iterdir())


def test_backbone_and_transform_give_the_embedding(trained: Path, tmp_path: Path) -> None:
    files = make_images(tmp_path / "photos")
    out = tmp_path / "features.npz"
    assert run(["embed", str(trained), str(tmp_path / "photos"), "--out", str(out)]) == 0
    with np.load(out) as stored:
        assert [Path(name).name for name in stored["path"]] == [file.name for file in files]
        expected = torch.from_numpy(stored["embedding"])
    backbone, transform = lewel.load_backbone(trained), lewel.transform(trained)
    assert backbone.transform == transform
    with torch.no_grad():
        for file, row in zip(files, expected, strict=True):
            pixels = transform(file)
            assert pixels.shape == (1, 3, 32, 32) and pixels.dtype == torch.float32
            assert torch.allclose(backbone(pixels)[0], row, atol=1e-5, rtol=0)
            with Image.open(file) as opened:  # Pillow's JPEG decoder is bit-equal
                assert torch.allclose(backbone(transform(opened))[0], row, atol=1e-5, rtol=0)
        assert torch.allclose(backbone(transform(files)), expected, atol=1e-5, rtol=0)


def test_the_card_names_the_preprocessing(trained: Path) -> None:
    card = read_card(trained / "backbone.safetensors")
    about = card["preprocessing"]
    assert (about["shorter_side"], about["centre_crop"]) == (37, 32)
    assert about["function"] == "lewel.transform" and "bilinear" in about["interpolation"]


def test_other_things_are_no_images(trained: Path, tmp_path: Path) -> None:
    transform = lewel.transform(trained)
    for wrong, message in (
        (torch.zeros(3, 8, 8), r"torch.float32 \(3, 8, 8\) is not an image"),
        (torch.zeros(8, 8, dtype=torch.uint8), "is not an image"),
        (tmp_path / "none.png", "none.png cannot be read as an image"),
    ):
        with pytest.raises(UserError, match=message):
            transform(wrong)
    with pytest.raises(UserError, match="was not written by lewel"):
        lewel.transform("resnet18")
