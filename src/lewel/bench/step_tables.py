"""Tables and bar charts of the result of `lewel bench step`."""

from pathlib import Path
from typing import Any

from lewel.bench.breakdown import PARTS
from lewel.bench.lightly_steps import LIGHTLY
from lewel.bench.steps import BOUND
from lewel.files import write_marked

HEADER = (
    "step",
    "ms",
    "quartiles",
    "x BYOL",
    "x backbone",
    "x lightly BYOL",
    "GFLOP",
    "x BYOL",
    "memory MB",
    "x BYOL",
)
COMPARED = ("BYOL", BOUND, "lightly BYOL")


def step_rows(result: dict[str, Any]) -> list[list[str]]:
    """The rows under HEADER."""
    rows = []
    for name, row in result["steps"].items():
        low, high = row["quartiles"]
        against = [row["ratios"].get(base) for base in COMPARED]
        memory = row["memory"]
        rows.append(
            [
                name,
                f"{1000 * row['seconds']:.1f}",
                f"{1000 * low:.1f}-{1000 * high:.1f}",
                *map(_ratio, against),
                f"{row['flops'] / 1e9:.1f}",
                _ratio(row["flops_ratio_to_byol"]),
                f"{memory['total'] / 1e6:.0f}",
                _ratio(memory["ratio_to_byol"]),
            ]
        )
    return rows


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def process_rows(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The ratios within each process, sorted: (header, rows); empty for one process."""
    if result["processes"] == 1:
        return [], []
    rows = [
        [name, *(", ".join(map(_ratio, sorted(ratios))) for ratios in found.values())]
        for name, row in result["steps"].items()
        if (found := row["ratios_by_process"])
    ]
    bases = next(iter(result["steps"].values()))["ratios_by_process"]
    return ["by process", *(f"x {base}" for base in bases)], rows


def breakdown_rows(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Milliseconds of each part, one column per method: (header, rows)."""
    names = list(result["breakdown"])
    rows = [
        [part, *(f"{1000 * result['breakdown'][name][part]:.1f}" for name in names)]
        for part in PARTS
    ]
    return ["ms of", *names], rows


def plot_steps(result: dict[str, Any], path: Path) -> None:
    """Bar charts of the time of each step, and of the parts of ours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = list(result["steps"])
    values = [1000 * result["steps"][name]["seconds"] for name in names]
    colours = dict.fromkeys(LIGHTLY, "tab:grey") | {BOUND: "tab:green"}
    left.barh(names, values, color=[colours.get(name, "tab:blue") for name in names])
    left.invert_yaxis()
    left.set_xlabel("ms a step (median)")
    right.set_xlabel("ms a step by part; reading on one core, in this process")
    for number, (name, parts) in enumerate(result["breakdown"].items()):
        start = 0.0
        for index, part in enumerate(PARTS):
            label = part if number == 0 else None
            right.barh(name, 1000 * parts[part], left=start, color=f"C{index}", label=label)
            start += 1000 * parts[part]
    if result["breakdown"]:
        right.invert_yaxis()
        right.legend(fontsize="small")
    figure.suptitle(result["title"])
    write_marked(path, "bench", lambda temp: figure.savefig(temp, format="png", dpi=120))
