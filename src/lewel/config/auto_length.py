"""How long to train: epochs and steps, with or without a time budget."""

import math
from dataclasses import replace

from lewel.config.auto_choices import Choices, Facts
from lewel.errors import UserError

FEWEST = 50  # images
STEPS = 4_000  # on a CPU without a budget
GPU_STEPS = 100_000  # of GPU_BATCH images
GPU_BATCH = 256
GPU_EPOCHS = 100, 1_000  # at least, at most
MANY_STEPS = 50_000  # of GPU_BATCH images or fewer: from here on the paper's schedules fit
MOST_EPOCHS = 5_000
FEW_EPOCHS = 5  # up to here a part of an epoch is a large part of the budget
TRAINING = 0.85  # of a budget; the rest is for start, k-NN probes and checkpoints


def choose_length(made: Choices) -> None:
    """Epochs, and where whole ones do not fit a budget, a part of the images."""
    facts, batch = made.facts, made["batch_size"]
    if facts.budget is not None:
        if facts.speed is None:  # of the trial, which does not depend on it
            made.pick("epochs", 1, "a trial")
            return
        choose_for_budget(made, TRAINING * facts.budget * facts.speed)
        return
    large = max(1, batch // GPU_BATCH)  # fewer steps of a larger batch
    steps = STEPS if facts.device == "cpu" else GPU_STEPS // large
    epochs = max(1, math.ceil(steps / max(1, facts.images // batch)))
    why = f"about {steps:,} steps" if epochs > 1 else "one pass over all images"
    if facts.device != "cpu" and not GPU_EPOCHS[0] <= epochs <= GPU_EPOCHS[1]:
        few = epochs < GPU_EPOCHS[0]
        epochs = GPU_EPOCHS[0] if few else GPU_EPOCHS[1]
        why = f"the {'fewest' if few else 'most'} that are chosen"
    made.pick("epochs", epochs, why)


def choose_for_budget(made: Choices, seen: float) -> None:
    """Epochs for so many samples seen; with few epochs, whole ones leave out the fewest samples."""
    facts = made.facts
    why = f"{facts.speed:,.0f} images/s measured, {TRAINING:.0%} of the budget"
    passes = seen / facts.images
    epochs = max(1, int(passes))
    fewest, least = FEWEST, f"{FEWEST}"
    for key in ("batch_size", "limit"):
        if (one := min(made.given.get(key) or 0, facts.images)) > fewest:
            fewest, least = one, f"the {one:,} of --{key.replace('_', '-')}"
    if seen < fewest:
        raise UserError(
            f"In this --budget only {int(seen):,} images are read and trained on, fewer than "
            f"{least}: give more time{'' if fewest == FEWEST else ', or lower it'}."
        )
    # k of all passes are used, or of all images the part that k + 1 passes allow.
    part = "limit" not in made.given and seen / (epochs + 1) >= FEWEST
    if part and epochs < FEW_EPOCHS and passes**2 > epochs * (epochs + 1):
        epochs += 1
    if epochs > passes and "limit" not in made.given:
        limit = max(made["batch_size"], int(seen / epochs))
        made.pick("limit", limit, f"so that whole epochs fit the budget: {why}")
    if epochs > MOST_EPOCHS:
        epochs, why = MOST_EPOCHS, f"the most that is chosen; the budget allows {epochs:,}"
    made.pick("epochs", epochs, why)


def steps_of(made: Choices) -> int:
    """Optimiser steps of the training."""
    return int(made["epochs"]) * max(1, made.images // int(made["batch_size"]))


def is_long(made: Choices) -> bool:
    """Whether the paper's schedules for long training fit."""
    if made.facts.long is not None:
        return made.facts.long
    return steps_of(made) * max(1, int(made["batch_size"]) // GPU_BATCH) >= MANY_STEPS


def with_speed(facts: Facts, speed: float) -> Facts:
    """The facts after the trial."""
    return replace(facts, speed=speed)
