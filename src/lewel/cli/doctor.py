"""`lewel doctor`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lewel.cli.output import program, say
from lewel.cli.parameters import Flag
from lewel.errors import RunError
from lewel.progress import plain_console, show, wide

if TYPE_CHECKING:
    from lewel.tasks.doctor import Diagnosis

SHOWN = {"ok": "OK", "note": "note", "failed": "FAILED", "skipped": "skipped"}


def doctor(*, deep: Flag = False, json: Flag = False) -> None:
    """Check this machine: devices, memory, limits, and the speed of reading and training.

    Exit code 1 where something that training needs does not work.

    Parameters
    ----------
    deep
        Also train short runs: all methods agree on all devices, precisions stay close to 32 bits,
        two devices equal one, a killed run resumes exactly. Takes minutes.
    json
        Print the report as JSON, for an issue: without host name, user name and paths.
    """
    from lewel.tasks.doctor import doctor as task

    with telling(plain_console(stderr=True)) as tell:
        found = task(deep, tell)
    if json:
        print(found.as_json())
    else:
        show_findings(found, deep, plain_console())
    broken = [one.name for one in found.findings if one.status == "failed"]
    if broken:
        raise RunError(f"Not ready: {', '.join(broken)}. The report names what mends it.")


@contextmanager
def telling(console: Console) -> Iterator[Callable[[str], None]]:
    """What is being done, as one changing line in a terminal, as plain lines elsewhere."""
    with console.status("starting") as status:

        def tell(text: str) -> None:
            if console.is_terminal:
                status.update(text)
            else:
                show(console, f"{text} ...")

        yield tell


def show_findings(found: "Diagnosis", deep: bool, console: Console) -> None:
    """One line a finding, and the next commands."""
    lines = Table(box=None, pad_edge=False, show_header=False)
    for column in range(3):
        lines.add_column(no_wrap=column < 2)
    for one in found.findings:
        lines.add_row(SHOWN[one.status], Text(one.name), Text(one.text))
    wide(console, 160).print(lines)
    more = (
        f"  {program()} doctor --deep --json > doctor.json    # the report, for an issue"
        if deep
        else f"  {program()} doctor --deep    # train short runs on all devices and compare them"
    )
    works = "Everything that is needed works" if found.healthy else "Not everything works"
    say(
        console,
        f"{works} ({found.seconds:.0f} s).",
        "next:",
        more,
        f"  {program()} pretrain photos/ --dry-run    # memory and time of a run on your images",
    )
