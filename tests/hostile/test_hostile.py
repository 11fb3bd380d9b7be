"""The verdict_of of the campaign, and a part of the campaign itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.case import Case, case
from tests.hostile.families import FAMILIES, all_cases, interleaved, quick
from tests.hostile.verdict import HUNG, verdict_of

TRACE = 'Traceback (most recent call last):\n  File "x"\nValueError: no\n'
SENTENCE = "given does not exist: expected a folder.\n"
ROOT = Path(__file__).parents[2]


def wrong(place: Path, said: str) -> str:
    return "the file was replaced"


@pytest.mark.parametrize(
    ("right", "code", "out", "err", "expected"),
    [
        (case("refused", "x", ""), 2, "", SENTENCE, "right"),
        (case("refused", "x", ""), 0, "done", "", "silent"),
        (case("refused", "x", ""), 1, "", SENTENCE, "other"),
        (case("refused", "x", ""), 2, "", "", "other"),
        (case("refused", "x", ""), 2, "", SENTENCE * 3, "other"),
        (case("refused", "x", ""), 2, "", "given holds NoneType.\n", "other"),
        (case("refused", "x", "", says="--init"), 2, "", SENTENCE, "other"),
        (case("refused", "x", ""), 1, "", TRACE, "traceback"),
        (case("stops", "x", ""), 1, "", SENTENCE, "right"),
        (case("runs", "x", ""), 0, "top-1 90 %", "", "right"),
        (case("runs", "x", ""), 0, "top-1 90 %", TRACE, "traceback"),
        (case("runs", "x", ""), 0, "mIoU nan% (95 % nan% - nan%)", "", "silent"),
        (case("runs", "x", ""), 0, "wrote runs/nan/card.json", "", "right"),
        (case("runs", "x", "", check=wrong), 0, "done", "", "silent"),
        (case("runs", "x", ""), 2, "", SENTENCE, "other"),
        (case("warns", "x", "", says="few"), 0, "2 images are few", "", "right"),
        (case("warns", "x", "", says="few"), 0, "2 images", "", "silent"),
        (case("warns", "x", "", says="few"), 2, "", SENTENCE, "right"),
        (case("clear", "x", ""), HUNG, "", "", "traceback"),
        (case("clear", "x", ""), -11, "", "", "traceback"),
        (case("signal", "x", "", signal=15, says="resume"), 143, "resume", "", "right"),
        (case("signal", "x", "", signal=1, says="resume"), -1, "", "", "other"),
    ],
)
def test_the_verdict_knows_what_is_right(
    right: Case, code: int, out: str, err: str, expected: str, tmp_path: Path
) -> None:
    assert verdict_of(right, tmp_path, code, out, err, {}, {}).kind == expected


def test_a_refusal_that_leaves_files_and_code_that_ran_are_noticed(tmp_path: Path) -> None:
    refused = case("refused", "x", "")
    left = verdict_of(refused, tmp_path, 2, "", SENTENCE, {"a": "1"}, {"a": "1", "new": "folder"})
    changed = verdict_of(refused, tmp_path, 2, "", SENTENCE, {"a": "1"}, {"a": "2"})
    assert (left.kind, changed.kind) == ("other", "other") and "new" in left.what
    ran = verdict_of(refused, tmp_path, 2, "", SENTENCE, {}, {"run/owned": "1"})
    assert ran.kind == "silent"


def test_every_family_is_in_every_part_of_the_campaign() -> None:
    every = all_cases()
    assert len(every) >= 600
    for part in (quick(every), interleaved(every)[: len(FAMILIES)]):
        assert {one.family for one in part} == set(FAMILIES)


def test_hostile_inputs_give_no_traceback_and_no_silent_success() -> None:
    """A few cases of each family; `python -m tests.hostile` tries all."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", "--quick", "--jobs", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
