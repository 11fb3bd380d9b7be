"""`lewel pretrain --dry-run`: what a run would be, without training it."""

from typing import Any

from lewel.config.build import build_dataset, build_fabric, build_optimizer, peak_rate
from lewel.config.pretrain import PretrainConfig
from lewel.config.sizes import crop_sizes
from lewel.data.sources.source import is_remote
from lewel.nn.backbone import exports_of
from lewel.tasks.pretrain_parts import Parts, memory_explained, open_configured, warnings
from lewel.tasks.speed import PACK, reading_seconds, seconds_together, threads_of_rank
from lewel.train.card import count
from lewel.train.devices import placement
from lewel.train.estimate import estimate_memory, estimate_seconds
from lewel.train.run import optimizer_slots


@memory_explained()
def describe(config: PretrainConfig) -> dict[str, Any]:
    """Images, steps, parameters, memory and time of a run."""
    place = placement(config.devices, config.nodes)
    fabric = build_fabric(config, place)
    parts = Parts(config, open_configured(config, None), place, fabric, None)
    method, plan, device = parts.method, parts.plan, parts.fabric.device
    micro = config.batch_size // place.ranks // config.accumulate
    slots = optimizer_slots(build_optimizer(method, config))
    memory = estimate_memory(method, slots, crop_sizes(config), micro, plan.half)
    source = parts.data.unlabelled
    with threads_of_rank(place.ranks, place.cores):
        seconds = config.accumulate * estimate_seconds(
            method,
            crop_sizes(config),
            plan.channels_last,
            device,
            micro,
            plan.half,
            at_most=16 if device.type == "cpu" else 64,
        )
        reading = reading_seconds(build_dataset(config, source), len(source), is_remote(source))
    share = micro * config.accumulate  # images of a step on each device
    together = share * seconds_together(seconds / share, reading, device, plan.workers, place.cores)
    found = warnings(parts)
    if together > PACK * seconds and not is_remote(source):
        found.append("Reading takes most of the time: `lewel pack` makes images small, once.")
    return {
        "images": len(parts.data.unlabelled),
        "steps": parts.plan.steps,
        "learning rate": peak_rate(config),
        "parameters of the backbone": count(method.student.backbone),
        "parameters trained": sum(p.numel() for p in method.parameters() if p.requires_grad),
        "locations of a map": method.student.backbone.locations(config.image_size),
        "exports": ", ".join(exports_of(config.backbone, config.stem, config.width)),
        "memory of a device": f"about {in_units(memory.total)} for {micro} images at a time",
        "time": f"about {duration(together * plan.steps)} on {place.ranks} x {device.type}: "
        f"{together:.2g} s a step, {seconds:.2g} s without reading images",
        **({"warning": " ".join(found)} if found else {}),
    }


def duration(seconds: float) -> str:
    """A length of time in the unit that fits it."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def in_units(size: int) -> str:
    """Bytes in GB, or in MB where they are few."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
