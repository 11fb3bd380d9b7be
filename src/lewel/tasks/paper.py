"""The paper's numbers that a result can be compared with.

A number is shown only where everything agrees: the weights are those of a finished run of the
paper's recipe on the paper's data, and the evaluation has the paper's protocol and data.
"""

from pathlib import Path
from typing import Any

from lewel.config.evaluate import CONFIGS, FREE
from lewel.config.identity import follows
from lewel.config.paper import Evaluation, Row, read_paper
from lewel.config.pretrain import PretrainConfig
from lewel.config.recipes import read_recipe
from lewel.config.resolve import read_config
from lewel.errors import UserError
from lewel.evaluate.results import ADDED, Entry, fingerprint
from lewel.interop.lookup import read_card

# Of an evaluation: data and weights, which are compared by other means, and the seed.
NO_PROTOCOL = {"data", "train", "val", "weights", "untrained", "scratch", "seed", *ADDED}
# Of `EvaluateConfig`, but not in the settings that are stored with a result.
NOT_STORED = FREE | {"backbone", "partial"}


def numbers_of(run: Path) -> dict[str, str]:
    """Evaluation -> the paper's numbers, for a finished run of one of the paper's recipes."""
    config, weights = run / "config.yaml", run / "backbone.safetensors"
    if not config.exists() or not weights.exists():
        return {}
    try:
        settings = read_config(config)
    except UserError:  # of a method that is not installed here, or of another version
        return {}
    return stated_numbers(settings, read_card(weights))


def stated_numbers(config: PretrainConfig, card: dict[str, Any]) -> dict[str, str]:
    """Evaluation -> the numbers of all rows that a run has trained, with their tables."""
    paper = read_paper()
    found: dict[str, dict[int, dict[str, float]]] = {}  # evaluation -> table -> metric -> number
    cited = False  # all rows of a method are, or none
    for table in paper.tables:
        if card.get("images") != paper.data[table.pretrained_on].training:
            continue
        for row in table.rows:
            if is_trained_by(row, config, card):
                cited = row.cited
                for name in row.numbers:
                    found.setdefault(name, {})[table.table] = paper.numbers(row, name)
    return {
        name: in_words(by_table) + ", cited from its own paper" * cited
        for name, by_table in found.items()
        if paper.evaluations[name].task is not None
    }


def is_trained_by(row: Row, config: PretrainConfig, card: dict[str, Any]) -> bool:
    """Whether a run has a row's settings and is finished."""
    if row.recipe is None or row.dagger:
        return False
    finished = config.epochs == card.get("epochs")
    return finished and follows(config, read_recipe(row.recipe), row.overrides)


def in_words(by_table: dict[int, dict[str, float]]) -> str:
    """The numbers of some tables; those that agree are stated once."""
    groups: list[tuple[dict[str, float], list[int]]] = []
    for table, numbers in by_table.items():
        if not numbers:  # dashes only
            continue
        for stated, tables in groups:
            if all(stated.get(metric, value) == value for metric, value in numbers.items()):
                stated.update(numbers)
                tables.append(table)
                break
        else:
            groups.append((dict(numbers), [table]))
    return "; ".join(
        f"{', '.join(f'{metric} {value}' for metric, value in stated.items())} "
        f"(Table{'s' * (len(tables) > 1)} {' and '.join(map(str, tables))})"
        for stated, tables in groups
    )


def find_evaluation(file: Path, card: dict[str, Any], task: str, entry: Entry) -> str | None:
    """The paper's evaluation that a result of a run's weights comes from, if there is one."""
    settings, result = entry["settings"], entry["result"]
    for name, evaluation in read_paper().evaluations.items():
        if (
            evaluation.task == task
            and has_protocol(evaluation, card, settings)
            and has_data(evaluation, card, settings, result)
            and settings["weights"] == fingerprint(file)
        ):
            return name
    return None


def has_protocol(evaluation: Evaluation, card: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether the stored settings are those of the paper's recipe."""
    name = evaluation.recipe_for(card.get("method", ""))
    if evaluation.task is None or name is None:
        return False
    recipe = {"data": "", "image_size": card.get("image_size"), **read_recipe(name, "eval")}
    config = CONFIGS[evaluation.task].model_validate(recipe)
    wanted = config.model_dump(mode="json", exclude=NOT_STORED)
    flags = set(ADDED) & set(type(config).model_fields)  # --masks of detect is no file of masks
    free = (NO_PROTOCOL - flags) | set(evaluation.free)
    if evaluation.searched:
        if not {float(rate) for rate in str(settings.get("lr", "nan")).split(",")} <= set(
            evaluation.searched
        ):
            return False
        free.add("lr")
    if config.precision == "auto" and settings.get("precision") in ("32", "tf32"):
        free.add("precision")  # what auto stands for depends on the device
    stored = {key: value for key, value in settings.items() if key not in free}
    return stored == {key: value for key, value in wanted.items() if key not in free}


def has_data(
    evaluation: Evaluation, card: dict[str, Any], settings: dict[str, Any], result: dict[str, Any]
) -> bool:
    """Whether training and validation set are the paper's."""
    assert evaluation.data is not None
    data = read_paper().data[evaluation.data]
    if result.get("images") != data.validation:
        return False
    if data.classes is None:  # a dense task counts its training images
        return bool(result.get("training_images") == data.training)
    if evaluation.labelled is not None and (
        settings.get("labels", "%").endswith("%") or result.get("labelled") != evaluation.labelled
    ):
        return False
    # The training images are not counted: the data is known by its name, or as the run's own.
    classes = result.get("classes", [])
    same_classes = sorted(classes) == sorted(card.get("classes") or classes)
    return (
        result["data"] in ("imagenet", card.get("data"))
        and len(classes) == data.classes
        and same_classes
    )
