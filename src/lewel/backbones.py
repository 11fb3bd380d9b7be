"""Backbones by name and from files: what every command that takes a backbone opens it with."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lewel.errors import UserError
from lewel.finding import read_card, weights_file
from lewel.interop.weights import fill, network_in, read_config, read_weights, some
from lewel.nn.backbone import (
    RESNETS,
    STOCK,
    Backbone,
    ResNetBackbone,
    TimmBackbone,
    build_resnet,
    build_timm,
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def build_backbone(name: str, stem: str, width: int, image_size: int) -> Backbone:
    """A backbone by its name, with fresh weights."""
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

    if not timm.is_model(model):
        close = get_close_matches(model, timm.list_models(), n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise UserError(f"timm {timm.__version__} has no model {model!r}.{hint}")
    if stem != "imagenet" or width != STOCK:
        raise UserError(
            f"--stem and --width are for ResNets, not for {name}: use --stem imagenet --width "
            f"{STOCK}."
        )
    try:
        return TimmBackbone(build_timm(model, image_size))
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{name} cannot be built without its pooling for images of {image_size} px ({reason}): "
            "choose another --image-size or --backbone."
        ) from None


def plain(backbone: Backbone) -> nn.Module:
    """The network alone, as its own project pools: (B, 3, S, S) -> (B, C).

    timm networks whose last norm sits in the head (ConvNeXt, EdgeNeXt, PoolFormer) pool before
    it, and so give other features than the mean of the tokens.
    """
    if isinstance(backbone, TimmBackbone):
        pool: Any = backbone.net
        pool.reset_classifier(0, "avg")
    return backbone.net


class Network(NamedTuple):
    """Which network weights are for, and how it wants its images."""

    name: str
    stem: str = "imagenet"
    width: int = STOCK
    image_size: int = 224
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def build(self) -> Backbone:
        """The network with fresh weights."""
        return build_backbone(self.name, self.stem, self.width, self.image_size)


def find_network(
    what: str | Path, backbone: str | None = None, image_size: int | None = None
) -> Network:
    """The network of a run folder, an export, another project's checkpoint, or a name.

    `backbone` says what network a file holds, where it is no ResNet.
    """
    file = weights_file(what)
    size: dict[str, Any] = {} if image_size is None else {"image_size": image_size}
    if file is None:
        name = str(what)
        if name not in RESNETS and not name.startswith("timm/"):
            raise UserError(
                f"{what} is no backbone: expected a run folder, a file of weights, or a network's "
                "name such as resnet50 or timm/convnext_atto."
            )
        return Network(name, **size)
    card = read_card(file) if file.suffix == ".safetensors" else {}
    if "backbone" in card:
        known = {key: card[key] for key in ("stem", "width", "image_size")}
        colours = {key: tuple(card[key]) for key in ("mean", "std")}
        return Network(card["backbone"], **{**known, **colours, **size})
    if backbone is not None:
        return Network(backbone, **size)
    trained = read_config(file)
    if trained:
        known = {key: trained[key] for key in ("stem", "width", "image_size")}
        return Network(trained["backbone"], **{**known, **size})
    return which_resnet(network_in(read_weights(file), "conv1.weight"), what)._replace(**size)


def which_resnet(tensors: dict[str, Tensor], what: str | Path) -> Network:
    """The ResNet whose tensors these are, told by their names and shapes."""
    lacks = ""
    if "conv1.weight" in tensors and tensors["conv1.weight"].ndim == 4:
        width, _, kernel, _ = tensors["conv1.weight"].shape
        stem = "imagenet" if kernel == 7 else "small"
        shapes = {n: v.shape for n, v in tensors.items() if n.startswith(("conv1", "bn1", "layer"))}
        most = 0.5  # less in common is no likeness
        for name in RESNETS:
            with torch.device("meta"):
                wanted = build_resnet(name, stem=stem, width=width).state_dict()  # type: ignore[arg-type]
            same = {n: v.shape for n, v in wanted.items() if n in shapes or "num_batches" not in n}
            if same == shapes:
                return Network(name, stem, width)
            missing = [n for n, shape in same.items() if shapes.get(n) != shape]
            share = (len(same) - len(missing)) / max(len(same), len(shapes))
            if missing and share > most:
                most = share
                lacks = f"it lacks {len(missing)} tensors of {name}, {some(missing)}"
    if lacks:
        raise UserError(
            f"{what} is not a whole ResNet ({lacks}): mend it, or say by --backbone which network "
            "it is and take what fits by --partial."
        )
    raise UserError(
        f"{what} is not a ResNet that we know: say which network it is, with --backbone timm/NAME."
    )


def open_backbone(
    what: str | Path, network: Network, *, partial: bool = False, untrained: bool = False
) -> Backbone:
    """A network with the weights that an argument names, in eval mode."""
    backbone = network.build()
    file = weights_file(what)
    if untrained:
        return backbone.eval()
    if file is None:
        fill(backbone.net, published_weights(network.name), str(what), partial)
    else:
        fill(backbone.net, read_weights(file), str(what), partial)
    return backbone.eval()


def published_weights(name: str) -> dict[str, Tensor]:
    """torchvision's or timm's own weights of a network, downloaded where they are not here."""
    try:
        if name.startswith("timm/"):
            import timm

            net = timm.create_model(name.removeprefix("timm/"), pretrained=True)
            return dict(net.state_dict())
        from torchvision.models import get_model_weights

        weights: dict[str, Tensor] = get_model_weights(name).DEFAULT.get_state_dict(progress=True)
        return weights
    except Exception as error:  # a hub's network, a name without weights: each has its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"The published weights of {name} cannot be had ({reason}): give a file of them, or "
            "--untrained."
        ) from None
