"""DenseCL against a slow float64 reference, and its properties."""

import copy
import math

import pytest
import torch
from torch import Tensor

from lewel.errors import UserError
from lewel.methods.densecl import DenseCL
from tests.methods.comparing import assert_equals_reference
from tests.methods.making import cut_views, make_method
from tests.methods.reference import mlp
from tests.methods.test_byol_lewel_b import perturbed
from tests.methods.test_moco_lewel_m import slow_info_nce

SIZES = {"dim": 8, "hidden": 12, "queue": 10, "norm_groups": 1}


def densecl(**extra: object) -> DenseCL:
    return make_method(DenseCL, **{**SIZES, **extra})


def cosine(one: Tensor, two: Tensor) -> Tensor:
    return sum(a * b for a, b in zip(one, two, strict=True)) / (one.norm() * two.norm())


def slow_direction(state: dict[str, Tensor], own: Tensor, other: Tensor, weight: float) -> Tensor:
    """Features (B, N, C) of the student's and of the teacher's view -> L, location by location."""
    batch, locations, _ = own.shape
    student, teacher = "student.head.", "teacher.network.head."
    losses, dense = [], []
    pooled = mlp([image.mean(0) for image in own], state, f"{student}project", True)
    keys = mlp([image.mean(0) for image in other], state, f"{teacher}project", True)
    for query, key in zip(pooled, keys, strict=True):
        losses.append(slow_info_nce(query, key.detach(), list(state["queue.keys"])))
    for b in range(batch):
        queries = mlp(list(own[b]), state, f"{student}project_locations", True)
        values = mlp(list(other[b]), state, f"{teacher}project_locations", True)
        for i in range(locations):
            alike = [cosine(own[b, i], other[b, j]).item() for j in range(locations)]
            key = values[alike.index(max(alike))].detach()
            dense.append(slow_info_nce(queries[i], key, list(state["dense_queue.keys"])))
    return (1 - weight) * sum(losses) / len(losses) + weight * sum(dense) / len(dense)


@pytest.mark.parametrize(("symmetric", "weight"), [(False, 0.5), (True, 0.3)])
def test_loss_and_gradient_equal_the_slow_reference(symmetric: bool, weight: float) -> None:
    method = perturbed(densecl(symmetric=symmetric, dense_weight=weight)).train()
    twin, views = copy.deepcopy(method), cut_views(4)
    step = method(views)
    step.loss.backward()
    state = dict(twin.named_parameters()) | dict(twin.named_buffers())
    total = torch.zeros((), dtype=torch.float64)
    for view, other in ((0, 1), (1, 0))[: 1 + symmetric]:
        own = twin.student.backbone(views[view])
        with torch.no_grad():
            features = twin.teacher.network.backbone(views[other])
        total = total + slow_direction(state, own, features, weight)
    total.backward()
    assert_equals_reference(step, method, total, twin)


def test_at_collapse_both_losses_are_log_1_plus_k() -> None:
    method = densecl().train()
    for head in (method.student.head, method.teacher.network.head):
        for part in (head.project, head.project_locations):
            torch.nn.init.zeros_(part.last.weight)
            torch.nn.init.ones_(part.last.bias)
    for queue in (method.queue, method.dense_queue):
        queue.keys.fill_(1 / math.sqrt(8))
    step = method(cut_views(4, torch.float32))
    for name in ("loss_global", "loss_dense"):
        assert step.logs[name].item() == pytest.approx(math.log(1 + 10), abs=1e-5)


def test_the_queues_get_global_keys_and_means_of_dense_keys() -> None:
    method, views = densecl().train(), cut_views(4, torch.float32)
    teacher = copy.deepcopy(method.teacher)
    step = method(views)
    method.after_step(0.0, step.keys)
    (target,) = teacher(views[1])
    unit = torch.nn.functional.normalize
    assert torch.allclose(method.queue.keys[:4], unit(target.pooled, dim=1), atol=1e-6)
    dense = unit(target.aligned.mean(1), dim=1)
    assert torch.allclose(method.dense_queue.keys[:4], dense, atol=1e-6)


def test_shuffling_keeps_features_and_embeddings_of_an_image_together() -> None:
    method = densecl(norm_groups=2).double().eval()
    method.teacher.network.eval()
    images = cut_views(6)[0]
    straight = method.teacher.network(images)
    shuffled = method.teacher._shuffled(images, None)
    assert torch.allclose(shuffled.aligned, straight.aligned, atol=1e-12)
    assert torch.allclose(shuffled.features[0], straight.features[0], atol=1e-12)


@pytest.mark.parametrize("weight", [0.0, 1.0, -1.0])
def test_a_weight_that_leaves_one_loss_out_is_refused(weight: float) -> None:
    with pytest.raises(UserError, match="dense_weight is"):
        densecl(dense_weight=weight)
