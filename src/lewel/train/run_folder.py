"""The run folder: its files, and a lock against a second process."""

import hashlib
import json
from collections.abc import Container
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from lewel.errors import RunError, UserError
from lewel.files import PARTIAL, lock, write_atomically


class RunFolder:
    """The paths of all files in a run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.backbone = path / "backbone.safetensors"
        self.heads = path / "heads.safetensors"
        self.card = path / "card.json"
        self.corrupt_images = path / "corrupt_images.jsonl"
        self.views = path / "views.png"
        self._lock: TextIO | None = None

    def open(self) -> None:
        """Create the folder and lock it for this process."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path} is a file, expected a folder.")
        known = self.config.exists() or any(self.checkpoints.glob("step-*.pt"))
        found = self.path.iterdir() if self.path.exists() else iter(())
        if not known and any(map(_is_unrelated, found)):
            raise UserError(
                f"--out {self.path} holds other files and no run: choose a new or empty folder."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "w")  # noqa: SIM115 (held until the process ends)
        except OSError as error:
            raise UserError(f"--out {self.path} cannot be written: {error.strerror}.") from None
        busy = f"Another process is training in {self.path}: wait for it, or choose another --out."
        if (why := lock(self._lock, busy)) is not None:  # train all the same
            print(f"{self.path} cannot be locked ({why}): start only one run in it.")
        else:
            for partial in self.path.rglob(f"*{PARTIAL}"):  # left by a kill
                partial.unlink()
        if (old := self.path / "bad_images.jsonl").exists():  # version 0.1's name
            old.rename(self.corrupt_images)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def export(
        self,
        backbone: nn.Module,
        head: nn.Module,
        card: dict[str, Any],
        only: Container[Path] | None = None,
    ) -> None:
        """Write the backbone under its own state_dict keys, the head, and card.json.

        `only` these files, where it is given.
        """
        card = {**card, "of_backbone": digest_of(backbone)}
        about = {"lewel": json.dumps(card)}
        for path, module in ((self.backbone, backbone), (self.heads, head)):
            if only is None or path in only:
                write_weights(path, module, about)
        if only is None or self.card in only:
            text = json.dumps(card, indent=2) + "\n"
            write_atomically(self.card, lambda aside: aside.write_text(text, encoding="utf-8"))


def digest_of(module: nn.Module) -> str:
    """A hash of all tensors: heads carry that of the backbone that they were trained with."""
    found = hashlib.sha256()
    for name, value in module.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _is_unrelated(path: Path) -> bool:
    """Whether a file was not written by a run that was killed at its start."""
    return path.name != ".lock" and path.suffix != PARTIAL


def write_weights(path: Path, module: nn.Module, about: dict[str, str]) -> None:
    """Write all tensors of a module to a safetensors file, atomically."""
    tensors: dict[str, Tensor] = {
        name: value.detach().to("cpu", memory_format=torch.contiguous_format)
        for name, value in module.state_dict().items()
    }
    try:
        write_atomically(path, lambda aside: save_file(tensors, aside, metadata=about))
    except SafetensorError as error:
        raise RunError(f"{path} could not be written ({error}): is the disk full?") from error
