"""Every photometric operation against torchvision's, on float tensors."""

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as reference

from lewel.data.views import augment, crop
from lewel.data.views.crop import ViewRecipe, draw_view
from lewel.ops.randomness import generator

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TOLERANCE = 1e-5

OPERATIONS = {
    crop.BRIGHTNESS: (augment.adjust_brightness, reference.adjust_brightness),
    crop.CONTRAST: (augment.adjust_contrast, reference.adjust_contrast),
    crop.SATURATION: (augment.adjust_saturation, reference.adjust_saturation),
    crop.HUE: (augment.adjust_hue, reference.adjust_hue),
}


def images_of(kind: str, batch: int, height: int = 17, width: int = 22) -> torch.Tensor:
    """Float images (B, 3, H, W) with edge cases of the operations."""
    draw = torch.Generator().manual_seed(height * width)
    random = torch.rand(batch, 3, height, width, generator=draw)
    match kind:
        case "random":
            return random
        case "eight bit":  # exact ties between channels
            return random.mul(5).floor().div(5)
        case "grey":
            return random[:, :1].expand(-1, 3, -1, -1).contiguous()
        case "black":
            return torch.zeros_like(random)
        case "white":
            return torch.ones_like(random)
        case "saturated":  # every channel 0 or 1
            return random.round()
    raise AssertionError(kind)


KINDS = ("random", "eight bit", "grey", "black", "white", "saturated")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_jitter_operations(operation: int, kind: str) -> None:
    factors = [0.0, 0.2, 0.6, 1.0, 1.4, 2.0, 10.0]
    if operation == crop.HUE:
        factors = [-0.5, -1 / 3, -1 / 6, -0.1, 0.0, 0.03, 0.1, 1 / 6, 1 / 3, 0.5]
    images = images_of(kind, len(factors))
    before = images.clone()
    ours, theirs = OPERATIONS[operation]
    expected = torch.stack([theirs(x, f) for x, f in zip(images, factors, strict=True)])
    got = ours(images, torch.tensor(factors))
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)
    assert torch.equal(images, before)
    one_for_all = [ours(x[None], f) for x, f in zip(images, factors, strict=True)]
    torch.testing.assert_close(torch.cat(one_for_all), expected, rtol=0, atol=TOLERANCE)
    assert torch.equal(images, before)


@pytest.mark.parametrize("kind", KINDS)
def test_grey_solarise_and_normalise(kind: str) -> None:
    images = images_of(kind, 3)
    grey = reference.rgb_to_grayscale(images, num_output_channels=3)
    torch.testing.assert_close(augment.to_grey(images), grey, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(augment.solarise(images), reference.solarize(images, 0.5))
    normal = reference.normalize(images, list(MEAN), list(STD))
    torch.testing.assert_close(augment.normalise(images, MEAN, STD), normal)


@pytest.mark.parametrize(
    ("height", "width", "kernel_size"),
    [(64, 64, 7), (33, 33, 3), (2, 2, 3), (12, 12, 23), (65, 130, 7), (224, 224, 23), (7, 200, 9)],
)
def test_blur(height: int, width: int, kernel_size: int) -> None:
    sigma = [0.1, 0.37, 1.0, 2.0, 40.0]
    images = images_of("random", len(sigma), height, width)
    expected = torch.stack(
        [
            reference.gaussian_blur(x, [kernel_size, kernel_size], [s, s])
            for x, s in zip(images, sigma, strict=True)
        ]
    )
    got = augment.gaussian_blur(images, torch.tensor(sigma), kernel_size)
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("size", "kernel_size"), [(224, 23), (64, 7), (32, 3), (8, 3), (96, 9)])
def test_blur_kernel_is_a_tenth_of_the_image(size: int, kernel_size: int) -> None:
    assert augment.blur_kernel_size(size) == kernel_size


def one_by_one(pixels: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The reference of `augment_colours`: torchvision's operations, sample by sample."""
    results = []
    for image, draw in zip(pixels, draws, strict=True):
        x = reference.to_dtype(image, torch.float32, scale=True)
        for operation in draw[crop.ORDER].int().tolist():
            if operation >= 0:
                x = OPERATIONS[operation][1](x, draw[operation].item())
        if draw[crop.GREY]:
            x = reference.rgb_to_grayscale(x, num_output_channels=3)
        if draw[crop.BLUR_SIGMA] > 0:
            kernel_size = augment.blur_kernel_size(image.shape[-1])
            x = reference.gaussian_blur(x, [kernel_size] * 2, [draw[crop.BLUR_SIGMA].item()] * 2)
        if draw[crop.SOLARISE]:
            x = reference.solarize(x, 0.5)
        results.append(reference.normalize(x, list(MEAN), list(STD)))
    return torch.stack(results)


RECIPES = {
    "byol first": ViewRecipe(),
    "byol second": ViewRecipe(blur=0.1, solarise=0.2),
    "moco": ViewRecipe(jitter=(0.4, 0.4, 0.4, 0.1), blur=0.5),
    "strong": ViewRecipe(jitter=(1.0, 1.0, 1.0, 0.5), jitter_probability=1, grey=0.5, solarise=0.5),
    "no hue": ViewRecipe(jitter=(0.4, 0.4, 0.4, 0.0)),
    "no brightness, no saturation": ViewRecipe(jitter=(0.0, 0.4, 0.0, 0.1)),
    "hue alone": ViewRecipe(jitter=(0.0, 0.0, 0.0, 0.3)),
    "nothing": ViewRecipe(jitter_probability=0, grey=0, blur=0),
}


def batch_of(recipe: ViewRecipe, batch: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = generator(0, size).integers(0, 256, (batch, 3, size, size), dtype=np.uint8)
    draws = [draw_view(recipe, size, size, generator(1, i)).photometric for i in range(batch)]
    return torch.from_numpy(pixels), torch.from_numpy(np.stack(draws))


@pytest.mark.parametrize("size", [8, 33, 64])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_augment_colours(recipe: ViewRecipe, size: int) -> None:
    pixels, draws = batch_of(recipe, 48, size)
    before = pixels.clone()
    got = augment.augment_colours(pixels, draws, MEAN, STD)
    # Rounding errors are divided by the standard deviation.
    torch.testing.assert_close(got, one_by_one(pixels, draws), rtol=0, atol=TOLERANCE / min(STD))
    assert torch.equal(pixels, before)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_augment_colours_at_full_size(recipe: ViewRecipe) -> None:
    pixels, draws = batch_of(recipe, 6, 224)
    got = augment.augment_colours(pixels, draws, MEAN, STD)
    torch.testing.assert_close(got, one_by_one(pixels, draws), rtol=0, atol=TOLERANCE / min(STD))
    assert got.is_contiguous()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_augment_colours_on_a_gpu() -> None:
    pixels, draws = batch_of(RECIPES["byol second"], 48, 64)
    got = augment.augment_colours(pixels.cuda(), draws, MEAN, STD)
    assert got.is_cuda
    expected = augment.augment_colours(pixels, draws, MEAN, STD)
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=1e-4)


def test_augment_colours_of_both_views_at_once() -> None:
    first, second = (batch_of(RECIPES[name], 12, 32) for name in ("byol first", "byol second"))
    pixels, draws = (torch.cat(pair) for pair in zip(first, second, strict=True))
    parts = [augment.augment_colours(*part, MEAN, STD) for part in (first, second)]
    assert torch.equal(augment.augment_colours(pixels, draws, MEAN, STD), torch.cat(parts))


@pytest.mark.parametrize("size", [64, 224])
def test_a_sample_does_not_depend_on_its_batch(size: int) -> None:
    pixels, draws = batch_of(RECIPES["byol first"], 8, size)
    whole = augment.augment_colours(pixels, draws, MEAN, STD)
    places = [slice(0, 3), slice(3, 4), slice(4, 8)]
    parts = [augment.augment_colours(pixels[i], draws[i], MEAN, STD) for i in places]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("size", [32, 224])
def test_augment_colours_ignores_memory_layout_and_autocast(size: int) -> None:
    pixels, draws = batch_of(RECIPES["byol first"], 6, size)
    expected = augment.augment_colours(pixels, draws, MEAN, STD)
    interleaved = pixels.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = augment.augment_colours(interleaved, draws, MEAN, STD)
    assert got.dtype == torch.float32
    assert torch.equal(got, expected)


def test_augment_colours_of_no_images() -> None:
    pixels, draws = batch_of(RECIPES["byol first"], 2, 32)
    assert augment.augment_colours(pixels[:0], draws[:0], MEAN, STD).shape == (0, 3, 32, 32)
