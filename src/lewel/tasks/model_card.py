"""The model card of `lewel export --to hub`: what is known of a backbone, and its maps."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lewel.config.commands import MapsConfig
from lewel.config.resolve import read_config
from lewel.errors import RunError, UserError
from lewel.evaluate.results import Results, fingerprint
from lewel.files import write_atomically
from lewel.interop.backbones import Network
from lewel.interop.hub import CARD, CONFIG, PICTURE
from lewel.interop.lookup import folder_for, read_card, weights_file
from lewel.methods.registry import find_method
from lewel.pages.model_card import ModelCard, as_markdown
from lewel.pages.overlays import grid, png
from lewel.pages.text import PACE, environment, facts, highlights, title_of
from lewel.tasks.dry_run import duration
from lewel.tasks.maps import gallery_of
from lewel.tasks.results import COLUMNS, cells_of
from lewel.train.metrics import MetricsReader
from lewel.train.run_folder import RunFolder

SHOWN = MapsConfig(n=6, limit=2)  # maps and images of the picture


class Made(NamedTuple):
    """A model card that is not yet written."""

    text: str
    picture: bytes | None
    notes: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A hash of the text, by which a later export knows whether it was edited."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


def known_digest(folder: Path, overwrite: bool) -> str | None:
    """The hash of the card that an earlier export wrote to a folder; refuses other folders."""
    if not any(folder.iterdir()):
        return None
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return str(config["lewel"]["card"])
    except (OSError, ValueError, KeyError, TypeError):
        if overwrite:
            return None
        raise UserError(
            f"--out {folder} holds other files: choose a new or an empty folder."
        ) from None


def make_card(what: str, network: Network, features: int, untrained: bool) -> Made:
    """The model card of a backbone; without training and results where it is not a run's."""
    file = None if untrained else weights_file(what)
    card = read_card(file) if file is not None and file.suffix == ".safetensors" else {}
    run = folder_for(what)
    name = file.resolve().parent.name if card and file is not None else Path(what).name
    content: dict[str, Any] = {"title": name, "features": features}
    content |= {"image_size": network.image_size, "summary": _summary(what, network, untrained)}
    picture: bytes | None = None
    notes: tuple[str, ...] = ()
    if card.get("steps") and file is not None:
        content |= _trained(card, RunFolder(file.parent))
        picture, caption, notes = _maps(file.parent)
        content |= {"picture": PICTURE if picture else "", "caption": caption}
    if file is not None:
        content["results"] = _results(run, card, file)
    return Made(as_markdown(ModelCard(**content)), picture, notes)


def write_card(made: Made, folder: Path, known: str | None) -> tuple[list[Path], tuple[str, ...]]:
    """Write README.md and maps.png; a README.md that was edited is kept."""
    files, notes = [], made.notes
    target = folder / CARD
    old = hashlib.sha256(target.read_bytes()).hexdigest() if target.exists() else None
    if old in (None, known):
        write_atomically(target, lambda aside: aside.write_text(made.text, encoding="utf-8"))
        files.append(target)
    else:
        notes += (f"{target} was edited and is kept: delete it to get a new one.",)
    content = made.picture
    if content is not None:
        write_atomically(folder / PICTURE, lambda aside: aside.write_bytes(content))
        files.append(folder / PICTURE)
    return files, notes


def _summary(what: str, network: Network, untrained: bool) -> str:
    if untrained:
        return f"{network.name}, randomly initialised."
    return f"{network.name} with the weights of {Path(what).name}."


def _trained(card: dict[str, Any], run: RunFolder) -> dict[str, Any]:
    """What a run's card, settings and metrics tell of its training."""
    title = title_of(card["method"])
    config = read_config(run.config).model_dump(mode="json") if run.config.exists() else {}
    metrics = MetricsReader(run.metrics).update()
    # The name of the data, not its path on this machine.
    known = facts({**config, "data": card["data"]}, card, metrics) if config else {}
    if config:
        known["Samples seen"] = f"{card['steps'] * config['batch_size']:,}"
    if pace := highlights(metrics).get(PACE):
        known[PACE] = pace
        a_second = float(median(metrics.points("images_per_s")[:, 2]))
        if config and a_second > 0:  # without evaluations and pauses
            seconds = card["steps"] * config["batch_size"] / a_second
            known["Training time"] = f"about {duration(seconds)}"
    if config.get("init"):
        by_name = config["init"].startswith(("timm/", "torchvision/"))  # timm may know it no more
        known["Initial weights"] = config["init"] if by_name else "a file"
    with suppress(UserError):  # a method of a package that is not installed
        known["Paper"] = find_method(card["method"]).about.paper
    known |= {name: text for name, text in environment(card).items() if name != "system"}
    images = f"{card['images']:,} images, without labels"
    found = {
        "summary": f"{card['backbone']}, pre-trained by {title} on {card['data']} ({images}).",
        "tags": [str(card["method"])],
        "training": known,
    }
    if card.get("knn") is not None and card.get("knn_before") is not None:
        change = f"{card['knn_before']:.1%} before and {card['knn']:.1%} after it"
        found["probe"] = f"k-NN accuracy, measured during pre-training: {change}."
    return found


def _results(run: Path, card: dict[str, Any], file: Path) -> list[dict[str, str]]:
    """The results of these weights, and of the same network randomly initialised."""
    mine, results = (fingerprint(file), "untrained"), Results(run)
    entries = [(task, entry) for task in results.tasks() for entry in results.entries(task)]
    return [
        dict(zip(COLUMNS, cells_of(run, card, task, entry, ""), strict=True))
        for task, entry in entries
        if entry["settings"]["weights"] in mine
    ]


def _maps(run: Path) -> tuple[bytes | None, str, tuple[str, ...]]:
    """A picture of alignment maps over images of the run, its caption, and notes."""
    try:
        gallery = gallery_of(run, None, SHOWN)
    except (UserError, RunError) as error:
        return None, "", (f"The model card has no maps: {error}",)
    kind = "training" if gallery.trained_on else "validation"
    caption = f"Alignment maps over {kind} images: {gallery.rule}. {gallery.caption}"
    note = f"{PICTURE} shows images of the {kind} set: delete it if they are private."
    return png(grid(gallery)), caption, (note,)
