"""Exports backbones as standalone graphs: ONNX and torch.export."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.resnet import ResNet

from lewel.errors import RunError, UserError
from lewel.files import mark, write_marked

OPSET = 18
OPSETS = range(13, 24)
OUTPUTS = ("features", "feature_map")


class FeatureGraph(nn.Module):
    """A network -> pooled features (B, C) and, if it has one, the feature map (B, C, H, W).

    The map is the input of the pooling; timm networks with a norm in the head apply it afterwards.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        net: Any = self.net
        if isinstance(net, ResNet):
            x = net.maxpool(net.relu(net.bn1(net.conv1(images))))
            x = net.layer4(net.layer3(net.layer2(net.layer1(x))))
            return net.avgpool(x).flatten(1), x
        x = net.forward_features(images)
        return (net.forward_head(x), *self._map(x))

    def _map(self, x: Tensor) -> tuple[Tensor, ...]:
        if x.ndim == 4:
            channels_last = getattr(self.net, "output_fmt", "NCHW") == "NHWC"
            return (x.permute(0, 3, 1, 2) if channels_last else x,)
        tokens = x[:, int(getattr(self.net, "num_prefix_tokens", 0)) :]
        side = round(tokens.shape[1] ** 0.5)
        if side**2 != tokens.shape[1]:
            return ()
        return (tokens.transpose(1, 2).reshape(x.shape[0], -1, side, side),)


def trace(net: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    """The graph of a network for images (B, 3, S, S) of this size, any B."""
    dynamic = {"images": {0: torch.export.Dim("batch", min=1, max=65536)}}
    try:
        return torch.export.export(FeatureGraph(net).eval(), (images,), dynamic_shapes=dynamic)
    except Exception as error:  # tracing raises many types
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise RunError(
            f"torch.export cannot trace this network with a dynamic batch size ({reason}): choose "
            "another --to."
        ) from None


def write_program(path: Path, net: nn.Module, images: Tensor) -> None:
    """A network as a torch.export archive."""
    program = trace(net, images)

    def write(temp: Path) -> None:
        with temp.open("wb") as file:  # given a path, torch requires its own suffix
            torch.export.save(program, file)

    write_marked(path, "export", write)


def program_features(path: Path, images: Tensor) -> list[Tensor]:
    """The outputs of a torch.export archive of `write_program` for images."""
    with path.open("rb") as file:
        graph = torch.export.load(file).module()
    return list(graph(images))


def need_onnx(opset: int) -> None:
    """Raise UserError if a package for ONNX is not installed, or torch does not write the opset."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX needs {' and '.join(missing)}: pip install 'lewel[onnx]'.")
    if opset not in OPSETS:
        raise UserError(f"--opset {opset} is not one of {OPSETS[0]} to {OPSETS[-1]}.")


def write_onnx(path: Path, net: nn.Module, images: Tensor, opset: int = OPSET) -> None:
    """A network as one ONNX file: `images` (B, 3, S, S) -> `features`, `feature_map`, any B."""
    need_onnx(opset)
    with torch.no_grad():
        outputs = OUTPUTS[: len(FeatureGraph(net).eval()(images))]
    with _quietly():
        program = torch.onnx.export(
            trace(net, images),
            input_names=["images"],
            output_names=list(outputs),
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    written = int(program.model.opset_imports[""])
    if written != opset:
        raise UserError(
            f"This network cannot be written in ONNX's opset {opset} (torch writes {written}): "
            f"use --opset {written}."
        )
    program.model.doc_string = mark("export")
    write_marked(path, "export", lambda temp: program.save(temp, external_data=False))


def onnx_features(path: Path, images: Tensor) -> list[Tensor]:
    """The outputs of an ONNX file for images, computed by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {"images": images.numpy()})
    return [torch.from_numpy(value) for value in found]


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the warnings and logs of the exporter."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
