"""The teacher: moving averages of the student, without gradients."""

import pytest
import torch
from torch import nn

from lewel.nn.heads import AlignedHeadSpec, CoupledHead, Encoder, GlobalHead, HeadSpec
from lewel.nn.norm import normalise_in_groups, synchronise
from lewel.nn.teacher import Teacher, TeacherSpec
from tests.conftest import randomise_statistics, small_backbone


def encoder() -> Encoder:
    return Encoder(small_backbone(), GlobalHead(64, HeadSpec(8, 12)))


def test_an_eman_teacher_stays_in_eval_after_train() -> None:
    teacher = Teacher(encoder(), TeacherSpec("eman"))
    outer = nn.ModuleDict({"teacher": teacher}).train()
    assert outer.training
    assert not any(module.training for module in teacher.modules())


def test_an_ema_teacher_normalises_with_its_own_batches() -> None:
    teacher = Teacher(encoder(), TeacherSpec("ema")).train()
    images = torch.randn(4, 3, 16, 16)
    before = teacher.network.backbone.net.bn1.running_mean.clone()
    teacher(images)
    assert not torch.equal(before, teacher.network.backbone.net.bn1.running_mean)


def test_eman_starts_with_initial_statistics() -> None:
    buffers = dict(Teacher(encoder(), TeacherSpec("eman")).network.named_buffers())
    assert all((b == 0).all() for n, b in buffers.items() if n.endswith("running_mean"))
    assert all((b == 1).all() for n, b in buffers.items() if n.endswith("running_var"))


@pytest.mark.parametrize("statistics", ["ema", "eman"])
def test_the_update_is_the_moving_average(statistics: str) -> None:
    student = encoder().double()
    teacher = Teacher(student, TeacherSpec(statistics))
    randomise_statistics(student)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn_like(parameter))
    student.backbone.net.bn1.num_batches_tracked += 5
    before = {name: value.clone() for name, value in teacher.network.state_dict().items()}
    teacher.update(student, 0.9)
    parameters = dict(student.named_parameters())
    for name, value in teacher.network.state_dict().items():
        followed = name in parameters or (statistics == "eman" and value.is_floating_point())
        target = student.state_dict()[name]
        if followed:
            assert torch.allclose(value, 0.9 * before[name] + 0.1 * target, atol=1e-12), name
        elif not value.is_floating_point():
            assert torch.equal(value, target if statistics == "eman" else before[name]), name
        else:
            assert torch.equal(value, before[name]), name


def test_one_pass_over_both_views_equals_two() -> None:
    head = CoupledHead(64, AlignedHeadSpec(8, 12, "batch", aligned_dim=6, groups=2))
    teacher = Teacher(Encoder(small_backbone(), head), TeacherSpec("eman")).double()
    randomise_statistics(teacher)
    views = [torch.randn(3, 3, 16, 16, dtype=torch.float64) for _ in range(2)]
    for together, view in zip(teacher(*views), views, strict=True):
        apart = teacher.network(view)
        assert torch.allclose(together.pooled, apart.pooled, atol=1e-12)
        assert torch.allclose(together.aligned, apart.aligned, atol=1e-12)
        assert together.features == apart.features == ()


def test_momentum_one_never_moves_and_zero_copies() -> None:
    student = encoder()
    teacher = Teacher(student, TeacherSpec("eman"))
    with torch.no_grad():
        student.head.project.first.weight.add_(1)
    before = teacher.network.head.project.first.weight.clone()
    teacher.update(student, 1.0)
    assert torch.equal(teacher.network.head.project.first.weight, before)
    teacher.update(student, 0.0)
    weights = teacher.network.head.project.first.weight
    assert torch.equal(weights, student.head.project.first.weight)


def test_shuffled_embeddings_come_back_in_order_and_without_maps() -> None:
    student = Encoder(small_backbone(), CoupledHead(64, AlignedHeadSpec(8, 12, groups=2)))
    teacher = Teacher(student, TeacherSpec("ema"), shuffle=True).train()
    plain = Teacher(student, TeacherSpec("ema")).train()
    images = torch.randn(4, 3, 16, 16)
    (shuffled,), (expected,) = teacher(images), plain(images)
    assert torch.allclose(shuffled.pooled, expected.pooled, atol=1e-4)
    assert torch.allclose(shuffled.aligned, expected.aligned, atol=1e-4)
    assert shuffled.maps is None and expected.maps is not None


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_the_exchange_of_ranks_keeps_the_layout(
    monkeypatch: pytest.MonkeyPatch, layout: torch.memory_format
) -> None:
    """Collectives give contiguous tensors; norms of a channels_last network would copy them."""
    teacher = Teacher(encoder(), TeacherSpec("ema"), shuffle=True).train()
    seen: list[torch.Tensor] = []
    teacher.network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    monkeypatch.setattr("lewel.nn.teacher.gather", lambda rows: rows.contiguous())
    teacher(torch.randn(4, 3, 16, 16).to(memory_format=layout))
    assert seen[0].is_contiguous(memory_format=layout)


@pytest.mark.parametrize(("groups", "ranks", "shuffled"), [(1, 1, 0), (2, 1, 1), (1, 2, 1)])
def test_one_group_in_all_needs_no_shuffle(
    monkeypatch: pytest.MonkeyPatch, groups: int, ranks: int, shuffled: bool
) -> None:
    monkeypatch.setattr("lewel.nn.norm.ranks", lambda: ranks)
    assert normalise_in_groups(encoder(), groups) == shuffled


def test_synchronised_norms_need_no_shuffle(monkeypatch: pytest.MonkeyPatch) -> None:
    method = nn.ModuleDict({"teacher": Teacher(encoder(), TeacherSpec("ema"), shuffle=True)})
    synchronise(method)
    teacher = method["teacher"].train()
    monkeypatch.setattr("lewel.nn.teacher.gather", lambda rows: pytest.fail("gathered"))
    monkeypatch.setattr(nn.SyncBatchNorm, "forward", lambda norm, rows: rows)  # for GPUs only
    teacher(torch.randn(4, 3, 16, 16))
    assert any(isinstance(module, nn.SyncBatchNorm) for module in teacher.modules())
