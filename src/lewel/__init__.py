"""lewel: pre-train image backbones without labels, learning where to learn."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lewel.api import (
        detect,
        doctor,
        embed,
        export,
        finetune,
        import_,
        knn,
        linear,
        load_backbone,
        maps,
        pack,
        pretrain,
        recipes,
        report,
        results,
        segment,
        transform,
        where,
    )

__all__ = [
    "detect",
    "doctor",
    "embed",
    "export",
    "finetune",
    "import_",
    "knn",
    "linear",
    "load_backbone",
    "maps",
    "pack",
    "pretrain",
    "recipes",
    "report",
    "results",
    "segment",
    "transform",
    "where",
]


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> Any:
    """Import torch and all that only when it is used: `lewel --help` answers at once."""
    if name in __all__:
        from lewel import api

        return getattr(api, name)
    raise AttributeError(f"module 'lewel' has no attribute {name!r}")
