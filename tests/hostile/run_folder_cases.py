"""Run folders of which a file is deleted, empty, cut, random, a list, or has one flipped byte."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.hostile.case import WORLD, Case, Right, bring, case, flipped
from tests.hostile.world import DETECTED, EVALUATED, LEWEL, RUN, SEGMENTED, TRAINED

Damage = Callable[[Path], None]


def _cut_at_a_line(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))


DAMAGES: dict[str, Damage] = {
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b"") and None,
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "random": lambda path: path.write_bytes(os.urandom(path.stat().st_size)) and None,
    "a list": lambda path: path.write_text("[1, 2]") and None,
    "flipped": flipped,
}
TEXT_DAMAGES: dict[str, Damage] = {**DAMAGES, "cut at a line": _cut_at_a_line}
NEWEST = "checkpoints/step-000000006.pt"

KNN = f"knn {{run}} --data {{photos}} {EVALUATED}"
MAPS = "maps {run} {plain} --limit 2"
WHERE = "where {run} --data {plain} --limit 4 --accelerator cpu"
EMBED = f"embed {{run}} {{plain}} {EVALUATED}"
EXPORT = "export {run} --to torch-export"
REPORT, RESULTS = "report {run}", "results {run}"
LINEAR = f"linear {{run}} --data {{photos}} {TRAINED}"
FINETUNE = f"finetune {{run}} --data {{photos}} --labels 50% {TRAINED}"
SEGMENT = f"segment {{run}} --data {{masks}} {SEGMENTED}"
DETECT = f"detect {{run}} --data {{coco}} {DETECTED}"
LONGER = RUN.replace("--epochs 2", "--epochs 3")
INIT = f"pretrain {{plain}} --out new {LEWEL} --epochs 1 --init {{run}}"

# Commands that need a file, and those that do without it.
NEEDS = {
    "backbone.safetensors": (
        KNN,
        LINEAR,
        FINETUNE,
        SEGMENT,
        DETECT,
        EMBED,
        EXPORT,
        MAPS,
        WHERE,
        INIT,
    ),
    "heads.safetensors": (MAPS, WHERE),
    "config.yaml": (MAPS, WHERE),
}
FREE = {
    "heads.safetensors": (KNN, EMBED, EXPORT, RESULTS),
    "config.yaml": (KNN, EMBED, RESULTS),
    "card.json": (KNN, EMBED, EXPORT, MAPS, RESULTS, REPORT),
    "views.png": (KNN, MAPS, RESULTS),
    "metrics.jsonl": (KNN, MAPS, RESULTS),
    NEWEST: (KNN, MAPS, RESULTS, REPORT),
}


def damaged(file: str, damage: Damage) -> Callable[[Path], None]:
    """A prepare that damages a file of the run."""

    def prepare(place: Path) -> None:
        damage(bring(place, "run") / file)

    return prepare


def restored(file: str) -> Callable[[Path, str], str | None]:
    """A check that a file of the run is again what it was."""

    def check(place: Path, said: str) -> str | None:
        now, before = place / "run" / file, place.parent / WORLD / "run" / file
        if not now.is_file():
            return f"{file} was not written again"
        if file.endswith(".safetensors"):
            try:
                one, two = load_file(now), load_file(before)
            except Exception:
                return f"{file} is still damaged"
            same = one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
            return None if same else f"{file} holds other weights than the checkpoint"
        if file.endswith(".json"):
            try:
                keys = json.loads(now.read_text()).keys()
            except (ValueError, AttributeError):
                return f"{file} is still damaged"
            missing = json.loads(before.read_text()).keys() - keys
            return f"{file} lacks {sorted(missing)}" if missing else None
        return None if now.stat().st_size > 100 else f"{file} is still damaged"

    return check


def kept_in_run(place: Path, said: str) -> str | None:
    """The result belongs to the run, not to a folder that runs share."""
    return "its result went to runs/, which all runs share" if (place / "runs").exists() else None


def told_in_the_page(place: Path, said: str) -> str | None:
    """A report without a result tells why, on the screen or in the page."""
    told = said + (place / "run" / "report.html").read_text()
    return None if "damaged" in told else "the report is silent on the damaged result"


def cases() -> list[Case]:
    return [*_resumed(), *_needed(), *_not_needed(), *_results(), *_checkpoints()]


def _resumed() -> list[Case]:
    """The same `pretrain` on a finished run."""
    found = []
    for file in ("backbone.safetensors", "heads.safetensors", "card.json", "views.png"):
        for why, damage in DAMAGES.items():
            if file == "views.png" and why == "flipped":
                continue  # a picture that is a little different
            found.append(
                case(
                    "runs",
                    RUN,
                    f"{file} {why}",
                    prepare=damaged(file, damage),
                    check=restored(file),
                )
            )
    for why, damage in TEXT_DAMAGES.items():
        found.append(
            case(
                "warns",
                RUN,
                f"config.yaml {why}",
                prepare=damaged("config.yaml", damage),
                says=r"config\.yaml",
            )
        )
        found.append(
            case("clear", RUN, f"metrics.jsonl {why}", prepare=damaged("metrics.jsonl", damage))
        )
        found.append(
            case("clear", LONGER, f"metrics.jsonl {why}", prepare=damaged("metrics.jsonl", damage))
        )
    return found


def _needed() -> list[Case]:
    found = []
    for file, lines in NEEDS.items():
        damages = TEXT_DAMAGES if file == "config.yaml" else DAMAGES
        for line in lines:
            for why, damage in damages.items():
                # One changed bit of a weight leaves a network that works.
                right: Right = "clear" if why == "flipped" and "tensors" in file else "refused"
                prepare = damaged(file, damage)
                found.append(case(right, line, f"{file} {why}", prepare=prepare))
    return found


def _not_needed() -> list[Case]:
    found = []
    for file, lines in FREE.items():
        for line in lines:
            for why in ("deleted", "a list", "random"):
                right: Right = "runs" if why == "deleted" else "clear"
                check = kept_in_run if line == KNN and why == "deleted" else None
                prepare = damaged(file, DAMAGES[why])
                found.append(case(right, line, f"{file} {why}", prepare=prepare, check=check))
    return found


def _results() -> list[Case]:
    """results/knn.json is read by three commands."""
    contents = {
        "empty": "",
        "cut": '[{"settings": {"da',
        "a list of numbers": "[1, 2]",
        "a list of lists": "[[]]",
        "keys": '{"a": 1}',
        "null": "null",
        "entries without a result": '[{"settings": {}}]',
        "a result without numbers": '[{"settings": {}, "result": {}}]',
        "a result that is a list": '[{"settings": {}, "result": []}]',
        "a result of words": '[{"settings": {"weights": "x"}, "result": {"top1": "x"}}]',
    }

    def holding(content: str) -> Callable[[Path], None]:
        return lambda place: (
            (bring(place, "run") / "results" / "knn.json").write_text(content) and None
        )

    found = []
    for why, content in contents.items():
        about = {"why": f"results/knn.json {why}", "prepare": holding(content)}
        found.append(case("stops", RESULTS, **about))
        found.append(case("warns", REPORT, **about, check=told_in_the_page))
        if not why.startswith(("a result", "entries")):
            found.append(case("stops", KNN, **about))
    return found


def _checkpoints() -> list[Case]:
    """A damaged checkpoint is noticed, and the one before is used."""
    found = []
    for why, damage in DAMAGES.items():
        if why == "deleted":
            continue
        for line in (RUN, LONGER):
            prepare = damaged(NEWEST, damage)
            found.append(
                case("runs", line, f"newest checkpoint {why}", prepare=prepare, says="damaged")
            )
    for part in (0.0, 0.01, 0.1, 0.3, 0.7, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0):
        prepare = damaged(NEWEST, lambda path, part=part: flipped(path, part))  # type: ignore[misc]
        why = f"newest checkpoint, a byte at {part:.1%}"
        found.append(case("runs", LONGER, why, prepare=prepare, says="damaged"))

    def each(damage: Damage) -> Callable[[Path], None]:
        def prepare(place: Path) -> None:
            for path in (bring(place, "run") / "checkpoints").glob("*.pt"):
                damage(path)

        return prepare

    for why, damage in DAMAGES.items():
        for line in (RUN, LONGER):
            if why == "deleted":
                says = "--init"
                found.append(
                    case("refused", line, "no checkpoints", prepare=each(damage), says=says)
                )
            else:
                found.append(case("stops", line, f"all checkpoints {why}", prepare=each(damage)))
    return found
