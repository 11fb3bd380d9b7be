"""`lewel bench step`: a training step of each method, beside its bound and beside lightly's."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from lewel.bench.breakdown import PARTS, reading_parts, step_parts
from lewel.bench.contenders import BOUND, Contender, OurStep, our_contenders
from lewel.bench.machine import describe_machine
from lewel.bench.memory import kept_bytes, peak_bytes
from lewel.bench.peers import MISSING, PEERS, peer_contenders
from lewel.bench.timing import Bar, interleaved, ratio, spread_of
from lewel.bench.workload import Workload
from lewel.errors import UserError
from lewel.files import write_atomically
from lewel.train.allocator import keep_freed_memory

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


def bench_step(
    work: Workload,
    *,
    rounds: int,
    threads: int,
    console: Console,
    only: Sequence[str] = (),
    data: str | None = None,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """Time and measure all contenders of a workload -> what is written as JSON."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(threads)
    if device.type == "cpu":
        keep_freed_memory()  # as in a run; lightly's steps gain by it too
    machine = describe_machine(threads)
    peers = peer_contenders(work)
    if not peers:
        console.print(MISSING, highlight=False, markup=False, soft_wrap=True)
    chosen = _choose(our_contenders(work) | peers, only)
    many = len(chosen) * (rounds + 3)
    with Bar(console, many, "bench step") as bar:
        contenders: dict[str, Contender] = {name: make(device) for name, make in chosen.items()}
        steps = {name: contender.step for name, contender in contenders.items()}
        times = interleaved(steps, rounds, device, bar, warmup=2)
        memory, flops = {}, {}
        for name, contender in contenders.items():
            flops[name] = count_flops(contender.step)
            kept = kept_bytes(contender.module, contender.optimizer)
            memory[name] = (kept, peak_bytes(contender.step, device))
            bar.tick(name)
    reading = reading_parts(work, data, min(3, rounds))
    parts = {
        name: step_parts(contender, device, min(5, rounds)) | reading
        for name, contender in contenders.items()
        if isinstance(contender, OurStep)
    }
    return {
        "bench": "step",
        "title": work.title,
        "workload": asdict(work) | {"layout": str(work.layout)},
        "machine": machine,
        "rounds": rounds,
        "steps": {name: _row(name, times, memory, flops, work) for name in contenders},
        "breakdown": parts,
    }


def _choose(
    makers: dict[str, Callable[[torch.device], Contender]], only: Sequence[str]
) -> dict[str, Callable[[torch.device], Contender]]:
    """The contenders asked for, by names that need not have their spaces and case."""
    if not only:
        return makers
    plain = {_plain(name): name for name in makers}
    if unknown := [name for name in only if _plain(name) not in plain]:
        known = ", ".join(plain)
        raise UserError(f"--only {unknown[0]}: expected some of {known}.")
    wanted = {plain[_plain(name)] for name in only}
    return {name: make for name, make in makers.items() if name in wanted}


def _plain(name: str) -> str:
    return name.lower().replace(" ", "_").replace("-", "_")


def _row(
    name: str,
    times: dict[str, list[float]],
    memory: dict[str, tuple[int, int]],
    flops: dict[str, int],
    work: Workload,
) -> dict[str, Any]:
    kept, beside = memory[name]
    low, high = spread_of(times[name])
    seconds = median(times[name])
    return {
        "seconds": seconds,
        "quartiles": [low, high],
        "images_per_second": work.batch_size / seconds,
        "ratios": {base: ratio(times, name, base) for base in COMPARED if base in times},
        "flops": flops[name],
        "flops_ratio_to_byol": flops[name] / flops["BYOL"] if "BYOL" in flops else None,
        "memory": {
            "kept": kept,
            "beside": beside,
            "total": kept + beside,
            "ratio_to_byol": (kept + beside) / sum(memory["BYOL"]) if "BYOL" in memory else None,
        },
    }


def count_flops(step: Callable[[], Any]) -> int:
    """Multiplications and additions of matrix products and convolutions in a step, and backward."""
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


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


def breakdown_rows(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Milliseconds of each part, a column a method: (header, rows)."""
    names = list(result["breakdown"])
    rows = [
        [part, *(f"{1000 * result['breakdown'][name][part]:.1f}" for name in names)]
        for part in PARTS
    ]
    return ["ms of", *names], rows


def plot_steps(result: dict[str, Any], path: Path) -> None:
    """Seconds of each step as bars, and the parts of ours stacked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = list(result["steps"])
    values = [1000 * result["steps"][name]["seconds"] for name in names]
    colours = dict.fromkeys(PEERS, "tab:grey") | {BOUND: "tab:green"}
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
    write_atomically(path, lambda aside: figure.savefig(aside, format="png", dpi=120))
