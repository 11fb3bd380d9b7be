"""PCL against a slow float64 reference, and its clusters."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.errors import UserError
from lewel.methods.pcl import PCL, cluster_counts
from lewel.nn.trainable import Epoch
from tests.methods.comparing import assert_equals_reference
from tests.methods.making import cut_views, make_method
from tests.methods.reference import mlp
from tests.methods.test_byol_lewel_b import perturbed
from tests.methods.test_densecl import cosine
from tests.methods.test_moco_lewel_m import slow_info_nce

IMAGES = 12
SIZES = {"dim": 8, "hidden": 12, "queue": 10, "norm_groups": 1, "images": IMAGES, "clusters": 2}


def pcl(**extra: object) -> PCL:
    return make_method(PCL, **{**SIZES, "warmup": 0, "iterations": 3, "restarts": 2, **extra})


def begin(method: PCL, number: int = 0, seed: int = 1) -> list[Tensor]:
    """Call the hook before an epoch on noise -> the embeddings that it asked for."""
    images = torch.randn(IMAGES, 3, 16, 16, dtype=next(method.parameters()).dtype)
    asked: list[Tensor] = []

    def embed(network: object) -> Tensor:
        method.eval()
        with torch.no_grad():
            asked.append(network(images))  # type: ignore[operator]
        method.train()
        return asked[-1]

    torch.manual_seed(seed)
    method.before_epoch(Epoch(number, embed, lambda text, done, total: None))
    return asked


@pytest.mark.parametrize(
    ("projector", "symmetric", "negatives"),
    [("mlp", False, 10), ("linear", True, 10), ("mlp", False, 3)],
)
def test_loss_and_gradient_equal_the_slow_reference(
    projector: str, symmetric: bool, negatives: int
) -> None:
    method = perturbed(pcl(projector=projector, symmetric=symmetric)).train()
    begin(method)
    method.negatives = negatives
    twin, views = copy.deepcopy(method), cut_views(4, total=IMAGES)
    torch.manual_seed(4)
    step = method(views)
    step.loss.backward()
    torch.manual_seed(4)
    state = dict(twin.named_parameters()) | dict(twin.named_buffers())

    def embed(features: Tensor, name: str) -> list[Tensor]:
        if projector == "mlp":
            return mlp([image.mean(0) for image in features], state, name, True)
        return [state[f"{name}.weight"] @ f.mean(0) + state[f"{name}.bias"] for f in features]

    total = torch.zeros((), dtype=torch.float64)
    for view, other in ((0, 1), (1, 0))[: 1 + symmetric]:
        z = embed(twin.student.backbone(views[view]), "student.head.project")
        with torch.no_grad():
            features = twin.teacher.network.backbone(views[other])
            keys = embed(features, "teacher.network.head.project")
        queue = list(twin.queue.keys)
        losses = [slow_info_nce(q, k, queue) for q, k in zip(z, keys, strict=True)]
        total = total + sum(losses) / len(losses)
        for level, start, count in ((0, 0, 2), (1, 2, 4), (2, 6, 8)):
            drawn = (
                torch.randperm(count)[:negatives].tolist() if negatives < count else range(count)
            )
            for query, index in zip(z, views.indices.tolist(), strict=True):
                own = int(twin.prototypes.labels[level, index])
                scores = {
                    at: torch.exp(
                        cosine(query, twin.prototypes.centroids[at]) / twin.prototypes.phi[at]
                    )
                    for at in {own, *(start + one for one in drawn)}
                }
                loss = -torch.log(scores[own] / sum(scores.values()))
                total = total + loss / len(z) / 3
    total.backward()
    assert_equals_reference(step, method, total, twin)


def test_in_the_first_epochs_it_is_moco_alone() -> None:
    method = pcl(warmup=2).train()
    assert begin(method, number=1) == []
    step = method(cut_views(4, torch.float32, total=IMAGES))
    assert step.logs["loss_proto"] == 0
    assert torch.equal(step.loss, step.logs["loss_instance"])
    assert len(begin(method, number=2)) == 1
    assert method(cut_views(4, torch.float32, total=IMAGES)).logs["loss_proto"] > 0


def test_a_run_without_an_epoch_after_the_warm_up_is_remarked() -> None:
    (remark,) = pcl(warmup=2).remarks(2, 100)
    assert "after 2 epochs of MoCo, and this run has 2: it is MoCo alone" in remark
    assert pcl(warmup=2).remarks(3, 100) == [] and pcl().remarks(1, 100) == []


def test_every_image_belongs_to_its_nearest_centroid_of_each_granularity() -> None:
    method = pcl().double().train()
    (embeddings,) = begin(method)
    points = F.normalize(embeddings, dim=1)
    for level, start, count in ((0, 0, 2), (1, 2, 4), (2, 6, 8)):
        centroids = method.prototypes.centroids[start : start + count]
        nearest = start + (points @ centroids.T).argmax(1)
        assert torch.equal(method.prototypes.labels[level], nearest)
        phi = method.prototypes.phi[start : start + count]
        assert phi.mean().item() == pytest.approx(0.2)
    again = pcl().double().train()
    again.load_state_dict(method.state_dict())
    assert torch.equal(again.prototypes.labels, method.prototypes.labels)


def test_clusters_scale_with_the_images() -> None:
    assert cluster_counts(1_281_167, None) == [25_000, 50_000, 100_000]
    assert cluster_counts(9_000, None) == [176, 352, 704]
    assert cluster_counts(5, None) == [2, 4, 5]
    for wrong in (1, 4):
        with pytest.raises(UserError, match=f"clusters is {wrong}"):
            cluster_counts(IMAGES, wrong)


@pytest.mark.parametrize("wrong", [{"warmup": -1}, {"iterations": 0}, {"restarts": 0}])
def test_impossible_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match=f"--options.{next(iter(wrong))} is"):
        pcl(**wrong)
