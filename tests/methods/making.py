"""Methods by flat keywords, each assigned to the group of settings that has it."""

from dataclasses import fields, replace
from inspect import signature
from typing import Any

from lewel.config.methods import GROUPS
from lewel.methods.base import Method
from lewel.nn.backbone import Backbone
from tests.conftest import small_backbone


def make_method(kind: type[Method], backbone: Backbone | None = None, **given: Any) -> Method:
    """A method on a tiny backbone; `dim=8` is head.dim, `queue=10` contrast.queue, and so on."""
    groups: dict[str, Any] = {}
    for name, parameter in signature(kind.__init__).parameters.items():
        if name in GROUPS:
            spec: Any = parameter.default
            known = {field.name for field in fields(spec)} & given.keys()
            groups[name] = replace(spec, **{key: given.pop(key) for key in known})
    assert not given, f"{kind.__name__} has no {given}"
    return kind(small_backbone() if backbone is None else backbone, **groups)
