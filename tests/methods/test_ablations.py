"""The ablations of tables 5, 6 and 7 as settings, against the paper's descriptions."""

import copy

import pytest
import torch

from lewel.methods.lewel_b import LewelB
from lewel.methods.lewel_m import LewelM
from lewel.methods.moco_v2 import MoCoV2
from lewel.nn.heads import Encoder
from tests.methods.making import make_method
from tests.methods.test_byol_lewel_b import views

SIZES = {"dim": 8, "hidden": 12, "aligned_dim": 6, "groups": 2}
QUEUE = {"queue": 10, "norm_groups": 1}
ROWS = {
    "table 5: global only": {"aligned_weight": 0.0},
    "table 5: aligned only": {"aligned_weight": 1.0, "maps": "separate"},
    "table 5: both": {"maps": "separate"},
    "table 5: both, coupled": {},
    "table 6: d 16": {"dim": 16},
    "table 6: extra projector": {"maps": "uniform"},
    "table 6: without its own p": {"aligned_projector": "shared", "aligned_dim": 8},
    "table 6: random maps": {"maps": "random"},
    "beta 1": {"aligned_weight": 1.0},
    "beta 1, random": {"aligned_weight": 1.0, "maps": "random"},
    "beta 1, shared p": {"aligned_weight": 1.0, "aligned_projector": "shared", "aligned_dim": 8},
    "beta 0.3": {"aligned_weight": 0.3},
    "c 3": {"aligned_dim": 3},
    "h 1": {"groups": 1},
    "h 8": {"groups": 8},
    "without head norm": {"norm": "none"},
    "temperature 0.1": {"map_temperature": 0.1},
    "temperature 0.1, separate maps": {"map_temperature": 0.1, "maps": "separate"},
    "learned temperature": {"map_temperature": "learned"},
    "learned temperature, uniform maps": {"map_temperature": "learned", "maps": "uniform"},
}


def make(kind: type, **extra: object) -> LewelB | LewelM:
    own = QUEUE if kind is LewelM else {}
    return make_method(kind, **{**SIZES, **own, **extra}).train()


@pytest.mark.parametrize("kind", [LewelB, LewelM])
@pytest.mark.parametrize("row", ROWS)
def test_every_row_trains_all_its_parameters(kind: type, row: str) -> None:
    method = make(kind, **ROWS[row])
    step = method(views(4, torch.float32))
    step.loss.backward()
    trained = {n: p for n, p in method.named_parameters() if p.requires_grad}
    unused = [name for name, parameter in trained.items() if parameter.grad is None]
    assert unused == []
    assert all(p.grad.isfinite().all() for p in trained.values())
    method.after_step(0.0, step.keys)


def test_each_choice_of_maps_builds_its_own_head() -> None:
    def parts(**extra: object) -> set[str]:
        return {name for name, _ in make(LewelM, **extra).student.head.named_children()}

    assert parts() == {"project", "project_aligned"}
    assert parts(maps="separate") == {"project", "project_aligned", "project_maps"}
    assert parts(maps="separate", aligned_weight=1.0) == {"project_aligned", "project_maps"}
    assert parts(maps="random", aligned_weight=1.0) == {"project_aligned"}
    assert parts(aligned_projector="shared", aligned_dim=8) == {"project"}


def test_with_separate_maps_g_projects_only_pooled_features() -> None:
    method = make(LewelM, maps="separate").double().eval()
    features = torch.randn(3, 4, 64, dtype=torch.float64)
    head = method.student.head
    out = head(features)
    assert torch.allclose(out.pooled, head.project(features.mean(1)))
    scores = torch.nn.functional.normalize(head.project_maps(features), dim=-1)
    assert torch.allclose(out.maps, scores.softmax(1).transpose(1, 2))


def test_without_its_own_p_g_projects_the_aggregated_features() -> None:
    method = make(LewelM, aligned_projector="shared", aligned_dim=8, groups=1).double().eval()
    features = torch.randn(3, 4, 64, dtype=torch.float64)
    out = method.student.head(features)
    assert torch.allclose(out.aligned, method.student.head.project(out.maps @ features), atol=1e-10)


def test_uniform_maps_make_p_a_second_projector_of_the_pooled_features() -> None:
    head = make(LewelM, maps="uniform").double().eval().student.head
    features = torch.randn(3, 4, 64, dtype=torch.float64)
    out = head(features)
    assert out.aligned.shape == (3, 1, 6)
    assert torch.allclose(out.aligned[:, 0], head.project_aligned(features.mean(1)), atol=1e-10)


@pytest.mark.parametrize("statistics", ["ema", "eman"])
@pytest.mark.parametrize("kind", [LewelB, LewelM])
def test_random_maps_are_new_in_each_step_and_the_same_for_both_views(
    kind: type, statistics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make(kind, maps="random", statistics=statistics)
    if kind is LewelM:
        method.teacher.shuffle = True
    seen: list[torch.Tensor] = []
    real = Encoder.forward

    def spy(self: Encoder, images: torch.Tensor, maps: torch.Tensor | None = None) -> object:
        out = real(self, images, maps)
        seen.append(out.maps)
        return out

    monkeypatch.setattr(Encoder, "forward", spy)
    draws = []
    for _ in range(2):
        seen.clear()
        method(views(4, torch.float32))
        first = seen[-1]  # the student's
        draws.append(first)
        assert len(seen) >= 2
        for maps in seen:
            for part in maps.split(4):  # the teacher may take two views at once, or another order
                same = part.flatten(1).sum(1).sort().values
                assert torch.allclose(part.sum(-1), torch.ones(4, 8))
                matches = (part[:, None] == first[None]).flatten(2).all(2)
                assert matches.any(1).all(), same
    assert not torch.equal(*draws)


def test_table_5s_first_row_is_moco_v2() -> None:
    torch.manual_seed(1)
    lewel = make(LewelM, aligned_weight=0.0, maps="separate")
    torch.manual_seed(1)
    moco = make_method(MoCoV2, dim=8, hidden=12, **QUEUE).train()
    assert lewel.state_dict().keys() == moco.state_dict().keys()
    moco.load_state_dict(copy.deepcopy(lewel.state_dict()))
    images = views(4, torch.float32)
    assert torch.equal(lewel(images).loss, moco(images).loss)


def test_a_lower_temperature_makes_maps_more_peaked() -> None:
    images = views(2, torch.float32)[0]
    flat, peaked = (make(LewelB, map_temperature=t).eval().student for t in (1.0, 0.1))
    peaked.load_state_dict(flat.state_dict())
    one, two = flat(images).maps, peaked(images).maps
    assert torch.allclose(two.sum(-1), torch.ones(()))
    assert torch.special.entr(two).sum(-1).mean() < torch.special.entr(one).sum(-1).mean()
    assert torch.allclose(two, (one.log() / 0.1).softmax(-1), atol=1e-5)


def test_a_learned_temperature_begins_at_the_papers_and_is_trained() -> None:
    torch.manual_seed(1)
    plain = make(LewelB)
    torch.manual_seed(1)
    learned = make(LewelB, map_temperature="learned")
    images = views(4, torch.float32)
    step = learned(images)
    assert step.loss.item() == plain(images).loss.item()
    step.loss.backward()
    assert learned.student.head.log_temperature.grad.abs() > 0
    assert not learned.teacher.network.head.log_temperature.requires_grad


@pytest.mark.parametrize("kind", [MoCoV2, LewelM])
def test_in_batch_negatives_are_the_keys_of_all_other_images(kind: type) -> None:
    method = make_method(kind, dim=8, hidden=12, negatives="batch", norm_groups=1).double().train()
    query, key = (torch.nn.functional.normalize(torch.randn(5, 8).double(), dim=1) for _ in "qk")
    positive, negative = method.queue.similarities(query, key)
    assert torch.allclose(positive, (query * key).sum(1))
    for one in range(5):
        others = [i for i in range(5) if i != one]
        assert torch.allclose(negative[one, others], query[one] @ key[others].T)
        assert negative[one, one] == -torch.inf
    step = method(views(4))
    step.loss.backward()
    method.after_step(0.5, step.keys)
    assert not [name for name in method.state_dict() if name.startswith("queue")]
