"""The form of a model on the hubs: timm's architecture, its arguments and config.json."""

from typing import Any

from lewel.interop.backbones import Network
from lewel.nn.backbone import build_timm_with_settings

WEIGHTS, CONFIG, CARD, PICTURE = "model.safetensors", "config.json", "README.md", "maps.png"


def timm_model(network: Network) -> tuple[str, dict[str, Any]]:
    """The name and the arguments by which timm builds a network, without its pooling."""
    if network.name.startswith("timm/"):
        name = network.name.removeprefix("timm/")
        return name, build_timm_with_settings(name, network.image_size)[1]
    if network.name == "resnet10":
        return "resnet18", {"layers": (1, 1, 1, 1)}
    return network.name, {}


def hub_config(network: Network, features: int, about: dict[str, Any]) -> dict[str, Any]:
    """The content of config.json, from which `timm.create_model("local-dir:...")` builds it."""
    from timm.models import get_pretrained_cfg

    name, arguments = timm_model(network)
    name = name.split(".")[0]  # the tag names published weights
    if network.name.startswith("timm/"):
        arguments = {"global_pool": "avg", **arguments}
    known = get_pretrained_cfg(name)
    assert known is not None, name  # every model of timm has one
    return {
        "architecture": name,
        "num_classes": 0,
        "num_features": features,
        **({"model_args": arguments} if arguments else {}),
        "pretrained_cfg": {
            "input_size": (3, network.image_size, network.image_size),
            "fixed_input_size": known.fixed_input_size,
            "interpolation": "bilinear",
            "crop_pct": 0.875,  # evaluations resize the shorter side to 8/7
            "crop_mode": "center",
            "mean": network.mean,
            "std": network.std,
            "num_classes": 0,
            "first_conv": known.first_conv,
            "classifier": known.classifier,
        },
        "lewel": about,
    }
