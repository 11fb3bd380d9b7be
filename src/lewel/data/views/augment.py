"""Photometric augmentation of a batch on the training device, drawn for each sample.

Every operation is a pure function on float32 images (B, 3, H, W) in [0, 1] with one value per
sample (B,) or one for all. It agrees with torchvision's operation of the same name on float
tensors.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from lewel.data.views import crop

Number = torch.Tensor | float
Out = torch.Tensor | None  # the output tensor, if not a new one; may be the images

_LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601, with torchvision's digits
_CHUNK_VALUES = 1 << 19  # so many float32 and their temporaries fit into a CPU cache
_LARGE_IMAGE = 1 << 17  # from so many values (210 px) one image at a time is faster on a CPU
_BLUR_REACH = 5  # in sigmas; weights beyond it are below 1e-6
_BLUR_BLOCK = 32  # rows of the blur matrix that are multiplied at once, about


def augment_colours(
    pixels: torch.Tensor, draws: torch.Tensor, mean: Sequence[float], std: Sequence[float]
) -> torch.Tensor:
    """Jitter, grey, blur, solarise, normalise: uint8 (B, 3, S, S), CPU (B, 11) -> (B, 3, S, S)."""
    out = torch.empty(pixels.shape, dtype=torch.float32, device=pixels.device)
    batch, values = len(pixels), math.prod(pixels.shape[1:])
    on_cpu = pixels.device.type == "cpu"
    one_by_one = on_cpu and values >= _LARGE_IMAGE
    size = 1 if one_by_one else _CHUNK_VALUES // values if on_cpu else max(1, batch)
    for start in range(0, batch, size):
        chunk = slice(start, start + size)
        images = out[chunk].copy_(pixels[chunk]).mul_(1 / 255)  # a division takes twice as long
        if one_by_one:
            augmented = _augment_one(images, draws[chunk])
            normalise(augmented.expand_as(images), mean, std, out=images)
        else:
            _augment_in_place(images, _plan(draws[chunk], pixels.device))
            normalise(images, mean, std, out=images)
    return out


def adjust_brightness(images: torch.Tensor, factor: Number, out: Out = None) -> torch.Tensor:
    """Blend each image with black: (B, 3, H, W), (B,) -> (B, 3, H, W)."""
    return _in_range(torch.mul(images, _per_sample(factor), out=out), factor)


def adjust_contrast(images: torch.Tensor, factor: Number, out: Out = None) -> torch.Tensor:
    """Blend each image with its mean grey: (B, 3, H, W), (B,) -> (B, 3, H, W)."""
    mean = _luma(images).mean((1, 2, 3), keepdim=True)
    return _in_range(torch.lerp(mean, images, _per_sample(factor), out=out), factor)


def adjust_saturation(images: torch.Tensor, factor: Number, out: Out = None) -> torch.Tensor:
    """Blend each image with its grey version: (B, 3, H, W), (B,) -> (B, 3, H, W)."""
    return _in_range(torch.lerp(_luma(images), images, _per_sample(factor), out=out), factor)


def adjust_hue(images: torch.Tensor, factor: Number, out: Out = None) -> torch.Tensor:
    """Rotate the hue by -0.5 to 0.5 of the colour circle: (B, 3, H, W), (B,) -> (B, 3, H, W)."""
    red, green, blue = images.unbind(1)
    low = torch.minimum(red, green)
    torch.minimum(low, blue, out=low)
    chroma = torch.maximum(red, green)
    torch.maximum(chroma, blue, out=chroma).sub_(low)
    # The hue in sixths of the circle, 0 to 6, from the channel that is lowest: 1, 3, 5 opposite to
    # blue, red, green. Masks are float and chosen by lerp: bool masks are 7 times slower on a CPU.
    is_low, other = torch.eq(red, low, out=torch.empty_like(low)), blue - green
    hue = (green - red).lerp_(other.add_(chroma, alpha=2), is_low)
    torch.eq(green, low, out=is_low)
    hue.lerp_(torch.sub(red, blue, out=other).add_(chroma, alpha=4), is_low)
    hue.div_(chroma.clamp_min(torch.finfo(images.dtype).tiny))  # 1 less than the hue
    # A channel is at its maximum within 1 of its own hue (0, 2, 4 for red, green, blue) and at its
    # minimum beyond 2. The own hue is shifted by whole turns to lie nearest to the middle of the
    # rotated hues, so that no modulo is needed.
    turn = 6 * (factor if isinstance(factor, float) else factor[:, None])
    own = torch.arange(0, 6, 2, device=images.device, dtype=images.dtype)
    own = own - turn + 6 * ((3 + turn - own) / 6).round()
    distance = (hue[:, None] - (own - 1)[..., None, None]).abs_()  # 0 to 6
    fullness = distance.sub_(3).abs_().clamp_(1, 2)  # 1 more than the fraction of the chroma
    return torch.addcmul(low.sub_(chroma)[:, None], fullness, chroma[:, None], out=out)


def to_grey(images: torch.Tensor) -> torch.Tensor:
    """The luma in all three channels: (B, 3, H, W) -> (B, 3, H, W)."""
    return _luma(images).expand_as(images).contiguous()


def blur_kernel_size(size: int) -> int:
    """A tenth of the image, made odd, at least 3: BYOL's 23 for an image of 224."""
    return max(3, size // 10 | 1)


def gaussian_blur(images: torch.Tensor, sigma: torch.Tensor, kernel_size: int) -> torch.Tensor:
    """Blur with reflected borders: (B, C, H, W), (B,) in pixels -> (B, C, H, W)."""
    height, width = images.shape[-2:]
    columns = _blur_matrix(sigma, kernel_size, width)
    rows = columns if height == width else _blur_matrix(sigma, kernel_size, height)
    across, down = torch.empty_like(images), torch.empty_like(images)
    # Autocast would compute the products in half precision, which is coarser than a grey level.
    with torch.autocast(images.device.type, enabled=False):
        lines, blurred = images.flatten(1, 2), across.flatten(1, 2)
        for block, near, here in _blocks(columns, kernel_size):
            torch.bmm(lines[..., near], block.mT, out=blurred[..., here])
        for block, near, here in _blocks(rows, kernel_size):
            torch.matmul(block[:, None], across[..., near, :], out=down[..., here, :])
    return down


def solarise(images: torch.Tensor) -> torch.Tensor:
    """Invert what is brighter than a half: (B, 3, H, W) -> (B, 3, H, W)."""
    return torch.minimum(images, 1 - images)


def normalise(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    out: Out = None,
) -> torch.Tensor:
    """Subtract the channels' mean, divide by their deviation: (B, 3, H, W) -> (B, 3, H, W)."""
    out = torch.empty_like(images) if out is None else out
    channels = zip(images.unbind(1), out.unbind(1), mean, std, strict=True)
    for channel, target, centre, deviation in channels:
        # shift + channel / deviation in one pass; a scalar on the host needs no synchronisation
        shift = torch.tensor(-centre / deviation, dtype=images.dtype)
        torch.sub(shift, channel, alpha=-1 / deviation, out=target)
    return out


_JITTER = {
    crop.BRIGHTNESS: adjust_brightness,
    crop.CONTRAST: adjust_contrast,
    crop.SATURATION: adjust_saturation,
    crop.HUE: adjust_hue,
}


def _augment_one(image: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Jitter, grey, blur and solarise one image: (1, 3, S, S), (1, 11) -> (1, 3 or 1, S, S).

    For large images this is faster than batched operations.
    """
    draw = draws[0].tolist()
    for operation in draw[crop.ORDER]:
        if operation != crop.SKIP:
            column = int(operation)
            _JITTER[column](image, draw[column], out=image)
    if draw[crop.GREY]:
        image = _luma(image)  # one channel, expanded to three later
    if draw[crop.BLUR_SIGMA]:
        support = 2 * math.ceil(_BLUR_REACH * draw[crop.BLUR_SIGMA]) + 1
        kernel_size = min(support, blur_kernel_size(image.shape[-1]))
        image = gaussian_blur(image, draws[:, crop.BLUR_SIGMA], kernel_size)
    return solarise(image) if draw[crop.SOLARISE] else image


class _Plan(NamedTuple):
    """The operations of each sample of a batch, on the device."""

    blends: list[torch.Tensor]  # per round: factor, weight of mean grey, weight of grey: (3, B)
    hues: list[torch.Tensor]  # the samples (n,) whose hue changes before each round, and at the end
    turn: torch.Tensor  # of the hue (B,)
    sigma: torch.Tensor  # (B,)
    grey: torch.Tensor  # the samples (n,)
    blur: torch.Tensor
    solarise: torch.Tensor


def _plan(draws: torch.Tensor, device: torch.device) -> _Plan:
    """Read the draws (B, 11) on the host, so that the host never waits for the device.

    Three of the four operations are blends. Three rounds of blending cover every order: the hue of
    a sample is changed after as many rounds as the sample has blends before it.
    """
    table = draws.numpy().T
    order = table[crop.ORDER].astype(np.int64)  # (4, B)
    is_blend = (order != crop.SKIP) & (order != crop.HUE)
    blend = np.take_along_axis(order, np.argsort(~is_blend, axis=0, kind="stable"), axis=0)[:3]
    factor = np.take_along_axis(table, blend.clip(0), axis=0)
    factor = np.where((blend == crop.SKIP) | (blend == crop.HUE), np.float32(1), factor)
    numbers = np.zeros((11, draws.shape[0]), np.float32)
    numbers[0:9:3] = factor
    numbers[1:9:3] = (1 - factor) * (blend == crop.CONTRAST)
    numbers[2:9:3] = (1 - factor) * (blend == crop.SATURATION)
    numbers[9:] = table[[crop.HUE, crop.BLUR_SIGMA]]
    blends_before = is_blend.cumsum(0)
    hue = [((order == crop.HUE) & (blends_before == count)).any(0) for count in range(4)]
    chosen = np.stack([*hue, *(table[[crop.GREY, crop.BLUR_SIGMA, crop.SOLARISE]] > 0)])
    *blends, turn, sigma = _send(numbers, device).split_with_sizes([3, 3, 3, 1, 1])
    *hues, grey, blur, solarised = _send(chosen.nonzero()[1], device).split_with_sizes(
        chosen.sum(1).tolist()
    )
    rounds = int(is_blend.sum(0).max(initial=0))
    return _Plan(blends[:rounds], hues, turn[0], sigma[0], grey, blur, solarised)


def _send(array: np.ndarray, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "cuda":  # copies from pinned memory are asynchronous
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _augment_in_place(images: torch.Tensor, plan: _Plan) -> None:
    """Jitter, each sample in its own order; then grey, blur and solarise: (B, 3, S, S)."""
    for count, index in enumerate(plan.hues):
        _change(images, index, partial(adjust_hue, factor=plan.turn[index]))
        if count < len(plan.blends):
            _blend_in_place(images, *plan.blends[count])
    _change(images, plan.grey, to_grey)
    kernel_size, sigma = blur_kernel_size(images.shape[-1]), plan.sigma[plan.blur]
    _change(images, plan.blur, partial(gaussian_blur, sigma=sigma, kernel_size=kernel_size))
    _change(images, plan.solarise, solarise)


def _change(
    images: torch.Tensor, index: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Change the samples of the index (n,) in place, without gathering if all are selected."""
    if len(index) == len(images):
        images.copy_(change(images))
    elif len(index):
        images.index_copy_(0, index, change(images.index_select(0, index)))


def _blend_in_place(
    images: torch.Tensor, factor: torch.Tensor, mean_weight: torch.Tensor, grey_weight: torch.Tensor
) -> torch.Tensor:
    """factor * image + weight * mean grey + weight * grey: (B, 3, H, W), 3 times (B,).

    Brightness (both weights 0), contrast and saturation are special cases. So one pass applies a
    different one of them to each sample, or none (factor 1).
    """
    grey = _luma(images)
    mean = grey.mean(dim=(1, 2, 3))
    reference = grey.mul_(_per_sample(grey_weight)).add_(_per_sample(mean * mean_weight))
    return images.mul_(_per_sample(factor)).add_(reference).clamp_(0, 1)


def _luma(images: torch.Tensor) -> torch.Tensor:
    """(B, 3, H, W) -> (B, 1, H, W)."""
    red, green, blue = images.unbind(1)
    grey = (red * _LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])
    return grey[:, None]


def _per_sample(number: Number) -> Any:
    return number if isinstance(number, float) else number.view(-1, 1, 1, 1)


def _in_range(blends: torch.Tensor, factor: Number) -> torch.Tensor:
    """Clamp blends to [0, 1] in place, unless a known factor of 0 to 1 makes it needless."""
    known = isinstance(factor, float) and 0 <= factor <= 1
    return blends if known else blends.clamp_(0, 1)


def _blur_matrix(sigma: torch.Tensor, kernel_size: int, size: int) -> torch.Tensor:
    """The blur of a line of pixels as a banded matrix, reflection included: (B,) -> (B, S, S)."""
    reach = kernel_size // 2
    offsets = torch.arange(-reach, reach + 1, device=sigma.device, dtype=sigma.dtype)
    kernel = torch.softmax(-0.5 * (offsets / sigma[:, None]).square(), dim=1)
    padded = sigma.new_zeros(len(sigma), size, size + 2 * reach)
    stride = size + 2 * reach
    band = padded.as_strided((len(sigma), size, kernel_size), (size * stride, stride + 1, 1))
    band.copy_(kernel[:, None])
    matrix = padded[:, :, reach : reach + size]
    matrix[:, :, 1 : 1 + reach].add_(padded[:, :, :reach].flip(2))
    matrix[:, :, size - 1 - reach : size - 1].add_(padded[:, :, reach + size :].flip(2))
    return matrix


def _blocks(matrix: torch.Tensor, kernel_size: int) -> Iterator[tuple[torch.Tensor, slice, slice]]:
    """Blocks of a banded (B, S, S) that skip most zeros, with their columns and rows."""
    size, reach = matrix.shape[1], kernel_size // 2
    block = math.ceil(size / max(1, round(size / _BLUR_BLOCK)))
    for start in range(0, size, block):
        stop = min(size, start + block)
        near = slice(max(0, start - reach), min(size, stop + reach))
        yield matrix[:, start:stop, near], near, slice(start, stop)
