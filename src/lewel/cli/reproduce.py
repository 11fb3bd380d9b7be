"""`lewel reproduce`."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

from lewel.cli.output import command, say
from lewel.cli.parameters import Flag, Positive
from lewel.data.workers import cores
from lewel.errors import Interrupted, RunError, UserError
from lewel.progress import plain_console, wide

if TYPE_CHECKING:
    from lewel.config.reproduce import Experiment
    from lewel.pages.reproduction import Ordering
    from lewel.tasks.reproduction_plan import Backbone, Setup

DATA_ROOT, OUT = Path("data"), Path("runs/reproduce")


def reproduce(
    *experiments: str,
    scale: Literal["paper", "small", "minutes"] = "minutes",
    seeds: Positive = 3,
    only: str | None = None,
    skip: tuple[str, ...] = (),
    data_root: Path = DATA_ROOT,
    jobs: Positive | None = None,
    out: Path = OUT,
    known: tuple[Path, ...] = (),
    list: Flag = False,
    pages: Flag = False,
    slurm: Flag = False,
) -> None:
    """Reproduce the paper's tables and figures with seeds, intervals and controls.

    Parameters
    ----------
    experiments
        table1 ... table9, figure3a, figure3b, figure5, maps (a control); by default all of
        these. Also methods (all of them side by side), rates (learning rates) and finer (maps).
    scale
        The paper's, hours on a CPU (small), or minutes on the embedded data.
    seeds
        Number of seeds (0, 1, ...); a higher number later adds seeds.
    only
        Only backbones whose name contains this.
    skip
        Leave out an evaluation, such as segment; may be given again.
    data_root
        The folder of the data sets.
    jobs
        Backbones at a time, one thread each; by default one for each core.
    out
        The folder of all backbones, results and pages.
    known
        numbers.json of other queues: what they have measured with the same settings counts as done.
    list
        Show what is done and how long the rest takes, and stop.
    pages
        Write the pages of what is done, and stop.
    slurm
        Write an array job and the script of each backbone, and stop.
    """
    from lewel.config.reproduce import choose_experiments, leave_out
    from lewel.tasks.reproduce import Worker
    from lewel.tasks.reproduction_folder import claimed, refuse_other_files, refuse_other_settings
    from lewel.tasks.reproduction_numbers import read_numbers
    from lewel.tasks.reproduction_plan import Setup, check_data, plan, select

    if list + pages + slurm > 1:
        raise UserError(
            "--list shows the queue, --pages what it has found, and --slurm writes its jobs: give "
            "one of them."
        )
    console = plain_console()
    every_part = choose_experiments([*experiments])
    chosen = leave_out(every_part, skip)
    setup = Setup(scale, out / scale, data_root, known=read_numbers(known))
    absent = [name for name, one in chosen.items() if not has_parts(one, setup)]
    if named := [name for name in absent if name in experiments or absent == [*chosen]]:
        if any(has_parts(every_part[name], setup) for name in named):
            raise UserError(f"{', '.join(named)}: --skip leaves nothing; leave out less.")
        raise UserError(f"{', '.join(named)}: not at --scale {scale}; try another --scale.")
    chosen = {name: one for name, one in chosen.items() if name not in absent}
    queue = select(plan(chosen, setup, range(seeds)), only or "")
    if not queue:
        raise UserError(f"--only {only}: no backbone has this in its name; --list shows all.")
    if known:
        every = [(one, part) for one in queue for part in one.evaluations]
        used = sum(one.known(part) is not None for one, part in every)
        say(console, f"--known has {used} of {len(every)} numbers of this queue.")
    if list:
        show_state(console, queue, jobs or cores())
        return
    refuse_other_files(setup)
    refuse_other_settings(queue)
    single = (("--only", only, None), ("--data-root", data_root, DATA_ROOT), ("--out", out, OUT))
    same = [word for flag, value, usual in single if value != usual for word in (flag, value)]
    for flag, values in (("--skip", skip), ("--known", known)):
        same += [word for value in values for word in (flag, value)]
    again = ("reproduce", *experiments, "--scale", scale, "--seeds")
    if pages:
        shown = write(console, chosen, queue, seeds, known)
        say(console, *(f"{name}: {ordering.text()}" for name, ordering in shown))
        return
    if slurm:
        from lewel.tasks.reproduction_slurm import write_jobs

        script, many = write_jobs(queue, setup)
        say(
            console,
            f"wrote {many} jobs to {script.parent}",
            "next:",
            f"  sbatch {shlex.quote(str(script))}",
            command(*again, seeds, "--pages", *same, note="the pages, as far as the jobs are"),
        )
        return
    check_data(queue, setup)
    many = sum(len(one.parts()) for one in queue)
    say(console, f"{len(queue)} backbones, {many} parts, scale {scale}: {setup.scale.title}.")
    with claimed(setup.out, lambda text: say(console, text)) as lock:
        worker = Worker(jobs or cores(), lambda text: say(console, text), lock)
        try:
            failed = worker.work(queue)
        except Interrupted:
            write(console, chosen, queue, seeds, known)
            raise
        shown = write(console, chosen, queue, seeds, known)
    say(console, *(f"{name}: {ordering.text()}" for name, ordering in shown))
    if failed:
        raise RunError(
            f"{failed} part{'s' * (failed > 1)} failed: see *.log in {setup.out / 'backbones'}."
        )
    same += [] if jobs is None else ["--jobs", str(jobs)]
    more = command(*again, seeds + 2, *same, note="more seeds, in the same folder")
    say(console, "next:", more)


def write(
    console: Console,
    chosen: "dict[str, Experiment]",
    queue: "list[Backbone]",
    seeds: int,
    known: tuple[Path, ...],
) -> "list[tuple[str, Ordering]]":
    """Write the pages and the numbers of what is done -> the chosen orderings, with their tables.

    The pages have all that was ever measured in the folder, not only what this call was about.
    """
    from lewel.config.reproduce import read_experiments
    from lewel.pages.reproduction import write_pages
    from lewel.tasks.reproduction_folder import seeds_in
    from lewel.tasks.reproduction_numbers import read_numbers, write_numbers
    from lewel.tasks.reproduction_tables import show

    setup = queue[0].setup
    numbers = write_numbers(queue, setup.out / "numbers.json")
    setup = replace(setup, known=read_numbers([*known, numbers]))  # and what other calls knew
    every = range(max(seeds, seeds_in(setup)))
    tables = [show(name, one, setup, every) for name, one in read_experiments().items()]
    tables = [one for one in tables if one.name in chosen or not one.is_empty]
    written = write_pages(tables, setup.scale.title, setup.out / "pages")
    say(console, *(f"wrote {path}" for path in (*written, numbers)))
    return [(one.name, order) for one in tables if one.name in chosen for order in one.orderings]


def has_parts(experiment: "Experiment", setup: "Setup") -> bool:
    """Whether there is anything to do of an experiment at a scale."""
    from lewel.tasks.reproduction_plan import parts_of, rows_of

    rows = rows_of(experiment, setup.scale_name)
    return any(parts_of(experiment, row, setup.scale) for row in rows)


def show_state(console: Console, queue: "list[Backbone]", jobs: int) -> None:
    """Every backbone, what is done of it, and the time that is left."""
    from lewel.tasks.reproduce import state_of

    table = Table(box=None, pad_edge=False)
    for name in ("backbone", "done", "to do", "failed", "minutes spent", "minutes left"):
        table.add_column(name, no_wrap=True)
    parts = state_of(queue)
    for one in queue:
        mine = [part for part in parts if part.backbone is one]
        done = [part for part in mine if part.state in ("done", "known")]
        failed = [part.name for part in mine if part.state == "failed"]
        left = [part for part in mine if part.state not in ("done", "known")]
        known = [part.left for part in left if part.left is not None]
        table.add_row(
            one.folder.name,
            f"{len(done)} of {len(mine)}",
            ", ".join(part.name for part in left if part.state != "failed"),
            ", ".join(failed),
            f"{sum(part.spent for part in mine) / 60:.1f}",
            f"{sum(known) / 60:.1f}" if len(known) == len(left) else "unknown",
        )
    wide(console, 200).print(table)
    spent, left_hours = (
        sum(seconds) / 3600
        for seconds in ([part.spent for part in parts], [part.left or 0.0 for part in parts])
    )
    unknown = sum(part.left is None for part in parts)
    words = f"about {left_hours:.2f}, {left_hours / jobs:.2f} hours with --jobs {jobs}"
    many = f"{unknown} part{'s' * (unknown > 1)} of unknown length"
    both = [words] * (left_hours > 0 or not unknown) + [many] * (unknown > 0)
    finished = all(part.state in ("done", "known") for part in parts)
    words = "nothing" if finished else ", and ".join(both)
    say(console, f"spent {spent:.2f} core-hours; left {words}")
