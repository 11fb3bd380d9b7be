"""Recipes that are empty, damaged, of another command, or say a thing twice."""

from pathlib import Path

from tests.hostile.case import Case, bring, case
from tests.hostile.world import DETECTED, SEGMENTED, TRAINED

# The content of a recipe, and what is wrong.
CONTENTS = {
    "": "an empty recipe",
    "# only a comment\n": "a recipe of a comment",
    "null\n": "a recipe of null",
    "- a\n- list\n": "a recipe that is a list",
    "just a word\n": "a recipe that is a word",
    "42\n": "a recipe that is a number",
    "seed: 0\nseed: 1\n": "a key given twice",
    "optim:\n  lr: 0.1\n  lr: 0.2\n": "a nested key given twice",
    "optim: 3\n": "a number where keys are expected",
    "views: [1, 2]\n": "a list where keys are expected",
    "nothing: 1\n": "a key that does not exist",
    "seed: -1\n": "a number out of its range",
    "seed: many\n": "a word for a number",
    "seed: 1.5\n": "a fraction for a whole number",
    "seed: .nan\n": "nan",
    "optim: {lr: .inf}\n": "inf",
    "a: [1\n": "not closed",
    "\tseed: 0\n": "a tabulator",
    "a: &x [*x]\n": "an alias of itself",
    "seed: !!python/object/apply:os.system ['touch owned']\n": "a tag that would run code",
    "!!python/object/new:subprocess.Popen [['touch', 'owned']]\n": "a tag that would run code",
    "seed: !!binary aGVsbG8=\n": "binary data",
    "1: 2\n": "a number as a key",
    "? [a, b]\n: c\n": "a list as a key",
}
COMMANDS = (
    "pretrain {plain} --out new --recipe given.yaml",
    f"linear {{run}} --data {{photos}} --out new --recipe given.yaml {TRAINED}",
    f"finetune {{run}} --data {{photos}} --out new --recipe given.yaml {TRAINED}",
    f"segment {{run}} --data {{masks}} --out new --recipe given.yaml {SEGMENTED}",
    f"detect {{run}} --data {{coco}} --out new --recipe given.yaml {DETECTED}",
)
# Recipes of other commands, by name.
OTHERS = {
    "pretrain {plain} --out new": (
        "linear_lewel_b",
        "detect_coco_small",
        "segment_small",
        "table1",
    ),
    f"linear {{run}} --data {{photos}} --out new {TRAINED}": ("scenes_demo", "segment_small"),
    f"finetune {{run}} --data {{photos}} --out new {TRAINED}": ("scenes_demo", "detect_voc_small"),
    f"segment {{run}} --data {{masks}} --out new {SEGMENTED}": ("scenes_demo", "detect_voc_small"),
    f"detect {{run}} --data {{coco}} --out new {DETECTED}": ("scenes_demo", "segment_small"),
}


def _recipe(content: str) -> object:
    return lambda place: (place / "given.yaml").write_text(content) and None


def _run_config(place: Path) -> None:
    bring(place, "run")
    (place / "run" / "config.yaml").rename(place / "given.yaml")


def cases() -> list[Case]:
    found = [
        case("refused", line, why, prepare=_recipe(content))
        for number, line in enumerate(COMMANDS)
        for content, why in CONTENTS.items()
        if number == 0 or not content.startswith(("optim", "views", "a: &"))
    ]
    found += [
        case("refused", f"{line} --recipe {name}", "a recipe of another command")
        for line, names in OTHERS.items()
        for name in names
    ]
    return found + [
        case("refused", line, "a run's config.yaml", prepare=_run_config) for line in COMMANDS[1:]
    ]
