"""LEWEL_M and MoCo v2 against slow float64 references, and their properties."""

import copy
import math

import pytest
import torch

from lewel.methods.lewel_m import LewelM
from lewel.methods.moco_v2 import MoCoV2
from lewel.nn.heads import Embeddings
from lewel.nn.norm import normalise_in_groups
from tests.methods.comparing import assert_equals_reference, assert_trains_alike
from tests.methods.making import make_method
from tests.methods.reference import embed
from tests.methods.test_byol_lewel_b import perturbed, views

SIZES = {"dim": 8, "hidden": 12, "queue": 10, "norm_groups": 1}
ALIGNED = {"aligned_dim": 6, "groups": 2}


def lewel_m(beta: float, **extra: object) -> LewelM:
    return make_method(LewelM, **{**SIZES, **ALIGNED, "aligned_weight": beta, **extra})


def moco_v2(**extra: object) -> MoCoV2:
    return make_method(MoCoV2, **{**SIZES, **extra})


def slow_info_nce(query: torch.Tensor, key: torch.Tensor, others: list[torch.Tensor]) -> object:
    def sim(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return sum(x * y for x, y in zip(a, b, strict=True)) / (a.norm() * b.norm())

    positive = torch.exp(sim(query, key) / 0.2)
    return -torch.log(positive / (positive + sum(torch.exp(sim(query, o) / 0.2) for o in others)))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("beta", [None, 0.5, 1.0])
def test_loss_and_gradient_equal_the_slow_reference(beta: float | None, symmetric: bool) -> None:
    made = moco_v2 if beta is None else lambda **extra: lewel_m(beta, **extra)
    method = perturbed(made(symmetric=symmetric)).train()
    weighs_global = beta != 1.0
    twin, images = copy.deepcopy(method), views(4)
    step = method(images)
    step.loss.backward()

    groups, weight = (None, 0.0) if beta is None else (2, beta)
    total = torch.zeros((), dtype=torch.float64)
    for view, other in ((0, 1), (1, 0))[: 1 + symmetric]:
        state = dict(twin.named_parameters()) | dict(twin.named_buffers())
        features = twin.student.backbone(images[view])
        with torch.no_grad():
            target_features = twin.teacher.network.backbone(images[other])
        z, aligned = embed(features, state, "student.head.", groups, True)
        with torch.no_grad():
            key, key_aligned = embed(target_features, state, "teacher.network.head.", groups, True)
        if weighs_global:
            queue = list(twin.queue.keys)
            losses = [slow_info_nce(q, k, queue) for q, k in zip(z, key, strict=True)]
            total = total + (1 - weight) * sum(losses) / len(losses)
        if weight > 0:
            losses = []
            for i, image in enumerate(aligned):
                others = [o for j, rows in enumerate(key_aligned) if j != i for o in rows]
                for k, query in enumerate(image):
                    losses.append(slow_info_nce(query, key_aligned[i][k], others))
            total = total + weight * sum(losses) / len(losses)
    total.backward()

    assert_equals_reference(step, method, total, twin)


def test_lewel_m_with_beta_0_is_moco_v2_bit_for_bit() -> None:
    torch.manual_seed(3)
    ours = lewel_m(0.0, norm_groups=2)
    torch.manual_seed(3)
    moco = moco_v2(norm_groups=2)
    assert ours.state_dict().keys() == moco.state_dict().keys()
    assert_trains_alike([ours, moco], lambda: views(4, torch.float32), 3, seeded=True)


def test_at_collapse_the_loss_is_log_1_plus_k() -> None:
    method = moco_v2()
    for head in (method.student.head, method.teacher.network.head):
        torch.nn.init.zeros_(head.project.last.weight)
        torch.nn.init.ones_(head.project.last.bias)
    method.queue.keys.fill_(1 / math.sqrt(8))
    step = method.train()(views(4, torch.float32))
    assert step.loss.item() == pytest.approx(math.log(1 + 10), abs=1e-5)
    assert step.logs["embedding_std"].item() == pytest.approx(0.0, abs=1e-3)


def test_keys_are_enqueued_after_the_loss_in_a_ring_buffer() -> None:
    method = moco_v2().train()
    before = method.queue.keys.clone()
    for number in range(3):
        step = method(views(4, torch.float32))
        similar = (step.keys @ method.queue.keys.T).max()
        assert similar < 1 - 1e-4  # the current positives are not among the negatives
        method.after_step(0.0, step.keys)
        places = [(4 * number + i) % 10 for i in range(4)]
        assert torch.equal(method.queue.keys[places], step.keys)
        assert torch.allclose(method.queue.keys.norm(dim=1), torch.ones(10), atol=1e-5)
    assert not torch.equal(before[4:], method.queue.keys[4:])
    method.queue.enqueue(torch.nn.functional.normalize(torch.randn(25, 8), dim=1))
    assert method.queue.keys.shape == (10, 8)


def test_no_negative_comes_from_the_same_image() -> None:
    method = lewel_m(1.0)
    query, key = torch.randn(2, 4, 6), torch.randn(2, 4, 6)
    query[0, 1:] = query[1] = 0  # only map 0 of image 0 is a query, the rest has similarity 0

    def loss(other: torch.Tensor) -> float:
        student, teacher = Embeddings(query[:, 0], query), Embeddings(other[:, 0], other)
        return float(method.aligned_loss(student, teacher))

    def matters(image: int, k: int) -> bool:
        changed = key.clone()
        changed[image, k] = torch.randn(6)
        return loss(changed) != loss(key)

    assert matters(0, 0)  # its positive
    assert not any(matters(0, k) for k in (1, 2, 3))  # other maps of its image are no negatives
    assert all(matters(1, k) for k in range(4))  # all maps of the other image are


def test_nothing_unused_is_built() -> None:
    for method in (moco_v2(), lewel_m(0.5), lewel_m(1.0)):
        method.train()(views(4, torch.float32)).loss.backward()
        trained = [(n, p) for n, p in method.named_parameters() if p.requires_grad]
        assert [name for name, parameter in trained if parameter.grad is None] == []
        assert all(p.grad is None for p in method.teacher.parameters())
    assert not hasattr(lewel_m(1.0), "queue")


def test_shuffling_gives_the_images_back_in_their_order() -> None:
    method = moco_v2(norm_groups=2).double().eval()
    method.teacher.network.eval()
    images = views(6)[0]
    straight = method.teacher.network(images).pooled
    assert torch.allclose(method.teacher._shuffled(images, None).pooled, straight, atol=1e-12)


def test_grouped_batch_norm_is_batch_norm_of_each_group() -> None:
    norm, grouped = (torch.nn.BatchNorm2d(3).double() for _ in range(2))
    normalise_in_groups(grouped, 2)
    images = torch.randn(6, 3, 4, 4, dtype=torch.float64)
    means = []
    parts = []
    for part in images.chunk(2):
        own = copy.deepcopy(norm)
        parts.append(own(part))
        means.append(own.running_mean)
    assert torch.allclose(grouped(images), torch.cat(parts), atol=1e-12)
    assert torch.allclose(grouped.running_mean, sum(means) / 2, atol=1e-12)
    assert grouped.num_batches_tracked == 1
    assert list(grouped.state_dict()) == list(norm.state_dict())
    grouped.eval()
    assert torch.isfinite(grouped(images[:1])).all()
