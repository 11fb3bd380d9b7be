"""The command line: the commands there are, and how mistakes are answered."""

import gc
import os
import sys

from cyclopts import App, CycloptsError
from cyclopts.exceptions import UnusedCliTokensError
from cyclopts.exceptions import ValidationError as CycloptsValidationError
from rich.console import Console

from lewel.errors import Interrupted, RunError, UserError, system_sentence

# Where each command is, and its first sentence: `lewel --help` imports none of them.
COMMANDS = {
    "pretrain": (
        "training:pretrain",
        "Train a backbone on images without labels; the same command again goes on.",
    ),
    "recipes": ("training:recipes", "List the recipes that ship with lewel."),
    "pack": (
        "packing:pack",
        "Pack images into shards that are read fast; the same command again goes on, or mends.",
    ),
    "knn": (
        "judging:knn",
        "Judge a backbone by the nearest neighbours of each image among labelled ones.",
    ),
    "linear": (
        "judging:linear",
        "Judge a backbone by a linear classifier on its frozen features.",
    ),
    "finetune": (
        "judging:finetune",
        "Judge a backbone by training it on, with a part of the labels.",
    ),
    "segment": (
        "transferring:segment",
        "Judge a backbone by semantic segmentation: train it on in a dilated FCN.",
    ),
    "detect": (
        "detecting:detect",
        "Judge a backbone by the boxes, and the masks, that it learns to find.",
    ),
    "embed": (
        "judging:embed",
        "Write the features of every image to a file; the same command again goes on.",
    ),
    "results": ("judging:results", "Show the results of one or several runs side by side."),
    "maps": (
        "looking:maps",
        "Show where a run looks: images, views of them, and its maps as heat over each.",
    ),
    "where": (
        "looking:where",
        "Measure where a run looks: consistency, object focus and diversity of its maps.",
    ),
    "report": (
        "reporting:report",
        "Write one page, one HTML file, about a run or about several side by side.",
    ),
    "watch": (
        "reporting:watch",
        "Show the page of a run while it trains, to browsers on this machine.",
    ),
    "export": (
        "exchanging:export",
        "Write a backbone in another project's format, and load it back to compare.",
    ),
    "import": (
        "exchanging:import_",
        "Turn another project's checkpoint into a backbone that every command takes.",
    ),
}
BENCH = "Measure speed and memory, side by side with the field's code."

app = App(
    name="lewel",
    help="Pre-train image backbones without labels, learning where to learn.",
    version_flags=["--version"],
    help_flags=["--help", "-h"],
    help_format="plaintext",  # the commands' Markdown takes 70 ms to import
)
for name, (place, what) in COMMANDS.items():
    app.command(f"lewel.commands.{place}", name=name, help=what, help_format="markdown")
app.command("lewel.commands.bench:bench", name="bench", help=BENCH)


def main() -> None:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong input, 130/143 interrupted."""
    # Importing torch makes objects by the hundred thousand and no garbage: to look for some among
    # them as often as Python does by default costs a fifth of a command's start.
    gc.set_threshold(100_000, 10, 10)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of a command line."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsValidationError as error:
        from pydantic import ValidationError

        from lewel.config import explain

        cause = error.__cause__
        errors.print(explain(cause) if isinstance(cause, ValidationError) else str(error))
        return 2
    except UnusedCliTokensError as error:
        words = " ".join(error.unused_tokens or [])
        errors.print(f"Nothing takes the words {words!r}: see `lewel --help` and its commands'.")
        return 2
    except (CycloptsError, UserError) as error:
        errors.print(f"{_whose()}{error}")
        return 2
    except RunError as error:
        errors.print(f"{_whose()}{error}")
        return 1
    except OSError as error:
        errors.print(f"{_whose()}{system_sentence(error)}")
        return 1
    except KeyboardInterrupt:
        return 130
    except Interrupted as error:
        from lewel.train.launch import requeue_if_asked

        word = requeue_if_asked(error.number) or "run the same command again to go on"
        if not _whose():
            errors.print(f"{error}: {word}")
        return 128 + error.number
    return 0


def _whose() -> str:
    """Where torchrun or srun has started many of us, which one speaks."""
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    return "" if rank == "0" else f"rank {rank}: "
