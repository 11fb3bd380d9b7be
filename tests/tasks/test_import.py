"""Import of third-party checkpoints."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision import models

from lewel.cli.main import run
from lewel.interop.backbones import find_network, open_backbone
from lewel.interop.export import to_detectron2
from lewel.nn.backbone import build_resnet
from tests.conftest import randomise_statistics

State = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def theirs() -> models.ResNet:
    net = models.resnet18(num_classes=5)
    randomise_statistics(net)
    net.fc = torch.nn.Identity()
    return net.eval()


def under(prefix: str) -> Callable[[State], State]:
    return lambda state: {prefix + name: value for name, value in state.items()}


def numbered(prefix: str, state: State, skipped: int = 2) -> State:
    """The names in nn.Sequential(*list(resnet.children())[:-1]); two children have no tensors."""
    parts = {"conv1": 0, "bn1": 1} | {f"layer{n}": 1 + skipped + n for n in (1, 2, 3, 4)}
    split = ((name.partition("."), value) for name, value in state.items())
    return {f"{prefix}{parts[first]}.{rest}": value for (first, _, rest), value in split}


def with_teacher(student: str, teacher: str) -> Callable[[State], State]:
    """Both networks of BYOL as lightly has them, and a projector."""

    def rename(state: State) -> State:
        zeros = {name: torch.zeros_like(value) for name, value in state.items()}
        projector = {"projection_head.layers.0.weight": torch.ones(4, 512)}
        return numbered(teacher, zeros) | numbered(student, state) | projector

    return rename


def with_fpn(state: State) -> State:
    lateral = {"backbone.fpn_lateral2.weight": torch.ones(2), "proposal_generator.w": torch.ones(1)}
    return under("backbone.bottom_up.")(to_detectron2(state)) | lateral


def with_c4(state: State) -> State:
    """The last stage in the heads, with the norm that follows it in the paper's detector."""
    named = under("backbone.")(to_detectron2(state))
    moved = {n.replace("backbone.res5", "roi_heads.res5"): v for n, v in named.items()}
    return moved | {"roi_heads.res5.norm.weight": torch.ones(2)}


@pytest.mark.parametrize(
    ("container", "rename"),
    [
        ("state_dict", under("module.encoder_q.")),  # MoCo
        ("model", under("module.online_net.backbone.")),  # LEWEL's authors
        ("state_dict", under("module.base_encoder.")),  # MoCo v3
        ("state_dict", under("backbone.")),  # mmseg, mmpretrain, lightly, solo-learn
        ("state_dict", under("model.")),
        ("state_dict", under("student.backbone.")),
        ("state_dict", lambda state: numbered("backbone.", state)),  # lightly
        ("state_dict", lambda state: numbered("", state, skipped=1)),
        ("state_dict", with_teacher("student_backbone.", "teacher_backbone.")),
        ("state_dict", with_teacher("backbone.", "backbone_momentum.")),
        ("model", to_detectron2),
        ("model", with_fpn),
        ("model", with_c4),
    ],
)
def test_a_third_party_checkpoint_becomes_a_backbone(
    container: str, rename: Callable[[State], State], capsys: pytest.CaptureFixture[str]
) -> None:
    net = theirs()
    torch.save({container: rename(dict(net.state_dict())), "epoch": 1}, "theirs.pth.tar")
    assert run(["import", "theirs.pth.tar", "--image-size", "64"]) == 0
    assert "resnet18, imagenet stem, width 64" in capsys.readouterr().out
    folder = Path("runs/theirs")
    card = json.loads((folder / "card.json").read_text())
    assert card["backbone"] == "resnet18" and card["channels"] == 512
    network = find_network(folder)
    assert network.image_size == 64
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(open_backbone(folder, network).net(images), net(images))


def test_other_commands_accept_an_imported_backbone(capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(build_resnet("resnet10", stem="small", width=8).state_dict(), "small.pt")
    assert run(["import", "small.pt", "--image-size", "16", "--out", "mine"]) == 0
    assert "can't tell the stride of its 3x3 stem" in capsys.readouterr().out
    flags = ["--limit", "8", "--workers", "0", "--accelerator", "cpu"]
    assert run(["embed", "mine", "scenes", *flags]) == 0
    assert np.load("mine/features.npz")["embedding"].shape == (8, 64)
    assert run(["import", "small.pt", "--out", "mine"]) == 2
    assert "--out mine already exists: choose a new folder" in capsys.readouterr().err
    assert run(["import", "mine/backbone.safetensors", "--out", "other"]) == 2
    assert "was written by lewel" in capsys.readouterr().err
    assert run(["import", "small.pt", "--stem", "medium", "--out", "other"]) == 0
    assert json.loads(Path("other/card.json").read_text())["stem"] == "medium"


def test_missing_tensors_are_listed_unless_partial(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = theirs().state_dict()
    del state["layer4.1.bn2.running_var"], state["layer2.0.conv1.weight"]
    torch.save(state, "part.pth")
    assert run(["import", "part.pth"]) == 2
    said = capsys.readouterr().err
    assert "lacks 2 tensors of resnet18" in said
    assert "layer4.1.bn2.running_var" in said and "layer2.0.conv1.weight" in said
    assert run(["import", "part.pth", "--backbone", "resnet18"]) == 2
    assert "lacks 2 of the network's" in capsys.readouterr().err
    assert not Path("runs").exists()
    assert run(["import", "part.pth", "--backbone", "resnet18", "--partial"]) == 0
    said = capsys.readouterr().out
    assert "2 of its 120 tensors were not in part.pth" in said and "layer2.0.conv1.weight" in said
    torch.save({"other": torch.ones(1)}, "none.pth")
    assert run(["import", "none.pth", "--backbone", "resnet18", "--partial"]) == 2


def test_tensors_of_another_shape_are_named_and_the_hint_works(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = build_resnet("resnet10", stem="small", width=8).state_dict()
    state["layer2.0.conv1.weight"] = torch.ones(16, 4, 3, 3)
    torch.save(state, "other.pth")
    assert run(["import", "other.pth"]) == 2
    said = capsys.readouterr().err
    assert "lacks" not in said and "1 tensors have another shape than resnet10's" in said
    assert "layer2.0.conv1.weight is (16, 4, 3, 3) and not (16, 8, 3, 3)" in said
    assert "--backbone" in said and "--partial" in said
    assert run(["import", "other.pth", "--backbone", "resnet10", "--partial"]) == 0
    assert "1 of its" in capsys.readouterr().out
    torch.save({"a.weight": torch.ones(2), "b.weight": torch.ones(2)}, "what.pth")
    assert run(["import", "what.pth"]) == 2
    assert "what.pth is not a known ResNet (it has a.weight, b.weight)" in capsys.readouterr().err


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(
    value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    state = build_resnet("resnet10", stem="small", width=8).state_dict()
    state["layer1.0.conv1.weight"][0, 0, 0, 0] = value
    torch.save(state, "nan.pth")
    for words in (["import", "nan.pth"], ["embed", "nan.pth", "scenes", "--limit", "2"]):
        assert run(words) == 2
        said = capsys.readouterr().err
        assert "1 tensors with NaN or infinite values (layer1.0.conv1.weight)" in said
    assert not Path("runs/nan").exists()


@pytest.mark.parametrize("content", [b"hello, this is text", b"e\x01\x02\x03", b"\x80\x02K."])
def test_a_file_that_is_no_checkpoint_gives_a_sentence(
    content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text.pth").write_bytes(content)
    assert run(["import", "text.pth"]) == 2
    assert (
        "text.pth cannot be read as a checkpoint: it is not a file of tensors that torch wrote."
        in " ".join(capsys.readouterr().err.split())
    )


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch HACKED",)


@pytest.mark.parametrize("file", ["evil.pth", "evil.pkl", "zip.pkl", "evil.safetensors"])
@pytest.mark.parametrize("command", [["import"], ["export", "--to", "onnx"]])
def test_a_pickle_that_would_run_code_is_refused(
    file: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if file.startswith("zip"):
        torch.save({"model": Evil()}, file)
    else:
        Path(file).write_bytes(pickle.dumps({"model": Evil()}, protocol=2))
    assert run([command[0], file, *command[1:]]) == 2
    said = capsys.readouterr().err
    assert "could run code: not loaded" in said or "cannot be read as safetensors" in said
    assert not Path("HACKED").exists() and not Path("runs").exists()


def test_detectron2s_pickle_of_arrays_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arrays = {"stem.conv1.weight": np.ones((64, 3, 7, 7), np.float32)}
    Path("R-50.pkl").write_bytes(pickle.dumps({"model": arrays, "__author__": "me"}))
    assert run(["import", "R-50.pkl"]) == 2
    assert "is a pickle, which could run code" in capsys.readouterr().err
