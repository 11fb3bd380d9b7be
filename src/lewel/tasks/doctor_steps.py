"""One training step of a method in a given arithmetic, in a process of its own.

`python -m lewel.tasks.doctor_steps FOLDER ACCELERATOR ARITHMETIC...` takes a step of every method
in each arithmetic and writes FOLDER/METHOD-ARITHMETIC.pt.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lewel.config.build import build_dataset, build_method, build_optimizer, peak_rate
from lewel.config.methods import typed_options, without_unused
from lewel.config.pretrain import PretrainConfig
from lewel.config.resolve import resolve
from lewel.data.sources.open import open_data
from lewel.data.views.loader import Batch, finish_views
from lewel.methods.registry import method_names
from lewel.nn.backbone import MEAN, STD
from lewel.train.devices import Placement, open_fabric
from lewel.train.run import views_of
from lewel.train.skipped import step_unless_infinite

SMALL: dict[str, Any] = {  # every part of a network, and quick on a CPU
    "data": "scenes",
    "limit": 64,
    "backbone": "resnet10",
    "stem": "small",
    "width": 16,
    "image_size": 32,
    "batch_size": 16,
    "epochs": 3,
    "channels_last": False,
    "head": {"dim": 32, "hidden": 64, "groups": 4},
    "contrast": {"queue": 64, "norm_groups": 1},
    "optim": {"name": "sgd", "lr": 0.05, "lr_batch_size": 16, "warmup_epochs": 0},
    "knn": {"every": 0},
    "workers": 0,
}
TRIES = 16  # a gradient scaler skips steps until its scale fits


def small_config(method: str, precision: str = "32", **more: Any) -> PretrainConfig:
    """A run of seconds, with the settings that the method takes."""
    given = {**SMALL, "method": method, "precision": precision, **more}
    return typed_options(without_unused(resolve(given, {})))


def one_step(method: str, arithmetic: str, accelerator: str) -> dict[str, Any]:
    """A step on the first batch -> its loss, the change of all parameters, and the views.

    `arithmetic` is a --precision, tf32, or float64. The step takes views made on the CPU, so that
    devices are compared by the step alone; `views` are those made on the device.
    """
    precision = "32" if arithmetic in ("tf32", "float64") else arithmetic
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = arithmetic == "tf32"
    config = small_config(method, precision)
    fabric = open_fabric(Placement(1, 1, "lewel"), accelerator, precision, False)
    batch = first_batch(config)
    dtype = torch.float64 if arithmetic == "float64" else torch.float32
    crops = [crop.to(fabric.device, dtype) for crop in made_on(torch.device("cpu"), batch)]
    views = views_of(batch, crops, int(config.limit or 0))
    network = build_method(config, int(config.limit or 0)).to(fabric.device, dtype).train()
    before = flat(network)
    optimizer = build_optimizer(network, config)
    for group in optimizer.param_groups:
        group["lr"] = peak_rate(config)
    module: Any = fabric.setup_module(network)
    wrapped: Any = fabric.setup_optimizers(optimizer)
    for _ in range(TRIES):
        out = module(views)
        fabric.backward(out.loss)
        skipped = step_unless_infinite(fabric, wrapped)
        wrapped.zero_grad(set_to_none=True)
        if skipped is None or not skipped.item():
            break
    network.after_step(0.5, out.keys)
    return {
        "loss": out.loss.item(),
        "update": flat(network) - before,
        "views": torch.cat([crop.flatten() for crop in made_on(fabric.device, batch)]).cpu(),
    }


def first_batch(config: PretrainConfig) -> Batch:
    """The first images of the data, cut into views."""
    source = open_data("scenes", image_size=config.image_size, limit=config.limit).unlabelled
    return build_dataset(config, source).__getitems__([(0, i) for i in range(config.batch_size)])


def made_on(device: torch.device, batch: Batch) -> list[Tensor]:
    """The views with their colour augmentation."""
    return finish_views(batch, device, MEAN, STD)


def flat(module: torch.nn.Module) -> Tensor:
    """All parameters in a row, float64 on the CPU."""
    return torch.cat([p.detach().flatten().double().cpu() for p in module.parameters()])


def main(folder: Path, accelerator: str, arithmetics: list[str]) -> None:
    """Write a file for every method and arithmetic; one that fails does not stop the others."""
    for arithmetic in arithmetics:
        for method in method_names():
            try:
                taken = one_step(method, arithmetic, accelerator)
            except Exception as error:  # the report names it
                taken = {"error": f"{type(error).__name__}: {error}"}
            torch.save(taken, folder / f"{method}-{arithmetic}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
