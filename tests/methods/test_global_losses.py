"""SimCLR, SimSiam, Barlow Twins and SwAV, alone and with learned maps, against slow references."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lewel.config.build import build_method
from lewel.config.configure import configure
from lewel.config.resolve import resolve
from lewel.config.sizes import crop_sizes
from lewel.errors import UserError
from lewel.interop.backbones import build_backbone
from lewel.losses.barlow_twins import cross_correlation, redundancy
from lewel.losses.nt_xent import nt_xent
from lewel.methods.barlow_twins import BarlowTwins
from lewel.methods.base import Method, Views
from lewel.methods.lewel_barlow import LewelBarlow
from lewel.methods.lewel_simclr import LewelSimCLR
from lewel.methods.lewel_simsiam import LewelSimSiam
from lewel.methods.lewel_swav import LewelSwAV
from lewel.methods.simclr import SimCLR
from lewel.methods.simsiam import SimSiam
from lewel.methods.swav import SwAV
from lewel.nn.heads import Encoder
from lewel.nn.trainable import Epoch
from lewel.nn.views import whole_views
from lewel.ops.precision import unit
from lewel.ops.sinkhorn import sinkhorn
from tests.conftest import randomise_statistics
from tests.methods.comparing import assert_trains_alike
from tests.methods.making import make_method
from tests.methods.reference import barlow_loss, embed, simclr_loss, simsiam_loss, swav_loss

SIZES = {"dim": 8, "hidden": 12}
ALIGNED = {"aligned_dim": 8, "groups": 2}
OWN: dict[type[Method], dict[str, Any]] = {
    SimCLR: {},
    SimSiam: {"predictor_hidden": 6},
    BarlowTwins: {},
    SwAV: {"prototypes": 5},
}
WITH_MAPS = {
    SimCLR: LewelSimCLR,
    SimSiam: LewelSimSiam,
    BarlowTwins: LewelBarlow,
    SwAV: LewelSwAV,
}
bases = pytest.mark.parametrize("base", OWN, ids=lambda kind: kind.about.name)


def make(base: type[Method], beta: float | None = None, **more: Any) -> Method:
    """The base, or the base with learned maps and this weight."""
    given = {**SIZES, **OWN[base], **more}
    if beta is None:
        return make_method(base, **given)
    return make_method(WITH_MAPS[base], **{**ALIGNED, **given}, aligned_weight=beta)


def batch(base: type[Method], images: int = 3, dtype: torch.dtype = torch.float64) -> Views:
    sizes = (16, 16, 8, 8) if base.about.small_crops else (16, 16)
    return whole_views([torch.randn(images, 3, size, size, dtype=dtype) for size in sizes])


def slow(base: type[Method], method: Method, views: Views, beta: float | None) -> Tensor:
    """The loss by the references, from the features of the backbone."""
    state = dict(method.named_parameters()) | dict(method.named_buffers())
    groups = None if not beta else 2
    crops = [
        embed(method.student.backbone(view), state, "student.head.", groups, True) for view in views
    ]
    pooled = [[[row] for row in z] for z, _ in crops]
    aligned = [rows for _, rows in crops]

    def loss(rows: list[list[list[Tensor]]], predictor: str) -> Tensor:
        flat = [[row for image in crop for row in image] for crop in rows]
        if base is SimCLR:
            return simclr_loss(*rows, 0.1)
        if base is SimSiam:
            return simsiam_loss(state, predictor, *flat)
        if base is BarlowTwins:
            return barlow_loss(*flat, 0.0051)
        return swav_loss(flat, state["student.head.prototypes.vectors"], 0.1, 0.05)

    parts = [(1 - (beta or 0), pooled, "predict"), (beta or 0, aligned, "predict_aligned")]
    return sum(weight * loss(rows, name) for weight, rows, name in parts if weight)


@bases
@pytest.mark.parametrize("beta", [None, 0.25, 1.0])
def test_loss_and_gradient_equal_the_slow_reference(base: type[Method], beta: float | None) -> None:
    method = make(base, beta).double().train()
    randomise_statistics(method)
    with torch.no_grad():
        for name, parameter in method.named_parameters():
            if "prototypes" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    if hasattr(method, "prototypes"):
        method.prototypes.normalise()  # exactly, in float64
    views, twin = batch(base), copy.deepcopy(method)
    step = method(views)
    step.loss.backward()
    expected = slow(base, twin, views, beta)
    expected.backward()
    assert abs(step.loss.item() - expected.item()) < 1e-9
    gradients = 0
    for (name, fast), other in zip(method.named_parameters(), twin.parameters(), strict=True):
        assert fast.grad is not None, name  # nothing unused is built
        if "prototypes" in name:  # the reference's cosine has a gradient along them, too
            along = (other.grad * other).sum(1, keepdim=True) * other
            ours = fast.grad - (fast.grad * fast).sum(1, keepdim=True) * fast
            assert torch.allclose(ours, other.grad - along, atol=1e-9, rtol=1e-9), name
        else:
            assert torch.allclose(fast.grad, other.grad, atol=1e-9, rtol=1e-9), name
        gradients += int(fast.grad.abs().max() > 1e-6)
    assert gradients > 10


@bases
@pytest.mark.parametrize("network", ["resnet", "vit"])
def test_beta_0_is_the_base_bit_for_bit(base: type[Method], network: str) -> None:
    def backbone() -> Any:
        torch.manual_seed(3)
        if network == "resnet":
            return None
        return build_backbone("timm/vit_tiny_patch16_224", "imagenet", 64, 32, several_sizes=True)

    pair = [make(base, backbone=backbone()), make(base, 0.0, backbone=backbone())]
    assert pair[0].state_dict().keys() == pair[1].state_dict().keys()
    side = 16 if network == "resnet" else 32
    sizes = (side, side, side // 2) if base.about.small_crops else (side, side)

    def draw() -> Views:
        return whole_views([torch.randn(4, 3, size, size) for size in sizes])

    assert_trains_alike([method.train() for method in pair], draw, 2)


@bases
def test_learned_maps_train_on_a_vit(base: type[Method]) -> None:
    backbone = build_backbone("timm/vit_tiny_patch16_224", "imagenet", 64, 32, several_sizes=True)
    method = make(base, 0.5, backbone=backbone).train()
    sizes = (32, 32, 16) if base.about.small_crops else (32, 32)
    step = method(whole_views([torch.randn(4, 3, size, size) for size in sizes]))
    step.loss.backward()
    assert step.loss.isfinite() and {"loss_aligned", "loss_global"} <= step.logs.keys()
    unused = [name for name, p in method.named_parameters() if p.grad is None]
    assert unused == []


@bases
def test_random_maps_train_too(base: type[Method]) -> None:
    method = make(base, 0.5, maps="random").train()
    step = method(batch(base, 4, torch.float32))
    step.loss.backward()
    assert step.loss.isfinite()


def test_random_maps_of_swav_are_the_same_for_crops_of_one_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, seen, real = make(SwAV, 0.5, maps="random").train(), list[Tensor](), Encoder.forward

    def spy(self: Encoder, images: Tensor, maps: Tensor | None = None) -> Any:
        out = real(self, images, maps)
        seen.append(out.maps)
        return out

    monkeypatch.setattr(Encoder, "forward", spy)
    method(batch(SwAV, 4, torch.float32))
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[2], seen[3])


@pytest.mark.parametrize("per_image", [1, 3])
def test_nt_xent_at_collapse_is_the_log_of_all_candidates(per_image: int) -> None:
    same = unit(torch.ones(5, per_image, 4, dtype=torch.float64))
    candidates = 1 + 2 * 4 * per_image
    assert nt_xent(same, same, 0.1).item() == pytest.approx(math.log(candidates), abs=1e-9)


def test_nt_xent_has_no_negatives_of_the_same_image() -> None:
    near = unit(torch.randn(4, dtype=torch.float64)).expand(3, 4)  # three embeddings, all alike
    rows = torch.stack([near, -near])  # two images, opposite
    expected = math.log(1 + 6 * math.exp(-2 / 0.5))
    assert nt_xent(rows, rows, 0.5).item() == pytest.approx(expected, abs=1e-12)


def test_the_cross_correlation_of_a_batch_with_itself_has_a_diagonal_of_1() -> None:
    rows = torch.randn(50, 6, dtype=torch.float64) * 3 + 1
    matrix = cross_correlation(rows, rows)
    assert torch.allclose(matrix.diagonal(), torch.ones(6, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(matrix, torch.corrcoef(rows.T), atol=1e-5)
    assert redundancy(torch.eye(6), 0.1).item() == 0
    assert redundancy(torch.ones(3, 3), 0.1).item() == pytest.approx(0.6)


def test_sinkhorn_gives_rows_and_columns_equal_sums() -> None:
    scores = torch.randn(12, 4, dtype=torch.float64).tanh()
    codes = sinkhorn(scores, 0.5, iterations=1000)
    assert torch.allclose(codes.sum(1), torch.ones(12, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(codes.sum(0), torch.full((4,), 3.0, dtype=torch.float64), atol=1e-9)
    assert sinkhorn(scores, 0.05, 3).sum(1).sub(1).abs().max() < 1e-12
    assert sinkhorn(torch.full((8, 2), -1.0), 0.05, 3).isfinite().all()  # no under- or overflow


@pytest.mark.parametrize("epsilon", [0.05, 0.01, 0.001])
def test_sinkhorn_is_finite_for_prototypes_far_from_all_rows(epsilon: float) -> None:
    """As in the first steps, where all embeddings are alike."""
    scores = torch.tensor([[0.9, 0.1, -0.6], [0.8, 0.2, -0.6], [0.9, 0.2, -0.5]])
    codes = sinkhorn(scores, epsilon, 3)
    assert codes.isfinite().all() and (codes.sum(1) - 1).abs().max() < 1e-5
    assert sinkhorn(torch.stack([scores[0], scores[0] - 1.5]), epsilon, 3).isfinite().all()
    if epsilon == 0.05:  # the same codes as by exponentials of the scores themselves
        plain = (scores.double() / epsilon).exp()
        for _ in range(3):
            plain = plain / plain.sum(0)
            plain = plain / plain.sum(1, keepdim=True)
        assert torch.allclose(codes.double(), plain, atol=1e-5)


def test_simsiam_stops_the_gradient_of_the_target() -> None:
    method = make(SimSiam).double().train()
    views = batch(SimSiam)
    one, two = (method.student(view).pooled for view in views)
    with torch.no_grad():  # with an identity as the predictor both directions have no gradient
        method.predict = torch.nn.Identity()
    stopped = method(views).loss
    assert stopped.item() == pytest.approx(
        -torch.nn.functional.cosine_similarity(one, two).mean().item()
    )


def test_groups_of_parameters() -> None:
    (predictor,) = make(SimSiam).groups()
    assert not predictor.anneal and len(predictor.parameters) == 6
    assert len(make(SimSiam, 0.5).groups()[0].parameters) == 12
    (small,) = make(BarlowTwins).groups()
    assert small.lr_scale == 0.024 and all(p.ndim == 1 for p in small.parameters)
    (frozen,) = make(SwAV, frozen_steps=7).groups()
    assert frozen.frozen_steps == 7 and frozen.parameters[0].shape == (5, 8)


@pytest.mark.parametrize("beta", [None, 0.5])
def test_swavs_queue_takes_part_from_its_epoch_on(beta: float | None) -> None:
    method = make(SwAV, beta, queue=6, queue_from_epoch=1).double().train()
    method.prototypes.normalise()
    views = batch(SwAV)

    def loss_of(method: Method) -> float:
        return float(copy.deepcopy(method)(views).loss.item())

    first, step = loss_of(method), method(views)
    method.after_step(0.0, step.keys)
    large = [method.student(view).pooled for view in views.crops[:2]]
    for queue, rows in zip(method.queues, large, strict=True):
        assert torch.allclose(queue.keys[:3], unit(rows), atol=1e-12)
    for number in range(3):
        method.before_epoch(Epoch(number, lambda network: torch.empty(0), print))
        assert method.uses_queue == (number == 2)  # half of it was empty in the second epoch
        if number < 2:
            assert loss_of(method) == pytest.approx(first, abs=1e-12)
        if number == 1:
            method.after_step(0.0, tuple(unit(torch.randn_like(rows)) for rows in step.keys))
            assert all(queue.keys.any(1).all() for queue in method.queues)
            assert not method.uses_queue  # until the next epoch
    assert method.uses_queue and loss_of(method) != pytest.approx(first, abs=1e-6)
    if beta is None:
        crops = [list(method.student(view).pooled) for view in views]
        earlier = tuple(list(queue.keys) for queue in method.queues)
        expected = swav_loss(crops, method.prototypes.vectors, 0.1, 0.05, earlier)
        assert loss_of(method) == pytest.approx(expected.item(), abs=1e-9)
    other = make(SwAV, beta, queue=6, queue_from_epoch=1).double().train()
    other.load_state_dict(method.state_dict())  # as a resumed run, within the epoch
    assert other.uses_queue and loss_of(other) == loss_of(method)


def test_swavs_prototypes_stay_unit_vectors() -> None:
    method = make(SwAV).train()
    step = method(batch(SwAV, dtype=torch.float32))
    step.loss.backward()
    with torch.no_grad():
        method.prototypes.vectors -= method.prototypes.vectors.grad
        assert (method.prototypes.vectors.norm(dim=1) - 1).abs().max() > 1e-4
    method.after_step(0.0, step.keys)
    assert torch.allclose(method.prototypes.vectors.norm(dim=1), torch.ones(5), atol=1e-6)


def test_aligned_embeddings_of_another_size_than_the_prototypes_are_refused() -> None:
    with pytest.raises(UserError, match=r"head.aligned_dim \(c\) 6 must be head.dim \(d\) 8"):
        make(SwAV, 0.5, aligned_dim=6)
    make(SwAV, 0.0, aligned_dim=6)


def test_a_small_crop_that_the_backbone_cannot_take_is_refused() -> None:
    given = {"method": "swav", "backbone": "timm/vit_tiny_patch16_224", "image_size": 32}
    with pytest.raises(UserError, match=r"of 9 px .*: change --views.small-size"):
        build_method(resolve({**given, "views": {"small_size": 9}}, {}), images=8)
    assert build_method(resolve({**given, "views": {"small_size": 16}}, {}), images=8)


@pytest.mark.parametrize("method", ["swav", "lewel_swav"])
def test_small_crops_follow_the_image_size_and_are_never_larger(method: str) -> None:
    for recipe in (f"imagenet_{method}_100ep", f"imagenet_{method}_200ep"):
        assert crop_sizes(configure("scenes", recipe, {})) == [224] * 2 + [96] * 6
        assert crop_sizes(configure("scenes", recipe, {"image_size": 64}))[2:] == [27] * 6
    config = configure("scenes", recipe, {"image_size": 64, "views": {"small_size": 96}})
    with pytest.raises(UserError, match=r"--views\.small-size 96 is larger than --image-size 64"):
        build_method(config, images=8)


def test_a_run_too_short_for_prototypes_or_queue_is_remarked() -> None:
    method = make(SwAV, queue=4, queue_from_epoch=3, frozen_steps=10)
    assert method.remarks(4, 11) == [] and make(SwAV, frozen_steps=0).remarks(1, 1) == []
    prototypes, queue = method.remarks(3, 10)
    assert "first 10 steps, and this run has 10: they are never trained" in prototypes
    assert "after 3 epochs, and this run has 3: it is never used" in queue
    assert "LEWEL_SwAV's prototypes" in make(SwAV, 0.5).remarks(1, 1)[0]
