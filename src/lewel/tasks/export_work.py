"""What every export works with: a network, its file, and the comparison after loading back."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lewel.config.commands import ExportConfig
from lewel.errors import RunError
from lewel.interop.backbones import Network


@dataclass
class Work:
    """A network in eval mode and the file to write."""

    what: str
    net: nn.Module
    network: Network
    path: Path
    config: ExportConfig

    def tensors(self) -> dict[str, Tensor]:
        return {name: value.contiguous() for name, value in self.net.state_dict().items()}

    def images(self, count: int = 2) -> Tensor:
        """Random images (count, 3, S, S) for the comparison."""
        size = self.network.image_size
        return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))

    def compare(self, found: list[Tensor], expected: list[Tensor], close: float) -> str:
        """Compare features with ours -> their difference as text; a file too far off is deleted."""
        far = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
        scale = max(1.0, *(float(value.abs().max()) for value in expected))
        if not far <= close * scale:
            self.path.unlink()
            raise RunError(
                f"{self.path}, loaded back, gives features that differ by {far:.2g}, more than "
                f"{close * scale:.2g}: it was removed."
            )
        return "bit for bit" if far == 0 else f"to {far:.1g}"

    def compare_tensors(self, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
        """Compare tensors with ours; delete the file if they differ."""
        same = found.keys() == expected.keys()
        if not same or not all(torch.equal(found[name], expected[name]) for name in expected):
            self.path.unlink()
            raise RunError(f"{self.path}, loaded back, has different tensors: it was removed.")
