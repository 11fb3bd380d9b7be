"""Methods by flat keywords, each assigned to the group of settings that has it."""

from dataclasses import fields, replace
from inspect import signature
from typing import Any

import torch

from lewel.config.methods import GROUPS, own_options, taken
from lewel.methods.base import Method
from lewel.nn.backbone import Backbone
from lewel.nn.views import Views
from tests.conftest import small_backbone


def known_settings(kind: type[Method]) -> set[str]:
    """The flat names of all settings of a method."""
    return {key.partition(".")[2] for key in taken(kind)} | set(own_options(kind))


def make_method(kind: type[Method], backbone: Backbone | None = None, **given: Any) -> Method:
    """A method on a tiny backbone; `dim=8` is head.dim, `queue=10` contrast.queue, and so on."""
    groups: dict[str, Any] = {}
    for name, parameter in signature(kind.__init__).parameters.items():
        if name in GROUPS:
            spec: Any = parameter.default
            known = {field.name for field in fields(spec)} & given.keys()
            groups[name] = replace(spec, **{key: given.pop(key) for key in known})
    own = {name: given.pop(name) for name in (*own_options(kind), "images") if name in given}
    assert not given, f"{kind.__name__} has no {given}"
    return kind(small_backbone() if backbone is None else backbone, **groups, **own)


def cut_views(
    batch: int = 3, dtype: torch.dtype = torch.float64, size: int = 16, total: int = 12
) -> Views:
    """Two views of noise with random crops that overlap, some of them flipped."""
    crops = [torch.randn(batch, 3, size, size, dtype=dtype) for _ in range(2)]
    corners = [torch.rand(batch, 2) * 0.3 for _ in range(2)]
    boxes = [torch.cat([corner, 0.3 + torch.rand(batch, 2) * 0.4], 1) for corner in corners]
    flips = [torch.arange(batch) % 2 == 0, torch.arange(batch) % 3 == 0]
    return Views(crops, boxes, flips, torch.randperm(total)[:batch], total)
