"""`lewel report`: a run folder as an HTML page, which lists missing or damaged files."""

from pathlib import Path

from lewel.errors import UserError, state_of
from lewel.files import refuse_foreign, write_marked
from lewel.pages.page import report_page
from lewel.tasks.maps import gallery_of_run
from lewel.tasks.neighbours import neighbours_of_run
from lewel.tasks.run_reader import Finds, Galleries, read_run
from lewel.train.run_folder import RunFolder


def report(
    runs: list[Path],
    out: Path | None = None,
    galleries: Galleries = gallery_of_run,
    finds: Finds = neighbours_of_run,
    *,
    overwrite: bool = False,
) -> Path:
    """Write the page of some runs -> its path."""
    if not runs:
        raise UserError("Which runs? Give one or several run folders.")
    for run in runs:
        if not run.is_dir():
            raise UserError(f"{run} {state_of(run)}: expected a run folder.")
        if not RunFolder(run).config.exists() and not RunFolder(run).metrics.exists():
            raise UserError(f"{run} holds no run: expected a folder that `lewel pretrain` wrote.")
    out = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: expected a file, such as {out / 'report.html'}.")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: the folder {out.parent} {state_of(out.parent)}.")
    refuse_foreign(out, "report", overwrite)
    page = report_page([read_run(run, galleries, finds) for run in runs])
    # File names may contain bytes that are not UTF-8.
    write_marked(out, "report", lambda aside: aside.write_bytes(page.encode("utf-8", "replace")))
    return out
