"""Whether what `lewel doctor` read and measured is enough: pure functions, each one line."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lewel.tasks.doctor_facts import Device, Facts
from lewel.tasks.doctor_speed import Checkpoint, Reading, Speeds, Stepped

Status = Literal["ok", "note", "failed", "skipped"]

# One batch of the paper's run, 512 images in two views of 224 px, as bytes; a worker prefetches 2.
BATCH_BYTES = 2 * 512 * 3 * 224 * 224
# A worker's batch is 9 tensors, each an open file until it is used; two batches a worker.
FILES_PER_WORKER = 18
FILES_BESIDES = 110  # libraries, the run's own files, pipes
# Measured: 8 workers stop with "Too many open files" at 64, 4 workers train at 70.
FEWEST_FILES, FEWEST_PER_WORKER = 32, 4
# A checkpoint of the paper's ResNet-50 is 544 MB; two are kept and a third is written.
NEEDED_DISK, COMFORTABLE_DISK = 2e9, 10e9
SLOW_CHECKPOINT = 60.0  # seconds
CORES_PER_GPU = 4


@dataclass(frozen=True)
class Finding:
    """One line: what was found, or a message with the fix."""

    name: str
    status: Status
    text: str


def assess(facts: Facts) -> list[Finding]:
    """The lines of what was read."""
    lines = [python(facts), packages(facts), gpus(facts)]
    lines += [device(one) for one in facts.devices]
    lines += [cores(facts), threads(facts), shared_memory(facts), open_files(facts), disk(facts)]
    return [*lines, extras(facts)]


def assess_speeds(facts: Facts, speeds: Speeds) -> list[Finding]:
    """The lines of what was measured."""
    steps = [step(one.name, speeds.steps[one.name]) for one in facts.devices]
    return [reading(speeds.reading, facts, speeds), *steps, checkpoint(speeds.checkpoint)]


def python(facts: Facts) -> Finding:
    return Finding("Python", "ok", f"{facts.python} on {facts.system}")


def packages(facts: Facts) -> Finding:
    """The required packages."""
    if facts.unmet:
        needs = " ".join(f"'{one}'" for one in facts.unmet)
        found = ", ".join(f"{one} ({has or 'missing'})" for one, has in facts.unmet.items())
        text = f"lewel needs {found}: pip install --upgrade {needs}."
        return Finding("packages", "failed", text)
    return Finding("packages", "ok", ", ".join(f"{k} {v}" for k, v in facts.versions.items()))


def gpus(facts: Facts) -> Finding:
    """Whether torch sees the GPUs that are there."""
    if facts.gpus:
        built = f", torch for CUDA {facts.cuda}" if facts.cuda else ""
        return Finding("GPU", "ok", f"{len(facts.gpus)}{built}")
    if not facts.driver:
        text = (
            "none, training uses the CPU. If there is one by NVIDIA, install its driver: "
            "nvidia-smi must list it."
        )
    elif not facts.cuda:
        text = (
            f"an NVIDIA driver is loaded, but torch {facts.versions.get('torch', '')} was built "
            "without CUDA: install torch for CUDA (https://pytorch.org/get-started)."
        )
    elif facts.visible is not None:
        text = f"CUDA_VISIBLE_DEVICES is {facts.visible!r} and hides all GPUs: unset it."
    else:
        why = f" ({facts.cuda_problem})" if facts.cuda_problem else ""
        text = (
            f"torch for CUDA {facts.cuda} cannot use the NVIDIA driver{why}: update the driver, or "
            "install torch for an older CUDA. In a container start it with --gpus all."
        )
    return Finding("GPU", "note", text)


def device(one: Device) -> Finding:
    """A device, its memory, and its precisions."""
    if one.error:
        fix = "nvidia-smi shows who uses it; --accelerator cpu trains without it"
        return Finding(one.name, "failed", f"it cannot be used ({one.error}): {fix}.")
    has = {"bf16": one.bf16, "TF32": one.tf32}
    formats = ", ".join(f"{'' if there else 'no '}{name}" for name, there in has.items())
    text = f"{one.model}, {gb(one.memory)} of memory ({gb(one.free)} free), {formats}"
    if one.free < one.memory / 2:
        who = "nvidia-smi" if one.name.startswith("cuda") else "top"
        return Finding(
            one.name, "note", f"{text}: more than half is taken, {who} shows by which process."
        )
    return Finding(one.name, "ok", text)


def cores(facts: Facts) -> Finding:
    """The CPU cores that this process may use, and what else runs on them."""
    text = f"{facts.cores} usable of {facts.cpus}"
    more = "ask for more (docker --cpus, srun --cpus-per-task, taskset)"
    wanted = CORES_PER_GPU * len(facts.gpus)
    if facts.cores < wanted:
        text = f"{text}: {len(facts.gpus)} GPUs want {wanted} to read images: {more}."
        return Finding("cores", "note", text)
    if facts.load > 1.5 * facts.cores:
        text = (
            f"{text}, but {facts.load:.0f} processes want to run and training shares them: stop "
            "the others (top shows them)."
        )
        return Finding("cores", "note", text)
    return Finding("cores", "ok", text)


def threads(facts: Facts) -> Finding:
    """The threads of torch, which share the cores with data workers where a CPU trains."""
    own, free = facts.threads, max(1, facts.cores - facts.workers)
    fix = f"export OMP_NUM_THREADS={facts.cores if facts.gpus else free}."
    unset = "OMP_NUM_THREADS is not set: " if facts.omp is None else ""
    text = ""
    if own > facts.cores:
        text = f"{unset}torch computes with {own} threads on {facts.cores} cores: {fix}"
    elif not facts.gpus and facts.omp is None and own + facts.workers > facts.cores:
        both = f"{own} threads and {facts.workers} data workers"
        text = f"{unset}{both} share {facts.cores} cores: {fix}"
    elif not facts.gpus and own < facts.cores // 2:
        text = f"torch computes with {own} threads, {facts.cores} cores are there: {fix}"
    if text:
        return Finding("threads", "note", text)
    many = f"{own}, data workers by default: {facts.workers}"
    return Finding("threads", "ok", f"{many}, OMP_NUM_THREADS {facts.omp or 'not set'}")


def shared_memory(facts: Facts) -> Finding:
    """Batches come from data workers through /dev/shm."""
    if facts.shm is None:
        return Finding("/dev/shm", "ok", "none on this system")
    needed = 2 * facts.workers * BATCH_BYTES
    text = f"{gb(facts.shm)} free"
    if facts.shm >= needed:
        return Finding("/dev/shm", "ok", text)
    fix = "start the container with --shm-size=8g or --ipc=host, or use --workers 0"
    if facts.shm < BATCH_BYTES:
        text = (
            f"{text}, a batch of the paper's run has {gb(BATCH_BYTES)} and data workers die: {fix}."
        )
        return Finding("/dev/shm", "failed", text)
    text = f"{text}, {facts.workers} data workers of the paper's run fill {gb(needed)}: {fix}."
    return Finding("/dev/shm", "note", text)


def open_files(facts: Facts) -> Finding:
    """Each tensor on its way from a data worker is an open file."""
    needed = FILES_BESIDES + FILES_PER_WORKER * facts.workers
    if facts.open_files < needed:
        fix = f"use --workers {max(0, facts.open_files - FILES_BESIDES) // FILES_PER_WORKER}"
        if facts.open_files_hard > facts.open_files:
            fix = f"ulimit -n {min(facts.open_files_hard, 65_536)}, or {fix}"
        fewest = FEWEST_FILES + FEWEST_PER_WORKER * facts.workers
        text = f"{facts.open_files:,} at most, {facts.workers} data workers need {needed:,}: {fix}."
        return Finding("open files", "failed" if facts.open_files <= fewest else "note", text)
    return Finding("open files", "ok", f"{facts.open_files:,} at most")


def disk(facts: Facts) -> Finding:
    """Room for the checkpoints of a run in the current folder."""
    text, fix = f"{gb(facts.disk)} free in this folder", "or use --out on another disk"
    if facts.disk < NEEDED_DISK:
        text = f"{text}, three checkpoints of the paper's ResNet-50 have 1.6 GB: free some, {fix}."
        return Finding("disk", "failed", text)
    if facts.disk < COMFORTABLE_DISK:
        text = f"{text}, a few runs fill it: delete checkpoints of finished runs, {fix}."
        return Finding("disk", "note", text)
    return Finding("disk", "ok", text)


def extras(facts: Facts) -> Finding:
    """Optional packages: none is needed."""
    missing = [name for name, lacks in facts.extras.items() if lacks]
    there = ", ".join(name for name in facts.extras if name not in missing) or "none"
    if not missing:
        return Finding("optional", "ok", there)
    fix = f"pip install 'lewel[{','.join(missing)}]'"
    return Finding("optional", "ok", f"{there}; not installed: {', '.join(missing)} ({fix})")


def reading(one: Reading, facts: Facts, speeds: Speeds) -> Finding:
    """Whether data workers keep up with the GPUs."""
    if one.error:
        text = (
            f"a JPEG file cannot be read ({one.error}): pip install --force-reinstall torchvision."
        )
        return Finding("reading", "failed", text)
    text = (
        f"a core decodes {one.decoded:.0f} JPEG files a second ({one.what}) and makes two views of "
        f"{one.views:.0f}"
    )
    trains = sum(fastest(speeds.steps[gpu.name]) for gpu in facts.gpus)
    reads = one.views * min(facts.cores, 8 * len(facts.gpus))
    if reads < trains:
        text = (
            f"{text}: {facts.cores} cores read {reads:.0f} images a second, the GPUs train "
            f"{trains:.0f}: ask for more cores, or shrink the images once by `lewel pack`."
        )
        return Finding("reading", "note", text)
    return Finding("reading", "ok", text)


def fastest(steps: Iterable[Stepped]) -> float:
    """Images a second of the larger step, the last that was timed."""
    rates = [one.images / one.seconds for one in steps if one.seconds]
    return rates[-1] if rates else 0.0


def step(name: str, steps: tuple[Stepped, ...]) -> Finding:
    """A training step of two sizes on a device."""
    errors = [f"{one.what}: {one.error}" for one in steps if one.error]
    if errors:
        fix = "torch and this CPU do not fit: pip install --force-reinstall torch"
        if name != "cpu":
            fix = "see its driver by nvidia-smi; --accelerator cpu trains without it"
        return Finding(f"step on {name}", "failed", f"{errors[0]}: {fix}.")
    if not steps:
        return Finding(f"step on {name}", "skipped", "the device cannot be used")
    rates = "; ".join(
        f"{one.what}: {one.skipped or f'{one.images / one.seconds:.3g} images/s'}" for one in steps
    )
    return Finding(f"step on {name}", "ok", f"{'a core, ' if name == 'cpu' else ''}{rates}")


def checkpoint(one: Checkpoint) -> Finding:
    """The time to write everything that resumes a run."""
    if one.error:
        text = f"{one.error}: free some space, or use --out on another disk."
        return Finding("checkpoint", "failed", text)
    text = f"{one.bytes / 1e6:,.0f} MB in {one.seconds:.1f} s"
    if one.seconds > SLOW_CHECKPOINT:
        text = f"{text}: the disk is slow: use --out on a local one, or raise --checkpoint-minutes."
        return Finding("checkpoint", "note", text)
    return Finding("checkpoint", "ok", text)


def gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
