"""Batch norm: SyncBN, ShuffleBN groups on one device, PreciseBN."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lewel.errors import UserError
from lewel.nn.backbone import Backbone
from lewel.nn.teacher import Teacher, TeacherSpec
from lewel.ops.grouped_norm import (
    alternate,
    alternating_batch_norm,
    consecutive,
    grouped_batch_norm,
)
from lewel.ops.ranks import mean_over_ranks, ranks

Features = Tensor | tuple[Tensor, ...]


def normalise_in_groups(network: nn.Module, groups: int) -> bool:
    """Let every batch norm take its statistics in `groups` groups of the global batch.

    Each rank is one group or several. Returns whether there is more than one group in all.
    """
    mine = max(1, groups // ranks())
    if mine > 1:
        for module in network.modules():
            if isinstance(module, Backbone):
                _group_norms(module, mine, Order(mine).attach(module))
        _group_norms(network, mine, None)
    return groups > 1 or ranks() > 1


def shuffle_bn_teacher(student: nn.Module, spec: TeacherSpec, groups: int) -> Teacher:
    """A teacher with ShuffleBN: it and the student normalise in groups of the global batch.

    The student is changed in place, before the teacher copies it.
    """
    return Teacher(student, spec, shuffle=normalise_in_groups(student, groups))


def _group_norms(network: nn.Module, groups: int, order: "Order | None") -> None:
    for module in network.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, _Grouped):
            module.__class__ = _grouped(type(module))  # type: ignore[arg-type]
            module.groups, module.order = groups, order  # type: ignore[assignment]


def synchronise(network: nn.Module) -> None:
    """Convert every batch norm to SyncBN; teachers no longer shuffle.

    Statistics over the whole batch do not depend on its order.
    """
    from timm.layers.norm_act import convert_sync_batchnorm

    # timm's conversion: torch's would drop the activations inside some of timm's norms.
    convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    for module in network.modules():
        if isinstance(module, Teacher):
            module.shuffle = False


@torch.no_grad()
def average_statistics(network: nn.Module) -> None:
    """Average the batch norm statistics over all ranks, in one all-reduce."""
    if ranks() == 1:
        return
    statistics = [
        buffer
        for module in network.modules()
        if isinstance(module, _BatchNorm)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    if not statistics:
        return
    means = mean_over_ranks(torch.cat([buffer.flatten() for buffer in statistics]))
    parts = torch.split(means, [buffer.numel() for buffer in statistics])
    torch._foreach_copy_(statistics, [p.view_as(b) for p, b in zip(parts, statistics, strict=True)])


@contextmanager
def precise_statistics(network: nn.Module) -> Iterator[None]:
    """PreciseBN: batch norm statistics become the mean over the forward passes inside."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    momenta, was_training = [norm.momentum for norm in norms], network.training
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's value for a cumulative mean
    network.train()
    try:
        yield
    finally:
        network.train(was_training)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    average_statistics(network)


class Order:
    """The order of samples inside a backbone: in training its groups alternate.

    Its images are reordered once, and so are the features that it returns; then a group costs no
    copy in any norm. Channels_last images are not reordered, because there it would cost one.
    """

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.batch = 0  # samples while the groups alternate

    def attach(self, backbone: Backbone) -> "Order":
        """Hook into the backbone's forward."""
        backbone.register_forward_pre_hook(self.begin)
        backbone.register_forward_hook(self.end)
        return self

    def begin(self, backbone: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        images, *others = inputs
        self.batch = len(images) if backbone.training and images.is_contiguous() else 0
        return (alternate(images, self.groups) if self.batch else images, *others)

    def end(self, backbone: nn.Module, inputs: tuple[Tensor, ...], features: Features) -> Features:
        alternates, self.batch = self.batch > 0, 0
        if not alternates:
            return features
        if isinstance(features, tuple):  # of several stages
            return tuple(consecutive(one, self.groups) for one in features)
        return consecutive(features, self.groups)


class _Grouped(_BatchNorm):
    """A batch norm that in training normalises groups of its input (B, C, ...) along B."""

    groups: int
    order: Order | None

    def forward(self, tokens: Tensor) -> Tensor:
        if not self.training:
            return super().forward(tokens)
        running, momentum = None, 0.0
        if self.running_mean is not None and self.running_var is not None:
            running, momentum = (self.running_mean, self.running_var), self._next_momentum()
        settings = (self.groups, running, self.weight, self.bias, momentum, self.eps)
        samples = 0 if self.order is None else self.order.batch
        if samples == len(tokens):
            out = alternating_batch_norm(tokens, *settings)
        elif samples:  # several rows a sample
            shape = (samples, -1, *tokens.shape[1:])
            rows = consecutive(tokens.reshape(shape), self.groups).flatten(0, 1)
            out = grouped_batch_norm(rows, *settings).view(shape)
            out = alternate(out, self.groups).flatten(0, 1)
        else:
            out = grouped_batch_norm(tokens, *settings)
        for part in ("drop", "act"):  # of timm's norms
            out = getattr(self, part, _unchanged)(out)
        return out

    def _next_momentum(self) -> float:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        return 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum


def _unchanged(tokens: Tensor) -> Tensor:
    return tokens


@cache
def _grouped(kind: type[_BatchNorm]) -> type[_Grouped]:
    """The grouped version of a batch norm class of torch or timm."""
    known = kind.forward is _BatchNorm.forward
    if not known:  # only then is timm needed, whose import takes seconds
        from timm.layers.norm_act import BatchNormAct2d

        known = kind.forward is BatchNormAct2d.forward
    if not known:
        raise UserError(
            f"{kind.__name__} cannot be normalised in groups: use --contrast.shuffle-bn-groups 1."
        )
    return type(f"Grouped{kind.__name__}", (_Grouped, kind), {})
