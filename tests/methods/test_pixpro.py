"""PixPro against a slow float64 reference, and its properties."""

import copy

import pytest
import torch
from torch import Tensor

from lewel.errors import UserError
from lewel.methods.pixpro import PixPro
from lewel.nn.views import Views, whole_views
from tests.methods.comparing import assert_equals_reference
from tests.methods.making import cut_views, make_method
from tests.methods.reference import mlp, mse
from tests.methods.test_byol_lewel_b import perturbed
from tests.methods.test_densecl import cosine
from tests.ops.test_correspondence import slow_pairs

SIZES = {"dim": 8, "hidden": 12}


def pixpro(**extra: object) -> PixPro:
    return make_method(PixPro, **{**SIZES, **extra})


def slow_locations(features: Tensor, state: dict[str, Tensor], prefix: str) -> list[list[Tensor]]:
    """The embeddings of the locations of each image; batch norm is over all of them."""
    batch, locations, _ = features.shape
    rows = mlp(list(features.flatten(0, 1)), state, f"{prefix}project_locations", True)
    return [rows[b * locations : (b + 1) * locations] for b in range(batch)]


def slow_propagated(rows: list[Tensor], state: dict[str, Tensor], gamma: float) -> list[Tensor]:
    values = [
        state["propagate.transform.weight"] @ row + state["propagate.transform.bias"]
        for row in rows
    ]
    values = [value / value.norm() for value in values]
    return [
        sum(cosine(x, y).clamp(min=0) ** gamma * v for y, v in zip(rows, values, strict=True))
        for x in rows
    ]


def slow_loss(twin: PixPro, views: Views, weight: float) -> Tensor:
    state = dict(twin.named_parameters()) | dict(twin.named_buffers())
    own = [twin.student.backbone(view) for view in views]
    with torch.no_grad():
        other = [twin.teacher.network.backbone(view) for view in views]
        targets = [slow_locations(one, state, "teacher.network.head.") for one in other]
    total = torch.zeros((), dtype=torch.float64)
    for view in range(2):
        embeddings = slow_locations(own[view], state, "student.head.")
        for b, rows in enumerate(embeddings):
            boxes = [views.boxes[v][b].double().tolist() for v in (view, 1 - view)]
            flips = [bool(views.flips[v][b]) for v in (view, 1 - view)]
            pairs = slow_pairs(boxes, flips, 2, twin.distance)
            predicted = slow_propagated(rows, state, 2.0)
            found = [
                cosine(predicted[i], targets[1 - view][b][j])
                for i in range(4)
                for j in range(4)
                if pairs[i][j]
            ]
            total = total - 2 * sum(found) / max(1, len(found)) / len(embeddings)
        if weight:
            pooled = [image.mean(0) for image in own[view]]
            z = mlp(pooled, state, "student.head.project", True)
            with torch.no_grad():
                pooled = [image.mean(0) for image in other[1 - view]]
                goal = mlp(pooled, state, "teacher.network.head.project", True)
            losses = [mse(p, t) for p, t in zip(mlp(z, state, "predict", True), goal, strict=True)]
            total = total + weight * sum(losses) / len(losses)
    return total


@pytest.mark.parametrize(("weight", "distance"), [(0.0, 0.7), (0.0, 1.5), (0.5, 0.7)])
def test_loss_and_gradient_equal_the_slow_reference(weight: float, distance: float) -> None:
    method = perturbed(pixpro(instance_weight=weight, distance=distance)).train()
    twin, views = copy.deepcopy(method), cut_views()
    step = method(views)
    step.loss.backward()
    assert step.logs["pairs"] > 0
    slow = slow_loss(twin, views, weight)
    slow.backward()
    assert_equals_reference(step, method, slow, twin)


def test_identical_views_of_equal_networks_agree_more_than_different_ones() -> None:
    method = pixpro().double().train()
    one, two = cut_views()
    same = method(whole_views([one, one]))
    assert same.logs["pairs"] == 4  # each of 2 x 2 locations with itself
    assert same.loss < method(whole_views([one, two])).loss


def test_views_that_do_not_overlap_give_no_loss_and_no_gradient() -> None:
    method, views = pixpro().train(), cut_views(3, torch.float32)
    views.boxes = [torch.tensor([[0.0, left, 0.3, 0.3]]).expand(3, -1) for left in (0.0, 0.7)]
    step = method(views)
    step.loss.backward()
    assert step.loss == 0
    assert step.logs["pairs"] == 0
    assert all((p.grad == 0).all() for p in method.parameters() if p.requires_grad)


def test_propagation_of_orthogonal_locations_is_the_transform_alone() -> None:
    method = pixpro().double()
    locations = 3 * torch.eye(8, dtype=torch.float64)[None, :4]
    values = method.propagate.transform(locations)
    expected = torch.nn.functional.normalize(values, dim=-1)
    assert torch.allclose(method.propagate(locations), expected, atol=1e-12)


@pytest.mark.parametrize(
    "wrong", [{"distance": 0.0}, {"sharpness": float("inf")}, {"instance_weight": -1}]
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"--options.{next(iter(wrong))} is"):
        pixpro(**wrong)
