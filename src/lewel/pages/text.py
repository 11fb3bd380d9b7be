"""The text of a report: settings, card and metrics of a run."""

from pathlib import Path
from typing import Any

from lewel.errors import UserError
from lewel.methods.registry import find_method
from lewel.train.summary import Summary

PACE = "Images per second"


def title_of(method: object) -> str:
    """The title of a method; its name if it is not installed."""
    try:
        return find_method(str(method)).about.title
    except UserError:
        return str(method)


def headline(config: dict[str, Any], card: dict[str, Any]) -> str:
    """Method, backbone and data in one line."""
    if not config:
        return ""
    method = title_of(config.get("method"))
    data = card.get("data", Path(str(config.get("data"))).name)
    return f"{method} trained {config.get('backbone')} on {data}"


def progress(config: dict[str, Any], metrics: Summary, age: float | None) -> str:
    """The progress of a run; `age` is the seconds since its last step was written."""
    epochs, epoch = config.get("epochs"), metrics.epoch
    if not isinstance(epochs, int | float) or epoch is None:
        return "starting" if config else ""
    if epoch >= epochs - 1e-3:
        return "finished"
    return f"epoch {epoch:.2f} of {epochs:g}, last step written {age_text(age)}"


def age_text(age: float | None) -> str:
    """An age in rough words, so that a live page changes rarely."""
    if age is None:
        return "some time ago"
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if age >= 2 * length:
            return f"{age / length:.0f} {unit} ago"
    return "just now"


def highlights(metrics: Summary) -> dict[str, str]:
    """The main metrics of a run."""
    found = {}
    before, knn = metrics.before("knn"), metrics.last("knn")
    if knn is not None:
        several = before is not None and metrics.series["knn"].count > 1
        found["k-NN accuracy"] = f"{before:.1%} → {knn:.1%}" if several else f"{knn:.1%}"
    if loss := metrics.recent("loss"):  # the loss of one batch is noisy
        found["Loss, last steps"] = f"{sum(loss) / len(loss):.3g}"
    if std := metrics.recent("embedding_std"):
        found["Embedding std"] = f"{std[-1]:.2f}"
    if len(pace := metrics.points("images_per_s")):
        found[PACE] = f"{sorted(pace[:, 2])[len(pace) // 2]:,.0f}"
    if len(wait := metrics.points("data_wait")):
        found["Data wait"] = f"{wait[:, 2].mean():.0%}"
    return found


def facts(config: dict[str, Any], card: dict[str, Any], metrics: Summary) -> dict[str, str]:
    """Method, backbone, data and length of the training."""
    if not config:
        return {}
    size, images = config.get("image_size"), card.get("images")
    values = {
        "Method": title_of(config.get("method")),
        "Backbone": f"{config.get('backbone')}, stem {config.get('stem')}, "
        f"width {config.get('width')}",
        "Data": str(config.get("data")),
        "Images": "" if not isinstance(images, int) else f"{images:,} of {size} by {size} px",
        "Epochs": as_text(config.get("epochs")),
        "Steps": f"{max(metrics.step, 0):,} of {config.get('batch_size')} images",
        "Precision": f"{config.get('precision')}",
        "Seed": as_text(config.get("seed")),
    }
    return {name: value for name, value in values.items() if value}


def environment(card: dict[str, Any]) -> dict[str, str]:
    """Versions and machine from card.json."""
    values = {
        "lewel": card.get("lewel"),
        "source commit": card.get("git"),
        "torch": card.get("torch"),
    }
    noted = card.get("environment")
    values |= noted if isinstance(noted, dict) else {}
    values["weights written"] = card.get("written")
    return {name: str(value) for name, value in values.items() if value}


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted keys."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        out |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        )
    return out


def as_text(value: Any) -> str:
    """A setting as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(as_text, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
