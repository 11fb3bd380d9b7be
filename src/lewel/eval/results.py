"""Results of a backbone: kept with the question they answer, so that none is computed twice."""

import hashlib
import json
from pathlib import Path
from typing import Any

from lewel.errors import RunError
from lewel.files import write_atomically

Entry = dict[str, Any]  # a question and its answer


class Results:
    """The results of one backbone, a file for each task: <folder>/results/<task>.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "results"

    def path(self, task: str) -> Path:
        return self.folder / f"{task}.json"

    def entries(self, task: str) -> list[Entry]:
        """All questions of a task that were answered, the oldest first."""
        path = self.path(task)
        if not path.exists():
            return []
        try:
            entries: list[Entry] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{path} is damaged ({error}): delete it to judge anew.") from None
        return entries

    def tasks(self) -> list[str]:
        """The tasks that have results."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def answer(self, task: str, question: Entry) -> Entry | None:
        """What is known already of this very question."""
        question = json.loads(json.dumps(question))  # as it comes back from a file
        found = [entry for entry in self.entries(task) if entry["question"] == question]
        return found[-1]["answer"] if found else None

    def keep(self, task: str, question: Entry, answer: Entry) -> Path:
        """Write an answer down, in the place of an older one to the same question."""
        question = json.loads(json.dumps(question))
        others = [entry for entry in self.entries(task) if entry["question"] != question]
        text = json.dumps([*others, {"question": question, "answer": answer}], indent=1)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path(task), lambda aside: aside.write_text(text, encoding="utf-8"))
        return self.path(task)


def fingerprint(file: Path) -> str:
    """What tells a file of weights from another."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
