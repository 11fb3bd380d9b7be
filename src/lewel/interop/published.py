"""Published weights by name: `torchvision/resnet50`, `timm/resnet50.a1_in1k`."""

import re
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

import torch

from lewel.errors import UserError
from lewel.nn.backbone import MEAN, RESNETS, STD, STOCK

LIBRARIES = ("timm", "torchvision")
# torchvision's and timm's ResNets agree with ours of that name in layers and names.
OURS = set(RESNETS) & {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"}


class Colours(NamedTuple):
    """How images are normalised for a network, by channel."""

    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __str__(self) -> str:
        mean, std = (" ".join(f"{one:g}" for one in values) for values in self)
        return f"mean {mean}, std {std}"


class Published(NamedTuple):
    """A file of published weights, and the network that it is for."""

    url: str
    file: str  # its name in the cache
    digest: str | None  # the first digits of its SHA-256
    backbone: str  # by our name

    @property
    def path(self) -> Path:
        """Where torch keeps downloaded weights."""
        return Path(torch.hub.get_dir()) / "checkpoints" / self.file

    @property
    def settings(self) -> dict[str, str | int]:
        """The settings of the network."""
        return {"backbone": self.backbone, "stem": "imagenet", "width": STOCK}


def find_published(name: str) -> Published | None:
    """Published weights by name; None for anything else, such as a path that exists."""
    library, _, model = name.partition("/")
    if library not in LIBRARIES or not model or Path(name).exists():
        return None
    return _of_timm(model) if library == "timm" else _of_torchvision(model)


def _of_torchvision(model: str) -> Published:
    from torchvision.models import get_model_weights, list_models

    if model not in OURS:
        raise UserError(
            f"torchvision/{model} is no backbone of ours: choose torchvision/"
            f"{', torchvision/'.join(sorted(OURS & set(list_models())))}, or timm/NAME."
        )
    url = get_model_weights(model).DEFAULT.url
    file = url.rsplit("/", 1)[-1]
    digest = re.search(r"-([0-9a-f]{8,})\.", file)
    return Published(url, file, digest[1] if digest else None, model)


def _of_timm(model: str) -> Published:
    import timm
    from timm.models import get_pretrained_cfg

    architecture = model.partition(".")[0]
    known = timm.list_pretrained()
    config = None
    if timm.is_model(architecture):
        with suppress(RuntimeError):  # a tag that does not exist
            config = get_pretrained_cfg(model)
    if config is None or not config.hf_hub_id or (model not in known and model != architecture):
        close = get_close_matches(model, known, n=3)
        hint = f" Did you mean {' or '.join(f'timm/{one}' for one in close)}?" if close else ""
        raise UserError(f"timm {timm.__version__} has no published weights {model!r}.{hint}")
    full = f"{architecture}.{config.tag}" if config.tag else architecture
    url = f"https://huggingface.co/{config.hf_hub_id}/resolve/main/model.safetensors"
    backbone = architecture if architecture in OURS else f"timm/{architecture}"
    return Published(url, f"{full}.safetensors", None, backbone)


def colours_of(name: str) -> Colours:
    """The normalisation of the images that published weights were trained on."""
    library, _, model = name.partition("/")
    if library != "timm" or Path(name).exists():
        return Colours()
    import timm

    if not timm.is_model(model):
        return Colours()
    with suppress(RuntimeError):  # a tag that does not exist, which is reported elsewhere
        if (config := timm.get_pretrained_cfg(model)) is not None:
            return Colours(tuple(config.mean), tuple(config.std))
        # A deprecated name: the network tells which weights it stands for.
        known: dict[str, Any] = vars(timm.create_model(model))["pretrained_cfg"]
        return Colours(tuple(known["mean"]), tuple(known["std"]))
    return Colours()


def fetch(name: str) -> Path:
    """The file of published weights, downloaded where it is not there yet."""
    found = find_published(name)
    assert found is not None, name
    if not found.path.exists():
        found.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(found.url, str(found.path), found.digest)
        except (URLError, OSError, RuntimeError) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"{name} cannot be downloaded ({reason}): download {found.url} elsewhere, put it "
                f"at {found.path}, and run the same command."
            ) from None
    return found.path
