"""ReSim against a slow float64 reference, and its properties."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lewel.errors import UserError
from lewel.methods.resim import ReSim
from lewel.nn.backbone import Backbone
from lewel.nn.views import Views, whole_views
from lewel.ops.windows import WINDOWS
from tests.methods.comparing import assert_equals_reference
from tests.methods.making import cut_views, make_method
from tests.methods.reference import mlp
from tests.methods.test_byol_lewel_b import perturbed
from tests.methods.test_moco_lewel_m import slow_info_nce
from tests.ops.test_windows import slow_region

SIZES = {"dim": 8, "hidden": 12, "queue": 10, "norm_groups": 1, "region_dim": 6}


def resim(**extra: object) -> ReSim:
    return make_method(ReSim, **{**SIZES, **extra})


def slow_maps(state: dict[str, Tensor], prefix: str, *stages: Tensor) -> list[Tensor]:
    """The maps that regions are cut from; an FPN's lower maps add the upper ones, enlarged."""
    c3, c4, c5 = stages

    def layer(name: str, features: Tensor) -> Tensor:
        weight, bias = state[f"{prefix}{name}.weight"], state[f"{prefix}{name}.bias"]
        return F.conv2d(features, weight, bias, padding=weight.shape[-1] // 2)

    if f"{prefix}smooth.weight" in state:
        return [layer("smooth", c4)]
    top = layer("lateral5", c5)
    upper = layer("lateral4", c4) + top.repeat_interleave(2, 2).repeat_interleave(2, 3)
    enlarged = upper.repeat_interleave(2, 2).repeat_interleave(2, 3)
    return [layer("smooth4", upper), layer("smooth3", layer("lateral3", c3) + enlarged)]


def slow_regions(
    queries: Tensor, keys: Tensor, boxes: tuple[Tensor, Tensor], flips: Tensor, level: int
) -> Tensor:
    """The mean over windows in both views of InfoNCE; `flips` (B,) are those of both views."""
    window, stride = WINDOWS[level]
    side = keys.shape[-1]
    many = max(1, side - 2)
    others = [
        keys[b, :, y : y + 3, x : x + 3].mean((1, 2))
        for b in range(len(keys))
        for y in range(many)
        for x in range(many)
    ]
    losses = []
    for b in range(len(queries)):
        (top, left, height, width), (top2, left2, height2, width2) = (
            box[b].double().tolist() for box in boxes
        )
        for row in range(6 if level == 0 else 9):
            for column in range(6 if level == 0 else 9):
                x1, y1 = column * stride, row * stride
                x2, y2 = x1 + window, y1 + window
                ends = [1 - x2, 1 - x1] if flips[b] else [x1, x2]
                there = [(left + x * width - left2) / width2 for x in ends]
                there = [1 - there[1], 1 - there[0]] if flips[b] else there
                down = [(top + y * height - top2) / height2 for y in (y1, y2)]
                if min(there + down) < 0 or max(there + down) > 1:
                    continue
                query = slow_region(queries[b], [x1, y1, x2, y2])
                key = slow_region(keys[b], [there[0], down[0], there[1], down[1]])
                losses.append(slow_info_nce(query, key, others))
    assert losses
    return sum(losses) / len(losses)


def slow_loss(twin: ReSim, views: Views, view: int, other: int) -> Tensor:
    state = dict(twin.named_parameters()) | dict(twin.named_buffers())
    c3, c4, c5 = twin.student.backbone.stages(views[view])
    alike = [
        crop.flip(2) if a != b else crop
        for crop, a, b in zip(views[other], views.flips[view], views.flips[other], strict=True)
    ]
    with torch.no_grad():
        k3, k4, k5 = twin.teacher.network.backbone.stages(torch.stack(alike))
        keys = mlp(list(k5.mean((2, 3))), state, "teacher.network.head.project", True)
        key_maps = slow_maps(state, "teacher.network.head.", k3, k4, k5)
    pooled = mlp(list(c5.mean((2, 3))), state, "student.head.project", True)
    queue = list(state["queue.keys"])
    losses = [slow_info_nce(q, k, queue) for q, k in zip(pooled, keys, strict=True)]
    total = sum(losses) / len(losses)
    boxes = views.boxes[view], views.boxes[other]
    for level, queries in enumerate(slow_maps(state, "student.head.", c3, c4, c5)):
        total = total + slow_regions(queries, key_maps[level], boxes, views.flips[view], level)
    return total


@pytest.mark.parametrize(("levels", "symmetric"), [("c4", False), ("c4", True), ("fpn", False)])
def test_loss_and_gradient_equal_the_slow_reference(levels: str, symmetric: bool) -> None:
    method = perturbed(resim(levels=levels, symmetric=symmetric)).train()
    twin, views = copy.deepcopy(method), cut_views(2)
    step = method(views)
    step.loss.backward()
    slow = slow_loss(twin, views, 0, 1)
    slow = slow + slow_loss(twin, views, 1, 0) if symmetric else slow
    slow.backward()
    assert_equals_reference(step, method, slow, twin)


def test_at_collapse_the_region_loss_is_log_1_plus_negatives() -> None:
    method = resim().train()
    for head in (method.student.head, method.teacher.network.head):
        nn.init.zeros_(head.smooth.weight)
        nn.init.ones_(head.smooth.bias)
    step = method(cut_views(4, torch.float32))
    assert step.logs["loss_c4"].item() == pytest.approx(math.log(1 + 4 * 2 * 2), abs=1e-5)


def test_views_that_do_not_overlap_have_no_region_loss() -> None:
    method, views = resim().train(), cut_views(3, torch.float32)
    views.boxes = [torch.tensor([[0.0, left, 0.3, 0.3]]).expand(3, -1) for left in (0.0, 0.7)]
    step = method(views)
    step.loss.backward()
    assert step.logs["loss_c4"] == 0
    assert (method.student.head.smooth.weight.grad == 0).all()


def test_one_valid_window_on_one_of_two_ranks_has_its_whole_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, views = resim().train(), cut_views(3, torch.float32)
    views.boxes = [torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(3, -1)] * 2
    alone = method(views).logs["loss_c4"]
    count = alone.new_tensor(float(3 * 36))
    monkeypatch.setattr("lewel.methods.resim.ranks", lambda: 2)
    for windows in (2 * count, count.new_tensor(1.0)):  # of both ranks
        monkeypatch.setattr("lewel.methods.resim.sum_over_ranks", lambda _, n=windows: n)
        ours = method(views).logs["loss_c4"]
        assert ours.item() == pytest.approx((alone * count * 2 / windows).item(), rel=1e-3)


def test_a_flip_of_either_view_leaves_equal_views_equal() -> None:
    method = resim().double().train()
    (one, _), flipped = cut_views(2), torch.ones(2, dtype=torch.bool)
    straight = method(whole_views([one, one]))
    views = whole_views([one, one.flip(3)])
    views.flips[1] = flipped
    assert torch.allclose(method(views).loss, straight.loss, atol=1e-12)


def test_other_backbones_are_refused() -> None:
    class Plain(Backbone):
        channels = 8

    with pytest.raises(UserError, match="choose a --backbone such as resnet50"):
        ReSim(Plain(nn.Identity()))


def test_the_backbone_is_called_so_that_hooks_and_compilers_see_it() -> None:
    method = resim(norm_groups=2).double()
    calls = []
    for encoder in (method.student, method.teacher.network):
        encoder.backbone.register_forward_hook(lambda *_: calls.append(1))
    method(cut_views(4))
    assert len(calls) == 2


def test_stages_have_the_order_of_the_images_although_groups_alternate_inside() -> None:
    grouped, images = resim(norm_groups=2).double().student.backbone, torch.rand(4, 3, 16, 16)
    plain = resim().double().student.backbone
    plain.load_state_dict(grouped.state_dict())
    halves = [plain.stages(half) for half in images.double().chunk(2)]
    for found, *expected in zip(grouped.stages(images.double()), *halves, strict=True):
        assert torch.allclose(found, torch.cat(expected), atol=1e-12)
