"""The command line: the commands there are, and how mistakes are answered."""

import os
import sys

from cyclopts import App, CycloptsError
from cyclopts.exceptions import UnusedCliTokensError
from cyclopts.exceptions import ValidationError as CycloptsValidationError
from pydantic import ValidationError
from rich.console import Console

from lewel.commands import (
    detecting,
    exchanging,
    judging,
    looking,
    packing,
    reporting,
    training,
    transferring,
)
from lewel.commands.bench import bench
from lewel.config import explain
from lewel.errors import Interrupted, RunError, UserError, system_sentence

app = App(
    name="lewel",
    help="Pre-train image backbones without labels, learning where to learn.",
    version_flags=["--version"],
    help_flags=["--help", "-h"],
)
for command in (
    training.pretrain,
    training.recipes,
    packing.pack,
    judging.knn,
    judging.linear,
    judging.finetune,
    transferring.segment,
    detecting.detect,
    judging.embed,
    judging.results,
    looking.maps,
    looking.where,
    reporting.report,
    reporting.watch,
    exchanging.export,
):
    app.command(command)
app.command(exchanging.import_, name="import")
app.command(bench)


def main() -> None:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong input, 130/143 interrupted."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of a command line."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsValidationError as error:
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
