"""Weights of third-party checkpoints are matched by name, and loading never runs code."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torchvision import models

from lewel.errors import UserError
from lewel.interop.backbones import identify_resnet
from lewel.interop.lookup import read_card
from lewel.interop.weights import fill, load_weights, read_weights
from lewel.nn.backbone import build_resnet
from tests.conftest import randomise_statistics
from tests.running import tiny_run


def trained() -> dict[str, torch.Tensor]:
    net = build_resnet("resnet18", width=8)
    randomise_statistics(net)
    return net.state_dict()


@pytest.mark.parametrize(
    ("prefix", "container"),
    [
        ("", None),  # torchvision
        ("online_net.backbone.", "model"),  # LEWEL's authors
        ("module.encoder_q.", "state_dict"),  # MoCo
        ("backbone.", "state_dict"),  # lightly, solo-learn, MMPretrain
        ("student.backbone.net.", "method"),  # our own checkpoints
    ],
)
def test_weights_are_found_under_third_party_prefixes(
    tmp_path: Path, prefix: str, container: str | None
) -> None:
    state = trained()
    named = {prefix + name: value for name, value in state.items()}
    named |= {"fc.weight": torch.ones(10, 64), f"{prefix}extra": torch.ones(1)}
    teacher = "target_net.backbone." if prefix else "momentum."
    named |= {teacher + name: value * 0 for name, value in state.items()}
    torch.save({container: named, "epoch": 3} if container else named, tmp_path / "weights.pth")
    net = build_resnet("resnet18", width=8)
    load_weights(net, tmp_path / "weights.pth")
    for name, value in net.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_torchvisions_resnet_has_the_same_features(tmp_path: Path) -> None:
    theirs = models.resnet18(num_classes=5)
    randomise_statistics(theirs)
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    ours = build_resnet("resnet18")
    load_weights(ours, tmp_path / "weights.safetensors")
    theirs.fc = torch.nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch HACKED",)


def test_a_file_that_would_run_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pth")
    with open(tmp_path / "evil2.pth", "wb") as file:
        pickle.dump(Evil(), file, protocol=2)
    for name in ("evil.pth", "evil2.pth"):
        with pytest.raises(UserError, match=r"\(posix.system\) and could run code"):
            read_weights(tmp_path / name)
    assert not (tmp_path / "HACKED").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("layer4.0.conv1.weight"), "lacks 1 of the network's"),
        (lambda state: state.update({"conv1.weight": torch.ones(3)}), "of another shape"),
        (lambda state: state.clear(), "holds no tensors"),
    ],
)
def test_weights_that_do_not_fit_are_refused_with_the_reason(
    tmp_path: Path, change: object, message: str
) -> None:
    state = trained()
    change(state)  # type: ignore[operator]
    torch.save(state, tmp_path / "weights.pt")
    with pytest.raises(UserError, match=message):
        load_weights(build_resnet("resnet18", width=8), tmp_path / "weights.pt")


def test_other_files_are_refused_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "text.safetensors").write_text("hello")
    (tmp_path / "text.pth").write_text("hello\n" * 9)
    (tmp_path / "picture.pth").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    names = ("empty.pth", "text.safetensors", "absent.pth", "text.pth", "picture.pth")
    for name in names:
        with pytest.raises(UserError, match=r"cannot be read|does not exist"):
            read_weights(tmp_path / name)


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_of_student_and_teacher_the_student_is_used(tmp_path: Path, kind: str) -> None:
    state, file = trained(), tmp_path / f"moco.{kind}"
    named = {f"module.encoder_k.{name}": value * 0 for name, value in state.items()}
    named |= {f"module.encoder_q.{name}": value for name, value in state.items()}
    if kind == "pth":
        torch.save({"state_dict": named}, file)
    else:
        save_file({name: value.contiguous() for name, value in named.items()}, file)
    net = build_resnet("resnet18", width=8)
    load_weights(net, file)
    assert torch.equal(net.conv1.weight, state["conv1.weight"])


def test_a_run_starts_from_the_weights_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert tiny_run(first, "--epochs", "1") == 0
    flags = ("--init", str(first), "--seed", "5", "--optim.lr", "1e-12", "--epochs", "1")
    assert tiny_run(second, *flags) == 0
    one, two = read_weights(first), read_weights(second)
    weights = [name for name in one if name.endswith("weight")]
    assert all(torch.allclose(one[name], two[name], atol=1e-6) for name in weights)
    (first / "backbone.safetensors").rename(tmp_path / "away")  # not needed to resume
    assert tiny_run(second, *flags[:-1], "2") == 0
    (tmp_path / "away").rename(first / "backbone.safetensors")
    assert tiny_run(tmp_path / "third", "--init", str(first), "--width", "16") == 2
    assert "of another shape" in capsys.readouterr().err


def test_a_narrow_resnet_is_identified_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    state = build_resnet("resnet18", width=8).state_dict()
    assert identify_resnet(state, "x.pth")[:3] == ("resnet18", "imagenet", 8)
    state.pop("layer4.0.conv1.weight")
    with pytest.raises(UserError, match="is not a complete ResNet"):
        identify_resnet(state, "x.pth")
    assert not recwarn.list


@pytest.mark.parametrize(
    "change",
    [
        {"width": "8"},
        {"image_size": "32"},
        {"mean": [0.5, 0.5]},
        {"mean": [123.0, 117.0, 104.0]},
        {"std": [-1, -1, -1]},
        {"std": "x"},
        {"stem": "x"},
        {"backbone": ["resnet10"]},
    ],
)
def test_metadata_of_a_wrong_kind_are_damaged(tmp_path: Path, change: dict[str, object]) -> None:
    card = {"backbone": "resnet10", "stem": "small", "width": 8, "image_size": 32}
    card |= {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}
    file = tmp_path / "backbone.safetensors"
    save_file({"a": torch.ones(1)}, file, {"lewel": json.dumps(card)})
    assert read_card(file) == card
    save_file({"a": torch.ones(1)}, file, {"lewel": json.dumps(card | change)})
    with pytest.raises(UserError, match="is damaged"):
        read_card(file)


def test_weights_without_plain_values_are_refused() -> None:
    net = models.resnet18()
    tensors = net.state_dict()
    for value in (tensors["conv1.weight"].to_sparse(), tensors["conv1.weight"].to("meta")):
        with pytest.raises(UserError, match=r"conv1.weight without plain values"):
            fill(net, {**tensors, "conv1.weight": value}, "a.pth")
