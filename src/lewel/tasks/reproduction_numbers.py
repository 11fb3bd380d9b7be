"""Numbers of a reproduction in one file: to publish them, and to share the work among machines.

Each number carries a digest of the settings that decide it. Numbers of other settings are not used.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lewel.config.recipes import read_recipe
from lewel.config.settings import dotted
from lewel.errors import UserError, state_of
from lewel.files import write_atomically

if TYPE_CHECKING:
    from lewel.tasks.reproduction_plan import Backbone

FORMAT = "lewel-numbers-1"


class Known(NamedTuple):
    """A number that another queue has measured."""

    digest: str
    number: float
    seconds: float  # of the evaluation
    also: dict[str, float] = {}  # noqa: RUF012  other numbers of it, by the paper's names


NOTHING = Known("", 0.0, 0.0)

Numbers = dict[str, dict[str, dict[str, Known]]]  # by backbone, evaluation and digest


def digest(one: "Backbone", part: str) -> str:
    """Of all settings that decide what a part gives; paths of the data are left out."""
    scale = one.setup.scale
    recipe = dotted(_recipe(one.recipe, "pretrain"))  # what the queue gives replaces its values
    decides: list[Any] = [
        {**recipe, **scale.settings, **one.own_settings, "seed": one.seed, "data": scale.data},
        one.row.kind,
    ]
    if part == "step_times":
        decides = [scale.bench]
    elif part in scale.evaluations:
        measured = scale.evaluations[part]
        name = measured.recipe
        name = name.get(one.row.method) if isinstance(name, dict) else name
        decides += [
            measured.model_dump(exclude={"title", "recipe", "also"}, exclude_defaults=True),
            None if name is None else _recipe(name, "eval"),
        ]
    text = json.dumps(decides, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _recipe(name: str, kind: str) -> dict[str, Any]:
    """A recipe, read once: every part of a queue asks for it."""
    return read_recipe(name, kind)


def wrote(file: Path) -> bool:
    """Whether a file is one of `write_numbers`."""
    with suppress(OSError):
        return FORMAT.encode() in file.read_bytes()[:100]
    return False


def read_numbers(files: Iterable[Path]) -> Numbers:
    """The numbers of files that `write_numbers` wrote."""
    numbers: Numbers = {}
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(content["format"])
            for name, parts in content["backbones"].items():
                for part, found in parts.items():
                    also = {key: _number(one) for key, one in found.get("also", {}).items()}
                    number, seconds = _number(found["number"]), _number(found["seconds"])
                    known = Known(str(found["digest"]), number, seconds, also)
                    mine = numbers.setdefault(name, {}).setdefault(part, {})
                    before = mine.get(
                        known.digest, known
                    )  # another file's may be of other settings
                    mine[known.digest] = known._replace(also=before.also | known.also)
        except OSError:
            raise UserError(f"--known {file} {state_of(file)}: expected a numbers.json.") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"--known {file} is no numbers.json of `lewel reproduce`: leave it out."
            ) from None
    return numbers


def _number(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise ValueError(value)
    return float(value)  # type: ignore[arg-type]


def as_json(known: Known) -> dict[str, Any]:
    """A number in a file."""
    return {key: value for key, value in known._asdict().items() if value != {}}


def write_numbers(queue: Iterable["Backbone"], file: Path) -> Path:
    """Write the numbers of all finished evaluations of a queue; those of other queues stay."""
    before = read_numbers([file]) if wrote(file) else {}
    backbones: dict[str, dict[str, Any]] = {
        name: {part: as_json([*known.values()][-1]) for part, known in parts.items()}
        for name, parts in before.items()
    }
    for one in queue:
        for part in one.evaluations:
            if part in one.setup.scale.evaluations and (number := one.number(part)) is not None:
                key = digest(one, part)
                also = before.get(one.folder.name, {}).get(part, {}).get(key, NOTHING).also
                known = Known(key, number, one.spent(part) or 0.0, also | one.others(part))
                backbones.setdefault(one.folder.name, {})[part] = as_json(known)
    text = json.dumps({"format": FORMAT, "backbones": dict(sorted(backbones.items()))}, indent=1)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, lambda aside: aside.write_text(text + "\n", encoding="utf-8"))
    return file
