"""What a method is given of a batch: the crops of its images, and where they were cut."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor


class Views:
    """The crops of B images on the device, the large ones first.

    It reads as the sequence of its crops: `one, two = views`. The other parts are tensors on the
    same device, one for each crop.
    """

    def __init__(
        self,
        crops: Sequence[Tensor],
        boxes: Sequence[Tensor],
        flips: Sequence[Tensor],
        indices: Tensor,
        total: int,
    ) -> None:
        self.crops = list(crops)  # float32 (B, 3, S, S) each; small crops have a smaller S
        self.boxes = list(boxes)  # float32 (B, 4) each: top, left, height, width from 0 to 1
        self.flips = list(flips)  # bool (B,) each
        self.indices = indices  # int64 (B,), of the images in the data
        self.total = total  # images in the data

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.crops)

    def __len__(self) -> int:
        return len(self.crops)

    def __getitem__(self, view: int) -> Tensor:
        return self.crops[view]

    def with_crops(self, crops: Sequence[Tensor]) -> "Views":
        """The same with other tensors in the place of its crops."""
        return Views(crops, self.boxes, self.flips, self.indices, self.total)


def whole_views(crops: Sequence[Tensor], total: int | None = None) -> Views:
    """Crops (B, 3, S, S) as if each were its whole image, unflipped; for noise and for tests."""
    first = crops[0]
    batch = len(first)
    box = torch.tensor([0.0, 0.0, 1.0, 1.0], device=first.device).expand(batch, 4)
    flip = torch.zeros(batch, dtype=torch.bool, device=first.device)
    indices = torch.arange(batch, device=first.device)
    count = len(crops)
    return Views(crops, [box] * count, [flip] * count, indices, total or batch)


def noise_views(
    batch: int, sizes: Sequence[int], draw: Callable[..., Tensor] = torch.randn
) -> Views:
    """A batch of noise with one crop of each size (side in pixels), for estimates of a step."""
    return whole_views([draw(batch, 3, size, size) for size in sizes])
