"""The one way to resize an image: bilinear, antialiased, within a grey level of Pillow's."""

import math

import torch
import torch.nn.functional as F

# After so many pixels the weights of a filter, or the pairs of both filters' weights, repeat: with
# few of them many sums end on a half. Found by trial, over a thousand million values.
_FEW, _FEW_PAIRS = 8, 512


def resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """uint8 (3, H, W) -> (3, height, width), fastest on an (H, W, 3) image permuted to (3, H, W).

    Torch rounds to whole grey levels after the rows and after the columns, as Pillow does, each
    with its own precision. Where sums end on a half they may part both times: there float32, which
    is four times slower, rounds once and so keeps within one grey level. Floats are not rounded.
    """
    old_height, old_width = image.shape[1:]
    if (height, width) == (old_height, old_width):
        return image
    # Interleaved channels resize up to twice as fast as planes (and cost only a copy to make).
    whole = image[None].contiguous(memory_format=torch.channels_last)
    steps = height // math.gcd(height, old_height), width // math.gcd(width, old_width)
    many = min(steps) > _FEW and math.prod(steps) > _FEW_PAIRS
    if many or image.is_floating_point():
        return F.interpolate(whole, (height, width), mode="bilinear", antialias=True)[0]
    exact = F.interpolate(whole.float(), (height, width), mode="bilinear", antialias=True)[0]
    return exact.round_().to(torch.uint8)
