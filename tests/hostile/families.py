"""The families of cases, in the order in which they are printed."""

from collections.abc import Callable
from itertools import zip_longest

from tests.hostile import (
    api_cases,
    checkpoint_cases,
    choice_cases,
    combination_cases,
    command_cases,
    data_cases,
    dense_cases,
    flag_cases,
    foreign_file_cases,
    image_cases,
    layout_cases,
    malicious_cases,
    number_cases,
    pack_cases,
    path_cases,
    recipe_cases,
    run_folder_cases,
    signal_cases,
    word_cases,
)
from tests.hostile.case import Case

FAMILIES: dict[str, Callable[[], list[Case]]] = {
    "flags": flag_cases.cases,
    "combinations": combination_cases.cases,
    "paths": path_cases.cases,
    "recipes": recipe_cases.cases,
    "run folders": run_folder_cases.cases,
    "foreign files": foreign_file_cases.cases,
    "numbers": number_cases.cases,
    "data": data_cases.cases,
    "images": image_cases.cases,
    "words": word_cases.cases,
    "signals": signal_cases.cases,
    "layouts": layout_cases.cases,
    "checkpoints": checkpoint_cases.cases,
    "dense": dense_cases.cases,
    "choices": choice_cases.cases,
    "commands": command_cases.cases,
    "api": api_cases.cases,
    "packs": pack_cases.cases,
    "malicious": malicious_cases.cases,
}
EACH = 4  # cases of a family in the quick part


def all_cases() -> list[Case]:
    """Every case, with its family."""
    return [one.named(family) for family, make in FAMILIES.items() for one in make()]


def interleaved(cases: list[Case]) -> list[Case]:
    """The families in turns: a campaign that is cut short has tried some of each."""
    names = dict.fromkeys(one.family for one in cases)
    columns = [[one for one in cases if one.family == name] for name in names]
    return [one for row in zip_longest(*columns) for one in row if one is not None]


def quick(cases: list[Case]) -> list[Case]:
    """A few of each family, evenly spaced, first of all those that end before any training."""
    out = []
    for family in FAMILIES:
        mine = [one for one in cases if one.family == family]
        mine = [one for one in mine if one.right == "refused"] or mine[:1]
        out += mine[:: max(1, len(mine) // EACH)][:EACH]
    return out
