"""`lewel export`: a backbone in another project's format, loaded back and compared."""

from collections.abc import Callable
from pathlib import Path
from pprint import pformat
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models

from lewel.config.commands import ExportConfig
from lewel.errors import UserError
from lewel.files import mark, refuse_foreign, refuse_unwritable, write_marked
from lewel.interop.backbones import Network, find_network, open_backbone, plain
from lewel.interop.export import (
    detectron2_checkpoint,
    detectron2_config,
    from_mmseg,
    mmseg_checkpoint,
    mmseg_config,
)
from lewel.interop.graphs import (
    need_onnx,
    onnx_features,
    program_features,
    write_onnx,
    write_program,
)
from lewel.interop.hub import CONFIG, WEIGHTS, timm_model
from lewel.interop.lookup import folder_for
from lewel.interop.published import Colours
from lewel.interop.weights import read_weights
from lewel.nn.backbone import RESNETS, exports_of, obstacle
from lewel.tasks.export_hub import to_hub
from lewel.tasks.export_work import Work
from lewel.tasks.outcome import Exported
from lewel.train.run_folder import write_weights

ENDINGS = {
    "torchvision": ".pth",
    "timm": ".safetensors",
    "hub": ".safetensors",
    "detectron2": ".pth",
    "mmseg": ".pth",
    "onnx": ".onnx",
    "torch-export": ".pt2",
}
BESIDE = {"detectron2": (".yaml",), "mmseg": (".py",)}  # a config beside the weights
CLOSE = 1e-4  # tolerance of features, relative to the largest one above 1
Features = Callable[[Path, Tensor], list[Tensor]]  # of a file and images


def export(what: str, config: ExportConfig, out: Path | None = None) -> Exported:
    """Write a backbone in another project's format, and load it back to compare."""
    network = find_network(what, config.backbone, config.image_size)
    _refuse_impossible(what, config.to, network)
    if config.to == "onnx":
        need_onnx(config.opset)
    path = _target(what, config.to, out)
    beside = [path.with_suffix(ending) for ending in BESIDE.get(config.to, ())]
    if config.to == "hub":
        beside.append(path.with_name(CONFIG))
    for file in (path, *beside):
        refuse_foreign(file, "export", config.overwrite)
    refuse_unwritable(path.parent)
    net = plain(open_backbone(what, network, partial=config.partial, random_init=config.untrained))
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        return WRITERS[config.to](Work(what, net, network, path, config))


def _refuse_impossible(what: str, to: str, network: Network) -> None:
    reason = obstacle(to, network.name, network.stem, network.width)  # type: ignore[arg-type]
    if reason is not None:
        possible = exports_of(network.name, network.stem, network.width)  # type: ignore[arg-type]
        raise UserError(
            f"{what} cannot be exported to {to} ({reason}): use --to {' or '.join(possible)}, "
            "or lewel.load_backbone in Python."
        )


def _target(what: str, to: str, out: Path | None) -> Path:
    """The file to write: --out if it is a file, else in the folder --out or the run folder."""
    ending = ENDINGS[to]
    folder = folder_for(what) / "export" if out is None else out
    if to == "hub":
        return (folder if out is not None else folder / to) / WEIGHTS
    if out is not None and out.suffix and not out.is_dir():
        if out.suffix != ending:
            raise UserError(f"--out {out} ends in {out.suffix!r}: expected {ending}, or a folder.")
        return out
    return folder / f"{to}{ending}"


def _to_torchvision(work: Work) -> Exported:
    name, path = work.network.name, work.path
    write_marked(path, "export", lambda aside: torch.save(work.tensors(), aside))
    if name in models.list_models():
        net, how = models.get_model(name), f"torchvision.models.{name}()"
    else:
        block, depths, _ = RESNETS[name]
        net = models.ResNet(block, list(depths))
        kind = f"torchvision.models.resnet.{block.__name__}"
        how = f"torchvision.models.ResNet({kind}, {list(depths)})"
    net.fc = nn.Identity()
    net.load_state_dict(torch.load(path, weights_only=True))
    work.compare([net.eval()(work.images())], [work.net(work.images())], 0)
    loading = (
        "import torch, torchvision",
        f"net = {how}; net.fc = torch.nn.Identity()",
        f"net.load_state_dict(torch.load({str(path)!r}, weights_only=True))",
    )
    return Exported((path,), "a new torchvision network gives bit-equal features", loading)


def _to_timm(work: Work) -> Exported:
    import timm

    path, (name, settings) = work.path, timm_model(work.network)
    write_weights(path, work.net, {"writer": mark("export")})
    pooled = work.network.name.startswith("timm/")
    if pooled:
        # Pooling is set afterwards: timm would rename the norm of some networks for it.
        settings = {"global_pool": "", **settings}
    net: Any = timm.create_model(name, num_classes=0, checkpoint_path=str(path), **settings)
    if pooled:
        net.reset_classifier(0, "avg")
    images = work.images()
    difference = work.compare([net.eval()(images)], [work.net(images)], 1e-5)
    given = "".join(f", {key}={value!r}" for key, value in settings.items())
    loading = (
        "import timm",
        f"net = timm.create_model({name!r}, num_classes=0{given}, checkpoint_path={str(path)!r})",
        *(('net.reset_classifier(0, "avg")',) if pooled else ()),
    )
    return Exported((path,), f"timm's own network gives the features {difference}", loading)


def _to_detectron2(work: Work) -> Exported:
    import yaml

    network, path, tensors = work.network, work.path, work.tensors()
    checkpoint = detectron2_checkpoint(tensors)
    write_marked(path, "export", lambda aside: torch.save(checkpoint, aside))
    counted = {n: v for n, v in tensors.items() if not n.endswith("num_batches_tracked")}
    work.compare_tensors(read_weights(path), counted)
    config = path.with_suffix(".yaml")
    settings = detectron2_config(network.name, path.resolve(), network.mean, network.std)
    text = f"# {mark('export')}: merge this over a config of detectron2 that has a ResNet.\n"
    text += yaml.safe_dump(settings, sort_keys=False)
    write_marked(config, "export", lambda aside: aside.write_text(text, encoding="utf-8"))
    loading = (
        "from detectron2 import config, model_zoo",
        "cfg = config.get_cfg()  # then any config with a ResNet, such as",
        "cfg.merge_from_file("
        "model_zoo.get_config_file('COCO-Detection/faster_rcnn_R_50_FPN_1x.yaml'))",
        f"cfg.merge_from_file({str(config)!r})",
    )
    many = len(checkpoint["model"])
    return Exported((path, config), f"all {many} tensors, loaded back, are equal", loading)


def _to_mmseg(work: Work) -> Exported:
    network, path, tensors = work.network, work.path, work.tensors()
    write_marked(path, "export", lambda aside: torch.save(mmseg_checkpoint(tensors), aside))
    work.compare_tensors(from_mmseg(read_weights(path)), tensors)
    config = path.with_suffix(".py")
    settings = mmseg_config(network.name, path.resolve(), network.mean, network.std)
    text = f"# {mark('export')}: merge this over a config of mmseg (or mmdet, no `pretrained`).\n"
    text += f"model = {pformat(settings, sort_dicts=False, width=100)}\n"
    write_marked(config, "export", lambda aside: aside.write_text(text, encoding="utf-8"))
    loading = (
        "from mmengine import Config",
        "cfg = Config.fromfile('configs/fcn/fcn_r50-d8_4xb4-20k_voc12aug-512x512.py')",
        f"cfg.merge_from_dict(dict(model=Config.fromfile({str(config)!r}).model))",
    )
    return Exported((path, config), f"all {len(tensors)} tensors, loaded back, are equal", loading)


def _to_onnx(work: Work) -> Exported:
    write_onnx(work.path, work.net, work.images(), work.config.opset)
    session = f"session = onnxruntime.InferenceSession({str(work.path)!r})"
    features = "session.run(['features'], {'images': images})[0]"
    wanted = f"{_wanted(work)}, NumPy"
    loading = ("import onnxruntime", session, f"features = {features}  # {wanted}")
    return _graph(work, "onnxruntime", onnx_features, loading)


def _to_program(work: Work) -> Exported:
    write_program(work.path, work.net, work.images())
    net = f"net = torch.export.load({str(work.path)!r}).module()"
    loading = ("import torch", net, f"features = net(images)[0]  # {_wanted(work)}")
    return _graph(work, "torch.export", program_features, loading)


def _graph(work: Work, by: str, features_of: Features, loading: tuple[str, ...]) -> Exported:
    """A graph, compared on more images than it was traced with: the batch size must be dynamic."""
    images = work.images(3)
    found, expected = features_of(work.path, images)[:1], [work.net(images)]
    difference = work.compare(found, expected, CLOSE)
    return Exported((work.path,), f"{by} gives the features {difference}", loading)


def _wanted(work: Work) -> str:
    size, colours = work.network.image_size, Colours(work.network.mean, work.network.std)
    return f"images (B, 3, {size}, {size}) normalised by {colours}"


WRITERS: dict[str, Callable[[Work], Exported]] = {
    "torchvision": _to_torchvision,
    "timm": _to_timm,
    "hub": to_hub,
    "detectron2": _to_detectron2,
    "mmseg": _to_mmseg,
    "onnx": _to_onnx,
    "torch-export": _to_program,
}
