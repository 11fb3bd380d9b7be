"""`lewel bench step`: training steps of all methods, their lower bound, and lightly's."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from multiprocessing import get_context
from statistics import median
from typing import Any, TypeVar

import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from lewel.bench.breakdown import reading_parts, step_parts
from lewel.bench.lightly_steps import MISSING, lightly_steps
from lewel.bench.machine import describe_machine
from lewel.bench.memory import kept_bytes, peak_bytes
from lewel.bench.step_tables import COMPARED
from lewel.bench.steps import OurStep, TimedStep, our_steps
from lewel.bench.timing import Bar, interleaved, quartiles, ratio
from lewel.bench.workload import Workload
from lewel.errors import RunError, UserError
from lewel.progress import plain_console, show
from lewel.train.allocator import keep_freed_memory

WARMUP = 2  # rounds that are not counted


Times = dict[str, list[float]]  # seconds of each entry in each round
T = TypeVar("T")


def bench_step(
    work: Workload,
    *,
    rounds: int,
    threads: int,
    console: Console,
    processes: int = 1,
    only: Sequence[str] = (),
    data: str | None = None,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """Time and memory of all entries of a workload -> the result for the JSON file.

    Each of several processes runs all entries and all rounds; their rounds are pooled.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = describe_machine(threads)
    if not lightly_steps(work):
        show(console, MISSING)
    _choose(work, only)  # refuse a wrong name before anything is timed
    seconds = []
    for number in range(1, processes):
        title = f"bench step, process {number} of {processes}"
        seconds.append(_in_new_process(_times, work, rounds, threads, only, device, title))
    title = "bench step" if processes == 1 else f"bench step, process {processes} of {processes}"
    entries, last = _entries_and_times(work, rounds, threads, only, device, title, console)
    seconds.append(last)
    memory, flops = {}, {}
    with Bar(console, len(entries), "memory and operations") as bar:
        for name, entry in entries.items():
            flops[name] = count_flops(entry.step)
            kept = kept_bytes(entry.module, entry.optimizer)
            memory[name] = (kept, peak_bytes(entry.step, device))
            bar.tick(name)
    reading = reading_parts(work, data, min(3, rounds))
    parts = {
        name: step_parts(entry, device, min(5, rounds)) | reading
        for name, entry in entries.items()
        if isinstance(entry, OurStep)
    }
    return {
        "bench": "step",
        "title": work.title,
        "workload": asdict(work) | {"layout": str(work.layout)},
        "machine": machine,
        "rounds": rounds,
        "processes": processes,
        "steps": {name: _row(name, seconds, memory, flops, work) for name in entries},
        "breakdown": parts,
    }


def _in_new_process(function: Callable[..., T], *arguments: object) -> T:
    """The result of a function in a new process, which has another memory layout."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        try:
            return executor.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise RunError(
                "A benchmark process was killed (did memory run out?): lower --batch-size."
            ) from None


def _times(*arguments: Any) -> Times:
    """Only the seconds, which can be sent between processes."""
    return _entries_and_times(*arguments)[1]


def _entries_and_times(
    work: Workload,
    rounds: int,
    threads: int,
    only: Sequence[str],
    device: torch.device,
    title: str,
    console: Console | None = None,
) -> tuple[dict[str, TimedStep], Times]:
    """The entries, and the seconds that each took in each round."""
    torch.set_num_threads(threads)
    keep_freed_memory()  # as in a run; the baselines gain by it too
    entries = {name: make(device) for name, make in _choose(work, only).items()}
    steps = {name: entry.step for name, entry in entries.items()}
    with Bar(console or plain_console(), len(steps) * (rounds + WARMUP), title) as bar:
        return entries, interleaved(steps, rounds, device, bar, warmup=WARMUP)


def _choose(work: Workload, only: Sequence[str]) -> dict[str, Callable[[torch.device], TimedStep]]:
    """Constructors of the selected entries; case, spaces, - and _ of names are ignored."""
    builders = our_steps(work) | lightly_steps(work)
    if not only:
        return builders
    canonical = {_canonical(name): name for name in builders}
    if unknown := [name for name in only if _canonical(name) not in canonical]:
        known = ", ".join(name.lower().replace(" ", "_") for name in builders)
        raise UserError(f"--only {unknown[0]}: expected some of {known}.")
    wanted = {canonical[_canonical(name)] for name in only}
    wanted |= {f"{name} compiled" for name in wanted}  # with --compile
    return {name: make for name, make in builders.items() if name in wanted}


def _canonical(name: str) -> str:
    return re.sub("[ _-]", "", name.lower())


def _row(
    name: str,
    processes: Sequence[Times],
    memory: dict[str, tuple[int, int]],
    flops: dict[str, int],
    work: Workload,
) -> dict[str, Any]:
    times = {each: [t for process in processes for t in process[each]] for each in memory}
    kept, beside = memory[name]
    low, high = quartiles(times[name])
    seconds = median(times[name])
    return {
        "seconds": seconds,
        "quartiles": [low, high],
        "images_per_second": work.batch_size / seconds,
        "ratios": {base: ratio(times, name, base) for base in COMPARED if base in times},
        "ratios_by_process": {
            base: [ratio(process, name, base) for process in processes]
            for base in COMPARED
            if base in times
        },
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
    """FLOPs of the matrix products and convolutions of a step, with its backward."""
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())
