"""Two views with Pillow images and torchvision's or lightly's transforms, as baselines."""

from collections.abc import Callable, Sequence
from typing import Any

from lewel.data.views.augment import blur_kernel_size
from lewel.data.views.crop import ViewRecipe
from lewel.nn.backbone import MEAN, STD

Readers = dict[str, Callable[[], object]]


class PillowBlur:
    """Pillow's Gaussian blur, which MoCo v2's code uses with torchvision's transforms."""

    def __init__(self, sigma: tuple[float, float]) -> None:
        self.sigma = sigma

    def __call__(self, image: Any) -> Any:
        import random

        from PIL import ImageFilter

        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(*self.sigma)))


class TwoTransforms:
    """One view of an image by each transform."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self.transforms]


def torchvision_views(root: str, size: int, recipes: Sequence[ViewRecipe]) -> Readers:
    """ImageFolder and torchvision's transforms: all with either blur, and the crop only."""
    from torchvision import transforms as T

    def geometry(recipe: ViewRecipe) -> list[Any]:
        return [
            T.RandomResizedCrop(size, scale=recipe.crop_scale),
            T.RandomHorizontalFlip(recipe.flip),
        ]

    def everything(recipe: ViewRecipe, blur: Any) -> Any:
        jitter = T.RandomApply([T.ColorJitter(*recipe.jitter)], p=recipe.jitter_probability)
        steps = [*geometry(recipe), jitter, T.RandomGrayscale(recipe.grey)]
        steps.append(T.RandomApply([blur], p=recipe.blur))
        if recipe.solarise:
            steps.append(T.RandomSolarize(128, recipe.solarise))
        return T.Compose([*steps, T.ToTensor(), T.Normalize(MEAN, STD)])

    def own_blur(recipe: ViewRecipe) -> Any:
        return T.GaussianBlur(blur_kernel_size(size), recipe.blur_sigma)

    return {
        "torchvision, all": _passes(
            root, [everything(recipe, PillowBlur(recipe.blur_sigma)) for recipe in recipes]
        ),
        "torchvision, all, its own blur": _passes(
            root, [everything(recipe, own_blur(recipe)) for recipe in recipes]
        ),
        "torchvision, crop": _passes(
            root, [T.Compose([*geometry(recipe), T.PILToTensor()]) for recipe in recipes]
        ),
    }


def lightly_views(root: str, size: int, recipes: Sequence[ViewRecipe]) -> Readers:
    """ImageFolder and lightly's transform for BYOL, with the values of our recipes."""
    from lightly.transforms.byol_transform import (
        BYOLTransform,
        BYOLView1Transform,
        BYOLView2Transform,
    )

    first, second = (_lightly_settings(size, recipe) for recipe in recipes)
    transform = BYOLTransform(BYOLView1Transform(**first), BYOLView2Transform(**second))
    return {"lightly, all": _pass_over(root, transform)}


def _lightly_settings(size: int, recipe: ViewRecipe) -> dict[str, Any]:
    return {
        "input_size": size,
        "min_scale": recipe.crop_scale[0],
        "gaussian_blur": recipe.blur,
        "sigmas": recipe.blur_sigma,
        "solarization_prob": recipe.solarise,
    }


def _passes(root: str, transforms: Sequence[Callable[[Any], Any]]) -> Callable[[], object]:
    return _pass_over(root, TwoTransforms(transforms))


def _pass_over(root: str, transform: Callable[[Any], Any]) -> Callable[[], object]:
    """One pass over a folder of images; the views are discarded."""
    from torchvision.datasets import ImageFolder

    images = ImageFolder(root, transform)

    def read() -> None:
        for index in range(len(images)):
            images[index]

    return read
