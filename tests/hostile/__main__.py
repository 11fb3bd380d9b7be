"""`python -m tests.hostile`: try every case, and print what was not right."""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.hostile.case import WORLD, Case
from tests.hostile.families import all_cases, interleaved, quick
from tests.hostile.runner import _fork, import_everything, run_cases
from tests.hostile.verdict import Kind, Verdict
from tests.hostile.world import make_world, quietly

TITLES: dict[Kind, str] = {
    "traceback": "tracebacks",
    "silent": "silent successes",
    "other": "other answers",
}


def main() -> int:
    """Exit 1 where a case was not right, or was not tried."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    options = read_options()
    cases = [one for one in all_cases() if options.only in f"{one.family}: {one.line()}"]
    cases = interleaved(quick(cases) if options.quick else cases)
    if options.list:
        for one in cases:
            print(f"{one.family}: {one.line()}  [{one.right}: {one.why}]")
        return 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
        folder = options.folder or Path(temporary)
        folder.chmod(0o755)
        import_everything()
        if not (folder / WORLD / "exported.pt2").exists():
            build(folder)
        found = []
        for one, verdict in run_cases(cases, folder, options.jobs, begun + 60 * options.minutes):
            found.append((one, verdict))
            if verdict.kind != "right" or options.verbose:
                show(one, verdict)
    return summary(found, len(cases), time.monotonic() - begun)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="begin no case after this time")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--only", default="", help="cases whose family or command line has this")
    parser.add_argument("--quick", action="store_true", help="a few of each family")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    parser.add_argument("--verbose", action="store_true", help="print what was right, too")
    parser.add_argument("--folder", type=Path, help="make the fixtures here and keep them")
    return parser.parse_args()


def build(folder: Path) -> None:
    """Make the fixtures in a fork: this interpreter must not have trained anything."""
    log = folder / "world.log"
    _, status = os.waitpid(_fork(quietly(lambda: make_world(folder), log)), 0)
    if status:
        sys.exit(f"The fixtures could not be made:\n{log.read_text()[-3000:]}")


def show(one: Case, verdict: Verdict) -> None:
    took = f"{verdict.seconds:.1f} s"
    print(f"{verdict.kind} in {one.family} ({one.why}, {took}): {verdict.what or 'as it should'}")
    print(f"    {one.line()}\n    {verdict.first}", flush=True)


def summary(found: list[tuple[Case, Verdict]], planned: int, seconds: float) -> int:
    """Print the counts; the exit code."""
    counts = Counter(verdict.kind for _, verdict in found)
    print(f"\n{'family':24} {'tried':>6}" + "".join(f" {title:>17}" for title in TITLES.values()))
    for family in dict.fromkeys(one.family for one, _ in found):
        mine = Counter(verdict.kind for one, verdict in found if one.family == family)
        print(f"{family:24} {mine.total():6}" + "".join(f" {mine[kind]:17}" for kind in TITLES))
    counted = ", ".join(f"{title} {counts[kind]}" for kind, title in TITLES.items())
    print(f"tried {len(found)} of {planned} in {seconds / 60:.1f} minutes: {counted}")
    return int(len(found) < planned or counts["right"] < len(found))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # extensions print warnings where they are torn down
