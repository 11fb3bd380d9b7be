"""InstDisc against a slow float64 reference, and its bank."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from lewel.errors import UserError
from lewel.methods.inst_disc import InstDisc
from lewel.nn.views import Views
from tests.methods.making import cut_views, make_method
from tests.methods.test_byol_lewel_b import perturbed
from tests.methods.test_densecl import cosine

IMAGES = 12


def inst_disc(**extra: object) -> InstDisc:
    return make_method(InstDisc, **{"dim": 8, "images": IMAGES, **extra})


def one_view(batch: int = 4, dtype: torch.dtype = torch.float64) -> Views:
    views = cut_views(batch, dtype, total=IMAGES)
    return Views(views.crops[:1], views.boxes[:1], views.flips[:1], views.indices, IMAGES)


@pytest.mark.parametrize("negatives", [IMAGES, 5])
def test_loss_and_gradient_equal_the_slow_reference(negatives: int) -> None:
    method = perturbed(inst_disc(negatives=negatives)).train()
    twin, views = copy.deepcopy(method), one_view()
    torch.manual_seed(4)
    step = method(views)
    step.loss.backward()
    torch.manual_seed(4)
    drawn = torch.randint(IMAGES, (5,)).tolist() if negatives < IMAGES else range(IMAGES)
    features = twin.student.backbone(views[0]).mean(1)
    project, bank = twin.student.head.project, twin.bank.entries
    losses = []
    for feature, index in zip(features, views.indices.tolist(), strict=True):
        z = project.weight @ feature + project.bias
        own = torch.exp(cosine(z, bank[index]) / 0.07)
        others = [torch.exp(cosine(z, bank[at]) / 0.07) for at in drawn if at != index]
        losses.append(-torch.log(own / (own + sum(others))))
    slow = sum(losses) / len(losses)
    slow.backward()
    assert abs(step.loss.item() - slow.item()) < 1e-9
    for (name, fast), other in zip(method.named_parameters(), twin.parameters(), strict=True):
        assert torch.allclose(fast.grad, other.grad, atol=1e-9, rtol=1e-9), name


def test_at_collapse_the_loss_is_log_of_the_images() -> None:
    method = inst_disc().train()
    torch.nn.init.zeros_(method.student.head.project.weight)
    torch.nn.init.ones_(method.student.head.project.bias)
    method.bank.entries.fill_(1 / math.sqrt(8))
    step = method(one_view(4, torch.float32))
    assert step.loss.item() == pytest.approx(math.log(IMAGES), abs=1e-5)


def test_the_bank_is_written_after_the_step_and_holds_the_mean() -> None:
    method, views = inst_disc().train(), one_view(4, torch.float32)
    before = method.bank.entries.clone()
    step = method(views)
    assert torch.equal(method.bank.entries, before)
    method.after_step(0.0, step.keys)
    indices, embeddings = step.keys
    assert torch.equal(indices, views.indices)
    mean = F.normalize((before[indices] + embeddings) / 2, dim=1)
    assert torch.allclose(method.bank.entries[indices], mean, atol=1e-6)
    others = [i for i in range(IMAGES) if i not in indices.tolist()]
    assert torch.equal(method.bank.entries[others], before[others])


@pytest.mark.parametrize("wrong", [{"negatives": 0}, {"bank_momentum": 1.0}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"--options.{next(iter(wrong))} is"):
        inst_disc(**wrong)
