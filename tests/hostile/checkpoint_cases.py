"""Third-party checkpoints as other projects write them, and as they get damaged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lewel.nn.backbone import build_resnet
from tests.hostile.case import Case, case
from tests.hostile.world import EVALUATED, LEWEL

PLACES = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
IMPORT = "import given.pth --out new"
USES = (
    IMPORT,
    f"knn given.pth --data {{photos}} --out new {EVALUATED}",
    f"pretrain {{plain}} --out new {LEWEL} --epochs 1 --init given.pth",
)


def weights(stem: str = "imagenet") -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return build_resnet("resnet10", stem=stem, width=8).state_dict()  # type: ignore[arg-type]


def sequential(prefix: str) -> dict[str, torch.Tensor]:
    """The keys of nn.Sequential(*list(resnet.children())[:-1]), as lightly's examples have them."""
    out = {}
    for name, value in weights().items():
        first, _, rest = name.partition(".")
        out[f"{prefix}{PLACES[first]}.{rest}"] = value
    return out


def given(content: Callable[[], Any]) -> Callable[[Path], None]:
    return lambda place: torch.save(content(), place / "given.pth")


def _changed(name: str, value: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {**weights("medium"), name: value}


def _truncated(place: Path) -> None:
    torch.save(weights("medium"), place / "given.pth")
    content = (place / "given.pth").read_bytes()
    (place / "given.pth").write_bytes(content[: len(content) // 2])


SEQUENTIAL = (
    "backbone.",
    "",
    "module.backbone.",
    "student_backbone.",
    "backbone_momentum.",
    "model.backbone.",
    "online_network.backbone.",
)
FIRST = "conv1.weight"
REFUSED: dict[str, Callable[[], Any]] = {
    "a tensor of another shape": _changed(FIRST, torch.zeros(9, 3, 3, 3)),
    "a scalar": _changed(FIRST, torch.tensor(0.0)),
    "an empty tensor": _changed(FIRST, torch.zeros(0)),
    "integers": _changed(FIRST, torch.zeros(8, 3, 3, 3, dtype=torch.int32)),
    "complex numbers": _changed(FIRST, torch.zeros(8, 3, 3, 3, dtype=torch.complex64)),
    "nan": _changed(FIRST, torch.full((8, 3, 3, 3), float("nan"))),
    "inf": _changed("layer1.0.conv1.weight", torch.full((8, 8, 3, 3), float("inf"))),
    "nothing": dict,
    "a list": lambda: [1, 2],
    "a number": lambda: 101,
    "a tensor": lambda: torch.zeros(3),
    "words": lambda: {"state_dict": "none"},
    "an optimiser alone": lambda: {"optimizer": {"lr": 0.1}},
    "a linear layer": lambda: {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)},
    "half the tensors": lambda: dict(list(weights("medium").items())[:20]),
    "keys that are numbers": lambda: {1: torch.zeros(2)},
    "a state_dict in itself": lambda: {"state_dict": {"state_dict": {}}},
}


def cases() -> list[Case]:
    found = [
        case("refused", line, f"a checkpoint of {why}", prepare=given(content))
        for why, content in REFUSED.items()
        for line in USES
    ]
    found += [case("refused", line, "half a file", prepare=_truncated) for line in USES]
    for name, content in (
        ("given.pth", b"101"),
        ("given.pth", b"PK\x03\x04"),
        ("given.pth", b"\x80\x02."),
    ):
        write = lambda place, name=name, content=content: (  # noqa: E731
            (place / name).write_bytes(content) and None
        )
        found.append(case("refused", IMPORT, f"a file of {content!r}", prepare=write))
        found.append(case("refused", USES[1], f"a file of {content!r}", prepare=write))
    for prefix in SEQUENTIAL:
        prepare = given(lambda prefix=prefix: {"state_dict": sequential(prefix)})  # type: ignore[misc]
        why = f"lightly's keys below {prefix!r}"
        found.append(case("runs", IMPORT, why, prepare=prepare, says="resnet10"))
    return found
