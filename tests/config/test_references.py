"""References belong to their recipes, and a run finds its own."""

from typing import Any

import pytest

from lewel.config.configure import configure
from lewel.config.references import (
    find_reference,
    list_references,
    read_reference,
    settings_digest,
)

AUTHORS = "imagenet_lewel_b_100ep"


@pytest.mark.parametrize("recipe", list_references())
def test_a_reference_was_recorded_with_the_recipe_as_it_is(recipe: str) -> None:
    file = read_reference(recipe)
    assert file.settings == settings_digest(recipe), (
        f"{recipe} has changed: record its reference again (docs/contributing.md)"
    )
    assert len(file.loss) >= 14
    for rows in (file.loss, file.embedding_std, file.knn):
        epochs = [row[0] for row in rows]
        assert epochs == sorted(epochs)
        assert all(low <= mean <= high for _, mean, low, high in rows)


def test_the_authors_log_is_the_reference_of_their_recipe() -> None:
    file = read_reference(AUTHORS)
    assert [row[1] for row in file.loss][:3] == [0.804, 0.785, 0.624]
    assert file.loss[-1] == (99.5, 0.308, 0.308, 0.308)
    assert file.knn[-1][:2] == (95, 0.352)
    assert file.compared == ("loss",)  # their k-NN is another one


@pytest.mark.parametrize(
    ("given", "images", "expected"),
    [
        ({}, 1_281_167, True),
        ({"seed": 3, "workers": 7, "knn": {"every": 5}}, 1_281_167, True),
        ({"batch_size": 1024}, 1_281_167, True),  # theirs: the rate of the recipe is scaled
        ({"batch_size": 1024, "optim": {"lr": 3.6, "lr_batch_size": 1024}}, 1_281_167, True),
        ({"batch_size": 1024, "optim": {"lr": 1.8, "lr_batch_size": 1024}}, 1_281_167, False),
        ({"batch_size": 256}, 1_281_167, False),
        ({}, 20_000, False),
        ({"optim": {"lr": 0.9}}, 1_281_167, False),
        ({"epochs": 50}, 1_281_167, False),
        ({"image_size": 160}, 1_281_167, False),
    ],
)
def test_a_run_finds_the_reference_of_its_recipe(
    given: dict[str, Any], images: int, expected: bool
) -> None:
    found = find_reference(configure("imagenet", AUTHORS, given), {"images": images})
    assert (found is not None) == expected
    if found:
        assert found.recipe == AUTHORS


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"limit": 16_000, "precision": "32"}, True),  # as `make demo` writes it
        ({"limit": 16_000, "precision": "tf32"}, True),
        ({"limit": 16_000, "precision": "bf16-mixed"}, False),
        ({"limit": 16_000, "batch_size": 64}, False),
    ],
)
def test_the_demo_finds_its_reference(given: dict[str, Any], expected: bool) -> None:
    found = find_reference(configure("scenes", "scenes_demo", given), {"images": 16_000})
    assert (found is not None) == expected


def test_knn_of_another_bank_is_not_compared() -> None:
    card = {"images": 1_281_167}
    same = find_reference(configure("imagenet", AUTHORS, {}), card)
    other = find_reference(configure("imagenet", AUTHORS, {"knn": {"bank": 17}}), card)
    assert same is not None and "knn" in same.curves
    assert other is not None and list(other.curves) == ["loss"]
