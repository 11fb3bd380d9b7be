"""The parts of a training run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from lewel.data.views.loader import Batch, Order, Samples, finish_views
from lewel.host import host_memory
from lewel.nn.trainable import Trainable
from lewel.nn.views import Views
from lewel.train.checkpoint import Checkpoints, State
from lewel.train.display import Display
from lewel.train.estimate import out_of_memory_message
from lewel.train.fabric import Fabric
from lewel.train.metrics import Metrics
from lewel.train.monitor import CorruptImages

KERNELS = ("fused", "foreach")  # how an optimiser computes, which a checkpoint does not decide

Report = Callable[[str], None]
# embed(network, progress) -> embeddings (N, D) of all images, on all ranks
Embed = Callable[[Callable[[Tensor], Tensor], Callable[[str, int, int], None]], Tensor]
Probe = Callable[[Report], dict[str, float]]


@dataclass(frozen=True)
class Plan:
    """The fixed settings of the training loop."""

    order: Order
    steps: int
    learning_rate: Callable[[float], float]  # of progress in [0, 1]
    mean: Sequence[float]
    std: Sequence[float]
    channels_last: bool
    half: bool  # 16-bit arithmetic
    devices: int  # of this node
    workers: int
    log_every: int
    checkpoint_minutes: float
    probe_every: float  # epochs; 0 for never
    # The learning rate of parameters that are not annealed.
    held_rate: Callable[[float], float] = lambda progress: 0.0
    remote: bool = False  # images come from storage that may not answer for a while
    saves_epochs: bool = True  # False where epochs are short: every few minutes, and at the end

    @property
    def images_per_epoch(self) -> int:
        return self.order.steps_per_epoch * self.order.batch_size

    def saves_after(self, step: int) -> bool:
        """Whether a checkpoint is due after this step, regardless of the time."""
        return step == self.steps or (self.saves_epochs and step % self.order.steps_per_epoch == 0)

    def probes_after(self, step: int) -> bool:
        """Whether the k-NN probe runs after this step: at step 0, at intervals, at the end."""
        if not self.probe_every:
            return False
        interval = max(1, round(self.probe_every * self.order.steps_per_epoch))
        return step % interval == 0 or step == self.steps


@dataclass
class Training:
    """All objects of a run; `train` continues it from its current step."""

    fabric: Fabric
    method: Trainable
    optimizer: Optimizer
    plan: Plan
    dataset: Samples
    inputs: Callable[[Any], tuple[Any, ...]]  # a batch -> what the method takes, on the device
    checkpoints: Checkpoints
    metrics: Metrics
    corrupt_images: CorruptImages
    display: Display
    probe: Probe | None
    on_save: Callable[["Training"], None]  # writes the exports of this step to the run folder
    config: dict[str, Any]  # as plain values, for the checkpoint
    data: dict[str, Any]  # the training set, for the checkpoint
    embed: Embed | None = None  # embeddings of all images, for `before_epoch`
    step: int = 0
    resumed: bool = False

    def explain_memory(self) -> str:
        """The error message when memory runs out: what needed it, and what would fit."""
        if not hasattr(self.method, "student"):  # its inputs are more than views: no estimate
            return f"{self.fabric.device} ran out of memory: use a smaller --batch-size or images."
        plan, order, device = self.plan, self.plan.order, self.fabric.device
        if device.type == "cuda":
            torch.cuda.empty_cache()
            memory = torch.cuda.get_device_properties(device).total_memory
        else:
            memory = host_memory()[0] // plan.devices
        return out_of_memory_message(
            self.method,
            optimizer_slots=optimizer_slots(self.optimizer),
            image_size=self.dataset.sizes,
            batch_size=order.batch_size,
            accumulate=order.accumulate,
            device=str(device),
            device_memory=memory,
            half=plan.half,
            ranks=order.ranks,
        )

    def embed_all(self, network: Callable[[Tensor], Tensor]) -> Tensor:
        """Embeddings (N, D) of all images, whole and without augmentation, on all ranks."""
        if self.embed is None:
            raise TypeError("this training has no images to embed")
        was_training = self.method.training
        self.method.eval()
        out = self.embed(network, self.display.work)
        self.method.train(was_training)
        return out

    @property
    def unsaved(self) -> bool:
        """Whether steps were taken since the newest checkpoint."""
        return self.checkpoints.newest != self.step

    def state(self) -> State:
        """The content of a checkpoint: all that is needed to resume exactly."""
        return {
            "step": self.step,
            "config": self.config,
            "data": self.data,
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric._precision.state_dict(),
        }

    def restore(self, state: State) -> None:
        self.step, self.resumed = state["step"], True
        self.method.load_state_dict(state["method"])
        restore_optimizer(self.optimizer, state["optimizer"])
        self.fabric._precision.load_state_dict(state["precision"])


def restore_optimizer(optimizer: Optimizer, state: State) -> None:
    """Load the state of an optimiser, which may have been computed by other kernels."""
    own = [{key: group[key] for key in KERNELS if key in group} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, kernels in zip(optimizer.param_groups, own, strict=True):
        group |= kernels
        if "share" in group:  # version 0.1's name
            group["lr_scale"] = group.pop("share")


def ready_views(batch: Batch, plan: Plan, device: torch.device) -> Views:
    """The views of a batch as a method takes them."""
    crops = finish_views(batch, device, plan.mean, plan.std)
    if plan.channels_last:
        crops = [crop.contiguous(memory_format=torch.channels_last) for crop in crops]
    return views_of(batch, crops, plan.order.samples)


def views_of(batch: Batch, crops: Sequence[Tensor], total: int) -> Views:
    """Finished crops (B, 3, S, S) with where they were cut, on their device."""
    device = crops[0].device
    boxes, flips = torch.stack(batch.boxes) / batch.sizes.repeat(1, 2), torch.stack(batch.flips)
    return Views(
        crops,
        boxes.to(device, non_blocking=True).unbind(),
        flips.to(device, non_blocking=True).unbind(),
        batch.indices.to(device, non_blocking=True),
        total,
    )


def optimizer_slots(optimizer: Optimizer) -> int:
    """How many values an optimiser keeps for each weight."""
    return 2 if isinstance(optimizer, AdamW) else 1
