"""Cached results of a backbone: an identical evaluation is not computed twice."""

import hashlib
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any

from lewel.errors import RunError
from lewel.files import write_atomically

Entry = dict[str, Any]  # the settings of an evaluation, and its result
KEYS = ("settings", "result")
CHECKSUM = "checksum"  # of an entry; older ones have none
Check = Callable[[Entry], bool]
ADDED = (
    "network",
    "image_files",
    "mask_files",
    "labelled",
)  # keys of settings that older results lack
# Keys that version 0.1 wrote, and what they are called now.
RENAMED = {
    "question": "settings",
    "answer": "result",
    "rivals": "baselines",
    "learned": "gain",
    "learned_from": "training_images",
    "likeness": "correlation",
    "positions": "locations",
    "rates": "by_lr",
    "search": "by_lr",
    "chosen": "selected_on",
    "chosen_on": "selected_on",
    "rate": "lr",
    "decay": "weight_decay",
}


class Results:
    """The results of one backbone, a file for each task: <folder>/results/<task>.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "results"

    def path(self, task: str) -> Path:
        return self.folder / f"{task}.json"

    def entries(self, task: str) -> list[Entry]:
        """All evaluations of a task, the oldest first."""
        path = self.path(task)
        if not path.exists():
            return []
        try:
            entries: list[Entry] = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(entries, list):
                raise ValueError("it holds no list of results")
            known = [entry if "settings" in entry else upgraded(task, entry) for entry in entries]
            if not all(isinstance(entry[key], dict) for entry in known for key in KEYS):
                raise ValueError("an entry is not a result")
            if any(CHECKSUM in entry and entry != with_checksum(entry) for entry in known):
                raise ValueError("an entry was changed after lewel wrote it")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = str(error) if isinstance(error, ValueError) else "an entry is not a result"
            raise RunError(
                f"{path} is damaged ({reason}): delete it to evaluate again, or use another --out."
            ) from None
        return known

    def tasks(self) -> list[str]:
        """The tasks that have results."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def find(self, task: str, settings: Entry, still_right: Check = lambda result: False) -> Any:
        """The result of an identical evaluation, or None.

        Older results lack the keys in ADDED: `still_right` tells whether one can be used.
        """
        for entry in reversed(self.entries(task)):
            numbers = [value for value in entry["result"].values() if isinstance(value, float)]
            if all(map(isfinite, numbers)) and self._same(entry, settings, still_right):
                return entry["result"]
        return None

    @staticmethod
    def _same(entry: Entry, settings: Entry, still_right: Check) -> bool:
        settings = json.loads(json.dumps(settings))  # as it comes back from a file
        if entry["settings"] == settings:
            return True
        older = {key: value for key, value in settings.items() if key not in ADDED}
        result = entry["result"]
        return older != settings and entry["settings"] == older and still_right(result)

    def keep(
        self,
        task: str,
        settings: Entry,
        result: Entry,
        still_right: Check = lambda result: False,
    ) -> Path:
        """Write a result, in the place of an older one of the same evaluation."""
        settings = json.loads(json.dumps(settings))
        others = [
            entry for entry in self.entries(task) if not self._same(entry, settings, still_right)
        ]
        entry = with_checksum({"settings": settings, "result": json.loads(json.dumps(result))})
        text = json.dumps([*others, entry], indent=1)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path(task), lambda aside: aside.write_text(text, encoding="utf-8"))
        return self.path(task)


def upgraded(task: str, entry: Entry) -> Entry:
    """An entry that version 0.1 wrote, with today's keys."""
    renamed = {RENAMED.get(key, key): value for key, value in entry.items()}
    result = {RENAMED.get(key, key): value for key, value in renamed["result"].items()}
    if task == "detect" and "gain" in result:
        result["training_images"] = result.pop("gain")
    if task == "where":
        for numbers in (*result["baselines"].values(), result["gain"]):
            if "likeness" in numbers:
                numbers["correlation"] = numbers.pop("likeness")
    return {"settings": renamed["settings"], "result": result}


def with_checksum(entry: Entry) -> Entry:
    """An entry with the checksum of its settings and its result, as they come from a file."""
    text = json.dumps([entry[key] for key in KEYS], sort_keys=True)
    return entry | {CHECKSUM: hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]}


def unchanged_since(files: Iterable[Path], result: Entry) -> bool:
    """Whether files are older than a result that was computed from them."""
    try:
        written = datetime.strptime(str(result.get("written")), "%Y-%m-%d %H:%M:%S%z").timestamp()
    except ValueError:
        written = 0.0
    return all(file.stat().st_ctime <= written for file in files)


def fingerprint(file: Path) -> str:
    """A hash of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
