"""docs/data.md states what was measured on five folders."""

import json
from dataclasses import replace

from lewel.config.auto import choose
from lewel.config.auto_choices import Facts
from lewel.config.auto_length import steps_of
from tests.docs.pages import ROOT
from tests.tasks.measure_folders import FOLDERS, markdown

ROWS = json.loads((ROOT / "docs/measured/folders.json").read_text())


def test_the_table_is_that_of_the_measured_rows() -> None:
    assert "\n".join(markdown(ROWS)) in (ROOT / "docs/data.md").read_text()


def test_every_folder_has_two_seeds_and_most_of_the_gain_by_hand() -> None:
    for name in FOLDERS:
        gains = {}
        for way in ("random init", "auto", "by hand"):
            mine = [row for row in ROWS if row["folder"] == name and row["way"] == way]
            assert len({row["seed"] for row in mine}) == 2, (name, way)
            gains[way] = sum(row["number"] for row in mine)
        assert gains["auto"] > gains["random init"]
        first = gains["random init"]
        assert gains["auto"] - first >= 0.9 * (gains["by hand"] - first), name


def test_the_settings_of_few_images_are_those_that_are_chosen() -> None:
    text = (ROOT / "docs/data.md").read_text()
    facts = Facts(images=50, side=64, labelled=False, device="cpu", memory=8 * 10**9, cores=2)
    made = choose(facts, {})
    steps = f"{steps_of(made):,} steps"
    assert f"batch {made['batch_size']}, {made['epochs']:,} epochs, {steps}" in text
    assert steps_of(choose(replace(facts, images=60), {})) == steps_of(made)
    assert f"the table, {steps} for 60 images" in text
