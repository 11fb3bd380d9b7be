"""How long to train: epochs and steps, with or without a time budget."""

from dataclasses import replace

from lewel.config.auto_choices import Choices, Facts

STEPS = 4_000  # on a CPU without a budget
GPU_STEPS = 100_000
MANY_STEPS = 50_000  # from here on the paper's schedules fit
TRAINING = 0.85  # of a budget; the rest is for start, k-NN probes and checkpoints


def choose_length(made: Choices) -> None:
    """Epochs, and for data that a budget can't pass over once, a part of it."""
    facts, batch = made.facts, made["batch_size"]
    if facts.budget is not None:
        if facts.speed is None:  # of the trial, which does not depend on it
            made.pick("epochs", 1, "a trial")
            return
        seen = TRAINING * facts.budget * facts.speed
        why = f"{facts.speed:,.0f} images/s measured, {TRAINING:.0%} of the budget"
        if seen < facts.images and "limit" not in made.given and "epochs" not in made.given:
            made.pick("limit", max(batch, int(seen)), f"the budget is too short for all: {why}")
        made.pick("epochs", max(1, int(seen / facts.images)), why)
        return
    steps = STEPS if facts.device == "cpu" else GPU_STEPS
    epochs = max(1, -(-steps * batch // facts.images))
    why = f"about {steps:,} steps"
    if facts.device != "cpu":
        epochs = min(max(epochs, 100), 1000)
        why = f"{why}, between 100 and 1,000 epochs"
    made.pick("epochs", epochs, why)


def steps_of(made: Choices) -> int:
    """Optimiser steps of the training."""
    limit = made["limit"] if "limit" in made.made else made.facts.images
    return int(made["epochs"]) * max(1, min(made.facts.images, limit) // int(made["batch_size"]))


def with_speed(facts: Facts, speed: float) -> Facts:
    """The facts after the trial."""
    return replace(facts, speed=speed)
