"""Batch norm in groups against the batch norm of each group, and without copies."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lewel.errors import UserError
from lewel.nn.backbone import Backbone
from lewel.nn.norm import normalise_in_groups
from lewel.ops.grouped_norm import alternating_batch_norm, grouped_batch_norm
from tests.conftest import small_backbone

GROUPS = 4


def one_by_one(tokens: Tensor, running: tuple[Tensor, Tensor], *arguments: object) -> Tensor:
    """Each group by a batch norm of its own; the running statistics are averaged."""
    rows = [[one.clone() for one in running] for _ in range(GROUPS)]
    parts = [
        F.batch_norm(part, *mine, *arguments)  # type: ignore[arg-type]
        for part, mine in zip(tokens.chunk(GROUPS), rows, strict=True)
    ]
    for one, values in zip(running, zip(*rows, strict=True), strict=True):
        one.copy_(torch.stack(values).mean(0))
    return torch.cat(parts)


@pytest.mark.parametrize("shape", [(8, 5, 6, 6), (8, 5, 1, 1), (32, 5)], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("at_once", [True, False], ids=["all groups", "group by group"])
def test_it_equals_one_batch_norm_a_group(
    shape: tuple[int, ...],
    last: bool,
    affine: bool,
    kind: torch.dtype,
    at_once: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: not at_once)
    tokens = torch.randn(shape, dtype=kind)
    tolerance = 1e-12 if kind == torch.float64 else 1e-6
    if at_once and kind == torch.float32 and shape[2:] == (1, 1):
        tolerance = 1e-5  # the gradient of two values is nearly 0, a difference of large numbers
    if last and len(shape) == 4:
        tokens = tokens.contiguous(memory_format=torch.channels_last)
    slope = torch.randn_like(tokens)
    scale, shift = torch.rand(5, dtype=kind) + 0.5, torch.randn(5, dtype=kind)
    found: list[list[Tensor]] = []
    for grouped in (True, False):
        inputs = [one.clone().requires_grad_() for one in (tokens, scale, shift)]
        drawn = (torch.randn(5, dtype=kind), torch.rand(5, dtype=kind))
        running = drawn if not found else (found[0][-2], found[0][-1])
        mine = tuple(one.clone() for one in running)
        start = [one.clone() for one in running]
        given = inputs[1:] if affine else [None, None]
        if grouped:
            out = grouped_batch_norm(inputs[0], GROUPS, mine, *given, 0.1, 1e-5)  # type: ignore[arg-type]
        else:
            out = one_by_one(inputs[0], mine, *given, True, 0.1, 1e-5)  # type: ignore[arg-type]
        assert out.is_contiguous() == tokens.is_contiguous()
        wanted = inputs if affine else inputs[:1]
        gradients = torch.autograd.grad(out, wanted, slope)
        found.append([out.detach(), *gradients, *mine, *start])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


class Rows(nn.Module):
    """Images (B, 3, 4, 4) -> rows (B 16, 3) through a batch norm -> tokens (B, 16, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, images: Tensor) -> Tensor:
        rows = images.flatten(2).transpose(1, 2).flatten(0, 1)
        out: Tensor = self.norm(rows)
        return out.view(len(images), -1, 3)


class RowBackbone(Backbone):
    channels = 3

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.net(images)
        return out


@pytest.mark.parametrize("make", [small_backbone, lambda: RowBackbone(Rows())])
def test_groups_that_alternate_inside_a_backbone_give_the_same_numbers(
    make: Callable[[], Backbone],
) -> None:
    """Channels_last images keep their order, and so are the reference."""
    first = make().double().train()
    normalise_in_groups(first, GROUPS)
    images = torch.randn(8, 3, 16, 16, dtype=torch.float64)
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        network = copy.deepcopy(first)  # the copy has an order of its own
        features = network(images.contiguous(memory_format=layout))
        features.square().mean().backward()
        gradients = [weight.grad for weight in network.parameters()]
        found.append([features.detach(), *gradients, *network.buffers()])
    assert len(found[0]) > 3
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(found[0][0], make().double().train()(images), atol=1e-3)


def test_a_backbone_takes_one_batch_norm_for_all_groups() -> None:
    network = small_backbone().train()
    normalise_in_groups(network, GROUPS)
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    with Counted() as counted:
        network(torch.randn(8, 3, 16, 16))
    assert sum("batch_norm" in name for name in counted.names) == norms
    network.eval()
    images = torch.randn(3, 3, 16, 16)  # no multiple of the groups
    assert network(images).shape[0] == 3


class Counted(TorchDispatchMode):
    """Names operations that are no views, with the number of values that each returns."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, int]] = []

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.made]

    def of_size(self, tokens: Tensor) -> list[str]:
        return [name for name, size in self.made if size == tokens.numel()]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            size = out.numel() if isinstance(out, Tensor) else 0
            self.made.append((func.overloadpacket.__name__, size))
        return out


def test_the_activations_are_not_copied() -> None:
    norm = nn.BatchNorm2d(5)
    normalise_in_groups(norm, 8)
    tokens = torch.randn(16, 5, 6, 6, requires_grad=True)
    with Counted() as forward:
        out = norm(tokens)
    assert forward.of_size(tokens) == ["empty_like"]
    assert len(forward.names) <= 8 + 3, forward.names  # 56 where each group is a module call
    slope = torch.randn_like(out)
    with Counted() as backward:
        out.backward(slope)
    assert backward.of_size(tokens) == ["empty_like", "addcmul", "addcmul_"]


def test_group_by_group_the_activations_are_not_copied_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    norm = nn.BatchNorm2d(5)
    normalise_in_groups(norm, 8)
    tokens = torch.randn(16, 5, 6, 6, requires_grad=True)
    with Counted() as forward:
        out = norm(tokens)
    assert not {"cat", "stack"} & set(forward.names)
    assert len(forward.names) <= 8 + 3, forward.names
    with Counted() as backward:
        out.sum().backward()
    assert "cat" not in backward.names


def test_a_compiled_norm_is_one_graph() -> None:
    tokens = torch.randn(8, 5, 4, 4).contiguous(memory_format=torch.channels_last)
    found = []
    for compiled in (True, False):
        torch.manual_seed(0)
        norm: nn.Module = nn.BatchNorm2d(5)
        normalise_in_groups(norm, GROUPS)
        parameters = list(norm.parameters())
        if compiled:
            norm = torch.compile(norm, backend="aot_eager", fullgraph=True)
        out = norm(tokens.clone().requires_grad_())
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), parameters)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("samples", "groups"), [(8, 3), (4, 4)])
def test_groups_that_cannot_be_normalised_are_refused(samples: int, groups: int) -> None:
    running = (torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match=f"in {groups} groups: batch norm needs equal groups"):
        grouped_batch_norm(torch.randn(samples, 3), groups, running, None, None, 0.1, 1e-5)
    assert torch.equal(running[1], torch.ones(3))


@pytest.mark.parametrize("normalise", [grouped_batch_norm, alternating_batch_norm])
def test_an_activation_in_place_needs_no_copy(normalise: Callable[..., Tensor]) -> None:
    tokens = torch.randn(8, 3, 4, 4, requires_grad=True)
    out = normalise(tokens, 2, None, torch.ones(3), torch.zeros(3), 0.0, 1e-5).relu_()
    assert out.grad_fn is not None and out.grad_fn.name() == "ReluBackward0"  # no CopySlices


def test_a_cumulative_mean_is_one_too() -> None:
    norm = nn.BatchNorm1d(3, momentum=None)
    normalise_in_groups(norm, 2)
    batches = torch.randn(2, 8, 3)
    for batch in batches:
        norm(batch)
    torch.testing.assert_close(norm.running_mean, batches.mean((0, 1)))
    assert norm.num_batches_tracked == 2


def test_a_norm_with_a_forward_of_its_own_is_refused() -> None:
    class Other(nn.BatchNorm2d):
        def forward(self, images: Tensor) -> Tensor:
            return 2 * super().forward(images)

    with pytest.raises(UserError, match="Other cannot be normalised in groups"):
        normalise_in_groups(Other(3), 2)


@pytest.mark.parametrize("affine", [True, False])
def test_16_bit_activations_keep_statistics_in_32_bits(affine: bool) -> None:
    tokens = torch.randn(8, 3, 2, 2).to(torch.bfloat16).requires_grad_()
    running, parameters = (torch.zeros(3), torch.ones(3)), [None, None]
    if affine:
        parameters = [torch.ones(3), torch.zeros(3)]
    out = grouped_batch_norm(tokens, 4, running, *parameters, 0.5, 1e-5)
    out.sum().backward()
    means = tokens.detach().float().view(4, 2, 3, 4).mean((0, 1, 3))
    torch.testing.assert_close(running[0], 0.5 * means)
    assert out.dtype == torch.bfloat16 and tokens.grad is not None
