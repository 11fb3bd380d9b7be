"""What commands give back in Python: small typed results that show themselves in a notebook."""

import base64
import json
import os
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from lewel.errors import RunError
from lewel.evaluate.statistics import counted
from lewel.pages.gallery import Gallery


def table(title: str, rows: dict[str, Any]) -> str:
    """Names and values as an HTML table, all text escaped."""
    row = "<tr><th style='text-align:left'>{}</th><td>{}</td></tr>"
    cells = "".join(
        row.format(escape(str(name)), escape(str(value)))
        for name, value in rows.items()
        if value is not None
    )
    return f"<b>{escape(title)}</b><table>{cells}</table>"


def percent(value: float | None) -> str | None:
    """A fraction in percent."""
    return None if value is None else f"{value:.1%}"


def between(interval: tuple[float, float]) -> str:
    """A 95 % interval in percent."""
    low, high = interval
    return f"{low:.1%} - {high:.1%}"


@dataclass(frozen=True)
class Pretrained(os.PathLike[str]):
    """A run folder; it can be given wherever a path or a backbone is expected."""

    folder: Path
    method: str
    steps: int
    knn_before: float | None  # accuracy before training, where there are labels
    knn: float | None

    @classmethod
    def read(cls, folder: Path, method: str) -> "Pretrained":
        """What the card of a run folder holds."""
        try:
            card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
            return cls(folder, method, card["steps"], card["knn_before"], card["knn"])
        except FileNotFoundError:  # another rank's disk
            return cls(folder, method, 0, None, None)
        except (ValueError, KeyError, TypeError):
            raise RunError(
                f"{folder / 'card.json'} is damaged: run the same command again to restore it."
            ) from None

    @property
    def warning(self) -> str | None:
        """A sentence where training did not help."""
        if self.knn is None or self.knn_before is None or self.knn > self.knn_before:
            return None
        return (
            "k-NN did not rise: train for longer, on more images, or with another method. "
            "The report shows loss and embedding std."
        )

    @property
    def backbone(self) -> Path:
        """The file of the trained backbone."""
        return self.folder / "backbone.safetensors"

    def __fspath__(self) -> str:
        return str(self.folder)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def __str__(self) -> str:
        return str(self.folder)

    def _repr_html_(self) -> str:
        views, picture = self.folder / "views.png", ""
        if views.exists():
            content = base64.b64encode(views.read_bytes()).decode("ascii")
            picture = f'<img src="data:image/png;base64,{content}" alt="what the network saw">'
        rows = {
            "steps": f"{self.steps:,}",
            "k-NN accuracy before training": percent(self.knn_before),
            "k-NN accuracy": percent(self.knn),
            "warning": self.warning,
        }
        return table(f"{self.method} in {self.folder}", rows) + picture


@dataclass(frozen=True)
class Evaluated:
    """The result of an evaluation, and the file that it is cached in."""

    file: Path
    numbers: dict[str, Any]  # all of it, as in the file

    @property
    def task(self) -> str:
        return str(self.numbers["task"])

    @property
    def data(self) -> str:
        return str(self.numbers["data"])

    @property
    def images(self) -> int:
        """Images of the validation set."""
        return int(self.numbers["images"])

    def rows(self) -> dict[str, Any]:
        """What is shown first, by name."""
        return {}

    def _repr_html_(self) -> str:
        return table(f"{self.task} on {self.data}", {**self.rows(), "images": counted(self.images)})


@dataclass(frozen=True)
class ByClass(Evaluated):
    """A result with an interval and a number for each class."""

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, by the bootstrap over images."""
        low, high = self.numbers["interval"]
        return low, high

    @property
    def per_class(self) -> dict[str, float]:
        return dict(self.numbers["per_class"])


@dataclass(frozen=True)
class Accuracy(ByClass):
    """knn, linear and finetune."""

    @property
    def top1(self) -> float:
        return float(self.numbers["top1"])

    @property
    def top5(self) -> float:
        return float(self.numbers["top5"])

    def rows(self) -> dict[str, Any]:
        return {
            "top-1": percent(self.top1),
            "95 % interval": between(self.interval),
            "top-5": percent(self.top5),
        }


@dataclass(frozen=True)
class Segmented(ByClass):
    """segment."""

    @property
    def miou(self) -> float:
        return float(self.numbers["miou"])

    def rows(self) -> dict[str, Any]:
        return {
            "mIoU": percent(self.miou),
            "95 % interval": between(self.interval),
            "pixel accuracy": percent(self.numbers["pixel_accuracy"]),
        }


@dataclass(frozen=True)
class Detected(Evaluated):
    """detect: average precision as fractions."""

    @property
    def ap(self) -> float:
        return float(self.numbers["AP"])

    @property
    def ap50(self) -> float:
        return float(self.numbers["AP50"])

    @property
    def ap75(self) -> float:
        return float(self.numbers["AP75"])

    def rows(self) -> dict[str, Any]:
        masks = self.numbers.get("mask", {})
        return {
            **{name: percent(self.numbers[name]) for name in ("AP", "AP50", "AP75")},
            "mask AP": percent(masks.get("AP")),
            "metric": self.numbers["rule"],
        }


@dataclass(frozen=True)
class Located(Evaluated):
    """where: numbers of the maps, each a mean over images."""

    def __getitem__(self, name: str) -> float | None:
        """A number of the run's own maps, such as consistency."""
        value: float | None = self.numbers["baselines"]["run"][name]["value"]
        return value

    def rows(self) -> dict[str, Any]:
        found = self.numbers["baselines"]["run"]
        return {
            name: f"{one['value']:.3f}" for name, one in found.items() if one["value"] is not None
        }


@dataclass(frozen=True)
class Mapped:
    """maps: a gallery, and the files that show it."""

    gallery: Gallery
    files: tuple[Path, ...]  # a PNG and an HTML page

    def _repr_html_(self) -> str:
        content = base64.b64encode(self.files[0].read_bytes()).decode("ascii")
        return f'<img src="data:image/png;base64,{content}" alt="alignment maps">'


class Embedded(NamedTuple):
    """embed: how many images, the file of their features, and the images of each split."""

    images: int
    file: Path
    splits: dict[str, int]


class Exported(NamedTuple):
    """export: the files, the result of the comparison, and code that loads it."""

    files: tuple[Path, ...]
    compared: str
    loading: tuple[str, ...]
    notes: tuple[str, ...] = ()
