"""Estimates of the memory and time of a training step, before it runs."""

import copy
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lewel.nn.trainable import Trainable
from lewel.nn.views import noise_views, whole_views

USABLE = 0.9  # of a device's memory; the rest is for the driver, workspaces and fragmentation
LONG = 5.0  # seconds; a step that takes longer is timed once


Sizes = int | Sequence[int]  # the sides of all crops in pixels; a number is that of two views


def sides(image_size: Sizes) -> Sequence[int]:
    """The side of each crop in pixels."""
    return [image_size] * 2 if isinstance(image_size, int) else image_size


class Memory(NamedTuple):
    """Bytes that one device needs for a training step."""

    weights: int  # student, teacher, gradients, optimiser state, buffers
    activations: int  # views, tensors saved for backward, and temporaries alive with them

    @property
    def total(self) -> int:
        return self.weights + self.activations


class _Alive(TorchDispatchMode):
    """Peak bytes of all live tensors, each storage counted once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: dict[int, int] = {}
        self.now = self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.native_batch_norm.default:
            # Output shapes by hand: torch's decomposition runs thirty operations, half of the time.
            x, channels = args[0], args[0].shape[1]
            out = (torch.empty_like(x), x.new_empty(channels), x.new_empty(channels))
        else:
            out = func(*args, **(kwargs or {}))
        for storage in (x.untyped_storage() for x in tree_leaves(out) if isinstance(x, Tensor)):
            if (key := id(storage)) not in self.bytes:  # views and in-place results share a storage
                self.bytes[key] = storage.nbytes()
                self.now += self.bytes[key]
                weakref.finalize(storage, self._forget, key)
        self.most = max(self.most, self.now)
        return out

    def _forget(self, key: int) -> None:
        self.now -= self.bytes.pop(key)


def estimate_memory(
    method: Trainable, optimizer_slots: int, image_size: Sizes, micro_batch: int, half: bool = False
) -> Memory:
    """Memory of a step on a micro-batch, from shapes alone: nothing is computed or changed.

    `optimizer_slots` is the number of values the optimiser keeps for a weight: 1 for SGD and LARS,
    2 for AdamW. Gradients count in full, as from the second micro-batch on; with them allocated,
    the forward needs more than the backward. `half` halves the activations, which is rough:
    losses and norms stay in 32 bits, and weights are copied to 16.
    """
    trained = sum(p.nbytes for p in method.parameters() if p.requires_grad)
    kept = sum(tensor.nbytes for tensor in (*method.parameters(), *method.buffers()))
    _start_autograd()
    with _alone(), FakeTensorMode(), _Alive() as alive:
        twin = _without_values(method)
        weights = alive.now
        twin(noise_views(micro_batch, sides(image_size), torch.empty))
    activations = (alive.most - weights) // (2 if half else 1)
    return Memory(kept + (1 + optimizer_slots) * trained, activations)


def _start_autograd() -> None:
    """Start the threads of backward passes, one for each device that is there.

    Within a FakeTensorMode torch finds eight devices on a machine without any. Started later it
    would have a thread for each, and in a forked process these sometimes abort it.
    """
    torch.autograd.backward(torch.ones((), requires_grad=True))


def _without_values(method: Trainable) -> Trainable:
    """A copy in training mode with fake tensors (shapes only); made within a FakeTensorMode."""
    tensors = [*method.parameters(), *method.buffers()]
    memo: dict[int, Any] = {
        id(x): torch.empty(x.shape, dtype=x.dtype, requires_grad=x.requires_grad) for x in tensors
    }
    twin = copy.deepcopy(method, memo).train()
    for module in twin.modules():
        if isinstance(module, _BatchNorm) and hasattr(module, "groups"):
            module.__class__ = type(module).__bases__[-1]  # same bytes, fewer operations
    return twin


@contextmanager
def _alone() -> Iterator[None]:
    """Disable collectives, as the other ranks do not take part in the estimate."""
    before, dist.is_available = dist.is_available, lambda: False
    try:
        yield
    finally:
        dist.is_available = before


def norm_groups(method: Trainable) -> int:
    """The number of ShuffleBN groups of a model, 1 for none."""
    norms = (module for module in method.modules() if isinstance(module, _BatchNorm))
    return max((getattr(norm, "groups", 1) for norm in norms), default=1)


def largest_batch(
    method: Trainable,
    optimizer_slots: int,
    image_size: Sizes,
    available: int,
    at_most: int,
    half: bool = False,
    multiple_of: int = 1,
) -> int:
    """The largest batch that fits `available` bytes, 2 or more images per group; 0 if none."""
    groups = norm_groups(method)
    unit = math.lcm(multiple_of, groups)
    batches = range(unit * math.ceil(2 * groups / unit), at_most + 1, unit)

    @cache
    def needed(at: int) -> int:
        return estimate_memory(method, optimizer_slots, image_size, batches[at], half).total

    def crossing(one: int, two: int) -> int:
        """Where the line through two sizes reaches the available bytes."""
        return one + (two - one) * (available - needed(one)) // (needed(two) - needed(one))

    last = len(batches) - 1
    if last < 0 or needed(0) > available:
        return 0
    if needed(last) <= available:
        return batches[last]
    fits, fails = 0, last
    while fails - fits > 1:  # bytes are mostly near a line: few sizes are tried
        chord = crossing(fits, fails)
        for at in (chord, chord + 1, (fits + fails) // 2):
            if fits < at < fails:
                fits, fails = (at, fails) if needed(at) <= available else (fits, at)
    return batches[fits]


def estimate_seconds(
    method: Trainable,
    image_size: Sizes,
    channels_last: bool,
    device: torch.device,
    micro_batch: int,
    half: bool = False,
    at_most: int = 16,
    clock: Callable[[], float] = time.monotonic,
    long_enough: float = 0.0,
) -> float:
    """Seconds of a forward and backward of a micro-batch, timed on `at_most` images.

    The median of three, or of as many as take `long_enough` seconds. Scaled linearly, which
    overestimates on a GPU that a few images do not fill.
    """
    groups = norm_groups(method)
    images = max(2 * groups, min(micro_batch, groups * (at_most // groups)))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    times: list[float] = []
    with _alone(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        twin = copy.deepcopy(method).to(device).to(memory_format=layout).train()
        noise = noise_views(images, sides(image_size))
        views = whole_views([crop.to(device, memory_format=layout) for crop in noise])
        while max(times, default=0.0) < LONG and (len(times) < 4 or sum(times[1:]) < long_enough):
            begun = clock()
            with torch.autocast(device.type, enabled=half):
                loss = twin(views).loss
            loss.backward()
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
            times.append(clock() - begun)
            twin.zero_grad(set_to_none=True)
        del twin, views, loss
    if device.type == "cuda":
        torch.cuda.empty_cache()  # other processes may train on this device
    return median(times[1:] or times) * micro_batch / images  # the first is a warm-up


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the CPU ran out of memory."""
    phrases = ("can't allocate memory", "not enough memory", "out of memory")  # CPU, Windows, MPS
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases)
    )


def out_of_memory_message(
    method: Trainable,
    *,
    optimizer_slots: int,
    image_size: Sizes,
    batch_size: int,
    accumulate: int,
    device: str,
    device_memory: int,
    half: bool = False,
    ranks: int = 1,
) -> str:
    """The error message: what did not fit, what would, and its flags; `batch_size` is the total."""
    per_rank, available = batch_size // ranks, int(USABLE * device_memory)
    micro, groups = per_rank // accumulate, norm_groups(method)
    needed = estimate_memory(method, optimizer_slots, image_size, micro, half).total
    # Where it should have fitted, other processes use memory: try half as many.
    at_most = micro - 1 if needed > available else micro // 2
    fits = largest_batch(method, optimizer_slots, image_size, available, at_most, half)
    side = max(sides(image_size))
    what = (
        f"{device} ran out of memory: {micro} images of {side} px at a time need about "
        f"{needed / 1e9:.1f} GB of its {device_memory / 1e9:.1f} GB"
    )
    if not fits:
        return f"{what}, and fewer do not fit either: use a smaller --image-size or --backbone."
    smaller = f"--batch-size {fits * accumulate * ranks} with another --out"
    for parts in range(accumulate + 1, per_rank // (2 * groups) + 1):
        if per_rank % (parts * groups) == 0 and per_rank // parts <= fits:
            same = f"--accumulate {parts} (the same batch, {per_rank // parts} at a time)"
            return f"{what}, about {fits} would fit: use {same} or {smaller}."
    return f"{what}, about {fits} would fit: use {smaller}."
