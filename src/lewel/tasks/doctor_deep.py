"""`lewel doctor --deep`: proves the installation on the devices at hand by short runs.

Every run is a process of its own: one that crashes or hangs is a failed line.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lewel.tasks.doctor_facts import Device, Facts
from lewel.tasks.doctor_lines import Finding
from lewel.tasks.doctor_runs import Failed, Place, Runs, Steps, Taken, read_run
from lewel.tasks.doctor_speed import Tell


class Bound(NamedTuple):
    """How far apart two trainings may be, relative to the first: losses, and updates of weights."""

    loss: float
    update: float


# Measured over all methods on a CPU: float32 is 2e-7 and 6e-5 from float64. Convolutions and matrix
# products rounded to 10 bits of mantissa (TF32, float16) are 3e-4 and 0.12 from float32, to 7 bits
# (bfloat16) 6e-4 and 0.22.
BOUNDS = {
    "32": Bound(1e-4, 0.01),
    "tf32": Bound(3e-3, 0.3),
    "16-mixed": Bound(3e-3, 0.3),
    "bf16-mixed": Bound(0.01, 0.5),
}
VIEWS = 0.02  # mean difference of normalised pixels made on two devices
# A run of 12 steps whose sums have another order: two processes of a CPU are up to 2e-4 and 3e-3
# apart by the machine; AVX2 in place of AVX-512, which changes nothing but rounding, 5e-4 and 6e-3.
ROUNDED = Bound(5e-3, 0.05)
EXACT = Bound(0.0, 0.0)
UNUSABLE = "the device cannot be used"
ARITHMETICS = {"bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed", "tf32": "TF32"}


def examine(facts: Facts, tell: Tell) -> list[Finding]:
    """All checks, in the order of the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        steps, runs = Steps(folder / "steps", tell), Runs(folder / "runs", tell)
        lines = [*agreement(facts, steps), *precisions(facts, steps)]
        return [*lines, *resuming(facts, runs), *two_devices(facts, runs), *moving(facts, runs)]


def working(facts: Facts) -> list[Place]:
    """The places of the CPU and of all GPUs that open."""
    return [place_of(one, facts) for one in facts.devices if not one.error]


def place_of(device: Device, facts: Facts) -> Place:
    """Where a process finds a device: the only one that is visible to it."""
    if not device.name.startswith("cuda"):
        return Place(device.name, device.name)
    index = int(device.name.partition(":")[2])
    visible = facts.visible.split(",")[index].strip() if facts.visible else str(index)
    return Place(device.name, "cuda", visible)


def agreement(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """A step of every method: on the CPU as in float64, on each GPU as on the CPU."""
    cpu = place_of(facts.devices[0], facts)
    for device in facts.devices:
        name = f"methods on {device.name}"
        if device.error:
            yield Finding(name, "skipped", UNUSABLE)
            continue
        place = place_of(device, facts)
        reference = "float64" if place == cpu else "32"
        text = f"a step of every method as {'in float64' if place == cpu else 'on the CPU'}"
        yield checked(name, text, compare_steps, steps, (cpu, reference), (place, "32"))
    if not facts.gpus:
        yield Finding("methods on a GPU", "skipped", "there is no GPU")


def precisions(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """A step of every method in 16 bits and in TF32, beside one in 32 bits on the same device."""
    for device in facts.devices:
        for arithmetic, title in ARITHMETICS.items():
            name = f"{title} on {device.name}"
            if reason := lacks(device, arithmetic):
                yield Finding(name, "skipped", reason)
                continue
            place = place_of(device, facts)
            text = "a step of every method close to 32 bits"
            yield checked(name, text, compare_steps, steps, (place, "32"), (place, arithmetic))


def lacks(device: Device, arithmetic: str) -> str:
    """Why a device is not compared in an arithmetic; empty where it is."""
    if device.error:
        return UNUSABLE
    if arithmetic == "tf32":
        return "" if device.tf32 else "only NVIDIA GPUs from Ampere on have TF32"
    if arithmetic == "bf16-mixed":
        return "" if device.bf16 else "this device has no bf16 that works: use --precision 32"
    return "" if device.name.startswith("cuda") else "needs a GPU with CUDA"


def resuming(facts: Facts, runs: Runs) -> Iterator[Finding]:
    """A run that is killed and resumed equals the uninterrupted one: on a CPU bit for bit."""
    for place in working(facts)[:2]:
        exact = place.accelerator == "cpu"
        text = f"killed and resumed, {'equal' if exact else 'close'} to an uninterrupted run"
        bound = EXACT if exact else ROUNDED
        yield checked(f"resume on {place.name}", text, resumed, runs, place, bound)


def resumed(runs: Runs, place: Place, bound: Bound) -> str:
    whole, killed = runs.whole("lewel_b", place), runs.killed("lewel_b", place)
    return compare(read_run(whole), read_run(killed), bound)


def two_devices(facts: Facts, runs: Runs) -> Iterator[Finding]:
    """A run on two devices equals that on one: two processes of a CPU, and two GPUs."""
    cpu = place_of(facts.devices[0], facts)
    text = "a run on two equals that on one"

    def equal(method: str, one: Place, two: Place, sync: bool) -> str:
        alone, pair = (runs.whole(method, p, n, sync) for p, n in ((one, 1), (two, 2)))
        return compare(read_run(alone), read_run(pair), ROUNDED)

    yield checked("two processes", text, equal, "lewel_m", cpu, cpu, False)
    gpus = [place for place in working(facts)[1:] if place.accelerator == "cuda"]
    if len(gpus) < 2:
        few = "there is no GPU" if not gpus else "there is only one GPU"
        yield Finding("two GPUs", "skipped", few)
        return
    both = Place("cuda-pair", "cuda", f"{gpus[0].visible},{gpus[1].visible}")
    yield checked("two GPUs", text, equal, "lewel_m", gpus[0], both, False)
    sync = f"with SyncBN, {text}"
    yield checked("two GPUs, SyncBN", sync, equal, "lewel_b", gpus[0], both, True)


def moving(facts: Facts, runs: Runs) -> Iterator[Finding]:
    """A checkpoint resumes on another device: from two processes to one, CPU to GPU and back."""
    cpu, *gpus = working(facts)

    def moved(method: str, start: Place, devices: int, to: Place) -> str:
        run = runs.whole(method, start, devices)
        return compare(read_run(run), read_run(runs.moved(method, run, to)), ROUNDED)

    text = "the checkpoint of {} resumes on {}, close to the uninterrupted run"
    two = text.format("two processes", "one")
    yield checked("move 2 to 1", two, moved, "lewel_m", cpu, 2, cpu)
    if not gpus:
        yield Finding("move to a GPU", "skipped", "there is no GPU")
        return
    gpu = gpus[0]
    there, back = text.format("the CPU", gpu.name), text.format(gpu.name, "the CPU")
    yield checked(f"move to {gpu.name}", there, moved, "lewel_b", cpu, 1, gpu)
    yield checked(f"move from {gpu.name}", back, moved, "lewel_b", gpu, 1, cpu)


def checked(name: str, text: str, check: Callable[..., str], *given: Any) -> Finding:
    """The line of a check, which returns how close it came, or raises Failed."""
    try:
        return Finding(name, "ok", f"{text} ({check(*given)})")
    except Failed as error:
        advice = "attach `lewel doctor --deep --json` to an issue"
        return Finding(name, "failed", f"{text}: no, {error}: {advice}.")


def compare_steps(steps: Steps, one: tuple[Place, str], two: tuple[Place, str]) -> str:
    """Compare the steps of all methods in two arithmetics -> the largest distances."""
    exact, other = steps.taken(*one), steps.taken(*two)
    for method in exact:
        try:
            compare(exact[method], other[method], BOUNDS[two[1]])
        except Failed as error:
            raise Failed(f"{method}: {error}") from None
    far = [distance(exact[method], other[method]) for method in exact]
    return described(Bound(max(one.loss for one in far), max(one.update for one in far)))


def compare(exact: Taken, other: Taken, bound: Bound) -> str:
    """The distances of two trainings; raises Failed where they are too large."""
    far = distance(exact, other)
    if not (far.loss <= bound.loss and far.update <= bound.update):  # also where one is NaN
        raise Failed(f"{described(far)}, at most {bound.loss:.1g} and {bound.update:.1g} allowed")
    if exact.views is not None and other.views is not None:
        pixels = float((exact.views - other.views).abs().mean())
        if not pixels <= VIEWS:
            raise Failed(f"the pixels of views differ by {pixels:.2g}, at most {VIEWS} allowed")
    return "bit for bit" if far == EXACT else described(far)


def distance(exact: Taken, other: Taken) -> Bound:
    """The largest relative difference of losses (of those above 1), and that of the update."""
    if len(exact.losses) != len(other.losses):
        raise Failed(f"{len(other.losses)} steps instead of {len(exact.losses)}")
    pairs = zip(exact.losses, other.losses, strict=True)
    losses = [abs(a - b) / max(abs(a), 1.0) for a, b in pairs]  # SimSiam's begins near 0
    size = float(exact.update.norm())
    if not size > 0:
        raise Failed("the weights did not change")
    finite = torch.isfinite(torch.tensor(losses)).all()
    update = float((exact.update - other.update).norm()) / size
    return Bound(max(losses) if finite else float("nan"), update)


def described(far: Bound) -> str:
    return f"losses {far.loss:.1g}, updates {far.update:.1g} apart"
