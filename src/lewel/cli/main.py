"""The command line: the commands by group, and their exit codes."""

import atexit
import gc
import io
import os
import sys
import traceback

from cyclopts import App, CycloptsError, Group
from cyclopts.exceptions import UnusedCliTokensError
from cyclopts.exceptions import ValidationError as CycloptsValidationError

from lewel.data.pack.urls import without_secrets
from lewel.errors import (
    OF_PATHS,
    STOPPING,
    Interrupted,
    LostRank,
    RunError,
    UserError,
    system_message,
)
from lewel.progress import plain_console, rank_from_outside
from lewel.train.torchrun import record_failure

# The commands by group with the first line of their help: `lewel --help` imports none of them.
GROUPS = {
    "Train": {
        "demo": "Pre-train on the embedded images, evaluate and report: minutes on two CPU cores.",
        "pretrain": "Pre-train a backbone on unlabelled images; run the same command to resume.",
        "recipes": "List the recipes that ship with lewel.",
    },
    "Evaluate": {
        "knn": "Evaluate a backbone by k nearest neighbours.",
        "linear": "Evaluate a backbone by a linear classifier on frozen features.",
        "finetune": "Fine-tune on a fraction of the labels (semi-supervised evaluation).",
        "results": "Compare the results of one or several runs.",
        "compare": "Compare methods on the same images, each trained for the same time; resumes.",
        "reproduce": "Reproduce the paper's tables and figures with seeds, intervals and controls.",
    },
    "Dense tasks": {
        "segment": "Evaluate a backbone by semantic segmentation with a dilated FCN.",
        "detect": "Evaluate a backbone by object detection (Faster R-CNN, Mask R-CNN).",
    },
    "See": {
        "maps": "Draw the alignment maps of a run as heat maps over images and their views.",
        "where": "Measure alignment maps: consistency over views, localisation of objects, "
        "diversity.",
        "report": "Write a report of one or several runs as one self-contained HTML page.",
        "watch": "Serve the report of a run while it trains, on this machine only.",
    },
    "Exchange": {
        "export": "Export a backbone to another project's format; it is loaded back and compared.",
        "import": "Import a third-party checkpoint as a backbone that every command takes.",
        "embed": "Write the features of every image of all splits to a file; run the same command "
        "to resume.",
    },
    "Data": {
        "pack": "Pack images into shards that are read fast; run the same command to resume or "
        "repair.",
    },
    "Machine": {
        "doctor": "Check this machine: devices, memory, limits, and the speed of reading and "
        "training.",
        "bench": "Measure speed and memory, side by side with lightly and torchvision.",
    },
}

app = App(
    name="lewel",
    help="Pre-train image backbones without labels, learning where to learn.",
    version_flags=["--version"],
    help_flags=["--help", "-h"],
    help_format="plaintext",  # the commands' Markdown takes 70 ms to import
)
for title, commands in GROUPS.items():
    group = Group.create_ordered(title)
    for name, what in commands.items():
        place = name + "_" * (name == "import")  # a keyword of Python
        app.command(
            f"lewel.cli.{place}:{place}",
            name=name,
            help=what,
            group=group,
            **({} if name == "bench" else {"help_format": "markdown"}),
        )


def main() -> None:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong input, 130/143 interrupted."""
    # Importing torch creates hundreds of thousands of objects and no garbage: Python's default
    # threshold of the garbage collector costs a fifth of a command's start-up time.
    gc.set_threshold(100_000, 10, 10)
    for stream in (sys.stdout, sys.stderr):  # names that a locale cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    if code in (0, *(128 + number for number in STOPPING)) and "torch.distributed" in sys.modules:
        from lewel.ops.ranks import leave

        leave()  # several processes of torchrun or srun: rank 0 has saved and requeued by now
        if code and "SLURM_PROCID" in os.environ and rank_from_outside() != 0:
            code = 0  # srun --kill-on-bad-exit must not kill rank 0
    elif "lightning_fabric" in sys.modules:
        from lightning_fabric.utilities.distributed import _destroy_dist_connection

        atexit.unregister(_destroy_dist_connection)  # it would wait for ranks that know of nothing
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of a command line."""

    def fail(message: str, *, prints: bool = True) -> None:
        """Print why the command ends, and give it to torchrun for its own report."""
        for word in arguments:  # third parties quote URLs as they are
            message = without_secrets(message, word)
        record_failure(message)
        if prints:
            plain_console(stderr=True, soft_wrap=True).print(message)

    try:
        refuse_empty(arguments)
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsValidationError as error:
        from pydantic import ValidationError

        from lewel.config.settings import explain

        cause = error.__cause__
        fail(explain(cause) if isinstance(cause, ValidationError) else str(error))
        return 2
    except UnusedCliTokensError as error:
        words = " ".join(error.unused_tokens or [])
        fail(f"Unexpected arguments {words!r}: see `lewel --help`, or --help of a command.")
        return 2
    except (CycloptsError, UserError) as error:
        fail(f"{_rank_prefix()}{error}")
        return 2
    except RunError as error:
        said = isinstance(error, LostRank) and error.said
        fail(f"{_rank_prefix()}{error}", prints=not said)
        return 1
    except OSError as error:
        fail(f"{_rank_prefix()}{system_message(error)}")
        return 2 if error.errno in OF_PATHS else 1
    except KeyboardInterrupt:
        return 130
    except Interrupted as error:
        from lewel.train.launch import requeue_after_signal

        text = requeue_after_signal(error.number) or "run the same command to resume"
        fail(f"{error}: {text}", prints=not _rank_prefix())
        return 128 + error.number
    except Exception:  # a mistake in the code: Python prints it
        record_failure(traceback.format_exc().rstrip())
        raise
    return 0


def refuse_empty(arguments: list[str]) -> None:
    """Raise UserError for an empty word: a path would be the current folder."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        flag, _, value = word.partition("=") if word.startswith("--") else (before, "", word)
        if not value and (not word or "=" in word):
            name = flag if flag.startswith("--") else "An argument"
            raise UserError(
                f"{name} is empty: is a variable of the shell unset? Write . for the current "
                "folder."
            )


def _rank_prefix() -> str:
    """The rank that prints, where torchrun or srun has started several."""
    rank = rank_from_outside()
    return f"rank {rank}: " if rank else ""
