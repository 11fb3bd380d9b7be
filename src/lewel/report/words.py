"""What a run's settings, card and metrics say, in words for a reader."""

from pathlib import Path
from typing import Any

METHODS = {"lewel_b": "LEWEL_B", "lewel_m": "LEWEL_M", "byol": "BYOL", "moco_v2": "MoCo v2"}


def headline(config: dict[str, Any], card: dict[str, Any]) -> str:
    """Method, network and data in one line."""
    if not config:
        return ""
    method = METHODS.get(str(config.get("method")), str(config.get("method")))
    data = card.get("data", Path(str(config.get("data"))).name)
    return f"{method} trained {config.get('backbone')} on {data}"


def progress(config: dict[str, Any], lines: list[dict[str, Any]], age: float | None) -> str:
    """How far a run is; `age` is the seconds since it wrote a step."""
    epochs, epoch = config.get("epochs"), lines[-1].get("epoch") if lines else None
    if not isinstance(epochs, int | float) or not isinstance(epoch, int | float):
        return "starting" if config else ""
    if epoch >= epochs - 1e-3:
        return "finished"
    return f"epoch {epoch:.2f} of {epochs:g}, last step written {age_word(age)}"


def age_word(age: float | None) -> str:
    """How long ago something was, roughly enough that it need not be said anew all the time."""
    if age is None:
        return "some time ago"
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if age >= 2 * length:
            return f"{age / length:.0f} {unit} ago"
    return "just now"


def highlights(lines: list[dict[str, Any]]) -> dict[str, str]:
    """The few numbers that a reader wants first."""

    def values(key: str) -> list[float]:
        return [line[key] for line in lines if isinstance(line.get(key), int | float)]

    found, knn, loss, pace = {}, values("knn"), values("loss"), values("images_per_s")
    if knn:
        found["k-NN accuracy"] = f"{knn[0]:.1%} → {knn[-1]:.1%}" if knn[1:] else f"{knn[0]:.1%}"
    if loss:
        recent = loss[-50:]  # one batch's loss says little
        found["Loss, last steps"] = f"{sum(recent) / len(recent):.3g}"
    if spread := values("spread"):
        found["Embedding deviation"] = f"{spread[-1]:.2f}"
    if pace:
        found["Images per second"] = f"{sorted(pace)[len(pace) // 2]:,.0f}"
    if wait := values("data_wait"):
        found["Data wait"] = f"{sum(wait) / len(wait):.0%}"
    return found


def facts(
    config: dict[str, Any], card: dict[str, Any], lines: list[dict[str, Any]]
) -> dict[str, str]:
    """What was trained on what, for how long."""
    if not config:
        return {}
    size, images = config.get("image_size"), card.get("images")
    steps = max((line["step"] for line in lines if isinstance(line.get("step"), int)), default=0)
    said = {
        "Method": METHODS.get(str(config.get("method")), str(config.get("method"))),
        "Backbone": f"{config.get('backbone')}, stem {config.get('stem')}, "
        f"width {config.get('width')}",
        "Data": str(config.get("data")),
        "Images": "" if not isinstance(images, int) else f"{images:,} of {size} by {size} px",
        "Epochs": word(config.get("epochs")),
        "Steps": f"{steps:,} of {config.get('batch_size')} images",
        "Precision": f"{config.get('precision')}",
        "Seed": word(config.get("seed")),
    }
    return {name: value for name, value in said.items() if value}


def environment(card: dict[str, Any]) -> dict[str, str]:
    """Versions and machine, as the run noted them."""
    said = {
        "lewel": card.get("lewel"),
        "source commit": card.get("git"),
        "torch": card.get("torch"),
    }
    noted = card.get("environment")
    said |= noted if isinstance(noted, dict) else {}
    said["weights written"] = card.get("written")
    return {name: str(value) for name, value in said.items() if value}


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted keys."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        out |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        )
    return out


def word(value: Any) -> str:
    """A setting in plain words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(word, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
