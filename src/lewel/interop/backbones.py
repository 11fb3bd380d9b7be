"""Opens backbones by name or from weights, for every command that takes a backbone."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lewel.errors import UserError, state_of
from lewel.files import user_path
from lewel.interop.lookup import read_card, weights_file
from lewel.interop.published import colours_of
from lewel.interop.weights import fill, first_few, network_in, read_config, read_weights
from lewel.nn.backbone import (
    MEAN,
    RESNETS,
    STD,
    STOCK,
    Backbone,
    ResNetBackbone,
    TimmBackbone,
    build_resnet,
    build_timm,
)


def build_backbone(
    name: str, stem: str, width: int, image_size: int, *, several_sizes: bool = False
) -> Backbone:
    """A backbone by its name, randomly initialised; with `several_sizes` for small crops too."""
    if name in RESNETS:
        return ResNetBackbone(build_resnet(name, stem=stem, width=width))  # type: ignore[arg-type]
    kind, _, model = name.partition("/")
    if kind != "timm" or not model:
        close = get_close_matches(name, RESNETS, n=1)
        raise UserError(
            f"There is no backbone {name!r}: expected one of {', '.join(RESNETS)}, or timm/NAME."
            + (f" Did you mean {close[0]}?" if close else "")
        )
    import timm

    tagged = "." in model  # weights of a model
    if not timm.is_model(model) or (tagged and model not in timm.list_pretrained()):
        known = timm.list_pretrained() if tagged else timm.list_models()
        close = get_close_matches(model, known, n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise UserError(f"timm {timm.__version__} has no model {model!r}.{hint}")
    if stem != "imagenet" or width != STOCK:
        raise UserError(
            f"--stem and --width are for ResNets, not for {name}: use --stem imagenet --width "
            f"{STOCK}."
        )
    try:
        return TimmBackbone(build_timm(model, image_size, several_sizes))
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{name} cannot be built without its pooling for images of {image_size} px ({reason}): "
            "choose another --image-size or --backbone."
        ) from None


def plain(backbone: Backbone) -> nn.Module:
    """The network without our wrapper, with its library's pooling: (B, 3, S, S) -> (B, C).

    timm networks whose last norm is in the head (ConvNeXt, EdgeNeXt, PoolFormer) pool before it,
    so that their features differ from the mean of the tokens.
    """
    if isinstance(backbone, TimmBackbone):
        pool: Any = backbone.net
        pool.reset_classifier(0, "avg")
    return backbone.net


class Network(NamedTuple):
    """The architecture of a backbone, and the size and normalisation of its images."""

    name: str
    stem: str = "imagenet"
    width: int = STOCK
    image_size: int = 224
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def build(self) -> Backbone:
        """The network, randomly initialised."""
        return build_backbone(self.name, self.stem, self.width, self.image_size)


def find_network(
    what: str | Path, backbone: str | None = None, image_size: int | None = None
) -> Network:
    """The network of a run folder, an export, a third-party checkpoint, or a name.

    `backbone` gives the architecture of a file that is not a ResNet.
    """
    file = weights_file(what)
    size: dict[str, Any] = {} if image_size is None else {"image_size": image_size}
    if file is None:
        name = str(what)
        if name not in RESNETS and not name.startswith("timm/"):
            path = user_path(name)
            state = f" ({state_of(path)})" if os.sep in name or os.path.lexists(path) else ""
            raise UserError(
                f"{what} is not a backbone{state}: expected a run folder, a file of weights, or a "
                "network's name such as resnet50 or timm/convnext_atto."
            )
        _refuse_other_network(what, name, backbone)
        return Network(name, **colours_of(name)._asdict(), **size)
    card = read_card(file) if file.suffix == ".safetensors" else {}
    if "backbone" in card:
        _refuse_other_network(what, card["backbone"], backbone)
        known = {key: card[key] for key in ("stem", "width", "image_size")}
        colours = {key: tuple(card[key]) for key in ("mean", "std")}
        return Network(card["backbone"], **{**known, **colours, **size})
    trained = read_config(file)
    if backbone is not None and not trained:
        found = network_in(read_weights(file), "conv1.weight") if backbone in RESNETS else {}
        return Network(backbone, *_stem_and_width(found), **size)
    if trained:
        _refuse_other_network(what, trained["backbone"], backbone)
        known = {key: trained[key] for key in ("stem", "width", "image_size")}
        return Network(trained["backbone"], **{**known, **size})
    return identify_resnet(read_weights(file), what)._replace(**size)


def _refuse_other_network(what: str | Path, own: str, given: str | None) -> None:
    """Raise UserError for an architecture that is not the one a backbone is known to have."""
    if given is not None and given != own:
        raise UserError(
            f"{what} is {own}, but --backbone is {given}: leave it out; it is for third-party "
            "checkpoints, which do not name their network."
        )


def identify_resnet(every: dict[str, Tensor], what: str | Path) -> Network:
    """The ResNet that is among these tensors, identified by their names and shapes."""
    tensors = network_in(every, "conv1.weight")
    lacks = ""
    if stem_and_width := _stem_and_width(tensors):
        stem, width = stem_and_width
        shapes = {n: v.shape for n, v in tensors.items() if n.startswith(("conv1", "bn1", "layer"))}
        most = 0.5  # with fewer tensors in common it is another architecture
        for name in RESNETS:
            with torch.device("meta"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a ResNeXt of few channels has empty tensors
                wanted = build_resnet(name, stem=stem, width=width).state_dict()  # type: ignore[arg-type]
            same = {n: v.shape for n, v in wanted.items() if n in shapes or "num_batches" not in n}
            if same == shapes:
                return Network(name, stem, width)
            wrong = [n for n, shape in same.items() if shapes.get(n) != shape]
            fraction = (len(same) - len(wrong)) / max(len(same), len(shapes))
            if wrong and fraction > most:
                most, lacks = fraction, _difference(name, same, shapes)
    if lacks:
        raise UserError(
            f"{what} is not a complete ResNet ({lacks}): repair it, or name the architecture with "
            "--backbone and load the tensors that fit with --partial."
        )
    raise UserError(
        f"{what} is not a known ResNet (it has {first_few(list(tensors or every))}): give the "
        "architecture that these tensors are of with --backbone timm/NAME, or rename them as "
        "torchvision does."
    )


def _stem_and_width(tensors: dict[str, Tensor]) -> tuple[()] | tuple[str, int]:
    """The stem and the width of a ResNet by its first convolution; empty without one."""
    first = tensors.get("conv1.weight")
    if first is None or first.ndim != 4:
        return ()
    return "imagenet" if first.shape[-1] == 7 else "small", first.shape[0]


def _difference(name: str, wanted: dict[str, torch.Size], found: dict[str, torch.Size]) -> str:
    """Which tensors of a network are missing, and which have another shape."""
    missing = [n for n in wanted if n not in found]
    other = [n for n in wanted if n in found and found[n] != wanted[n]]
    parts = [f"it lacks {len(missing)} tensors of {name}, {first_few(missing)}"] if missing else []
    if other:
        first = other[0]
        parts.append(
            f"{len(other)} tensors have another shape than {name}'s, {first} is "
            f"{tuple(found[first])} and not {tuple(wanted[first])}"
        )
    return "; ".join(parts)


def open_backbone(
    what: str | Path, network: Network, *, partial: bool = False, random_init: bool = False
) -> Backbone:
    """A network in eval mode, with the weights of the argument or randomly initialised."""
    backbone = network.build()
    file = weights_file(what)
    if not random_init:
        weights = published_weights(network.name) if file is None else read_weights(file)
        fill(backbone.net, weights, str(what), partial)
    check_features(backbone.eval(), network, what)
    return backbone


def check_features(backbone: Backbone, network: Network, what: str | Path) -> None:
    """Raise UserError for a network that cannot take its image size, or gives no numbers."""
    size = network.image_size
    with torch.no_grad(), size_explained(network.name, size):
        tokens = backbone(torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0)))
    if not tokens.isfinite().all():
        raise UserError(
            f"{what} gives features that are not finite: its weights are damaged or too large; "
            "give other weights."
        )


@contextmanager
def size_explained(name: str, image_size: int, flag: str = "--image-size") -> Iterator[None]:
    """A forward pass that fails is a mistake in the size of its images."""
    try:
        yield
    except (RuntimeError, ValueError, AssertionError) as error:  # each network has its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{name} cannot take images of {image_size} px ({reason}): change {flag}."
        ) from None


def published_weights(name: str) -> dict[str, Tensor]:
    """torchvision's or timm's weights of a network, downloaded if they are not cached."""
    try:
        if name.startswith("timm/"):
            import timm

            net = timm.create_model(name.removeprefix("timm/"), pretrained=True)
            return dict(net.state_dict())
        from torchvision.models import get_model_weights

        weights: dict[str, Tensor] = get_model_weights(name).DEFAULT.get_state_dict(progress=True)
        return weights
    except Exception as error:  # failed downloads and names without weights raise many types
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"The published weights of {name} are not available ({reason}): give a file of "
            "weights, or --random-init."
        ) from None
