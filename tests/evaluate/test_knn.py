"""k-NN against scikit-learn on a problem that is not separable."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from lewel.data.sources.scenes import Scenes
from lewel.data.views.transform import whole_view
from lewel.evaluate.features import Extractor
from lewel.evaluate.knn import knn_accuracy, knn_scores
from tests.conftest import small_backbone


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    labels, targets = torch.randint(5, (400,)), torch.randint(5, (200,))
    centres = torch.randn(5, 16)
    bank, queries = (centres[y] + 1.3 * torch.randn(len(y), 16) for y in (labels, targets))
    return bank.double(), labels, queries.double(), targets


def test_it_equals_scikit_learn() -> None:
    bank, labels, queries, targets = problem()
    reference = KNeighborsClassifier(
        20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.1)
    ).fit(bank.numpy(), labels.numpy())
    expected = (reference.predict(queries.numpy()) == targets.numpy()).mean()
    assert 0.5 < expected < 0.95
    assert knn_accuracy(bank, labels, queries, targets) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("temperature", [1e-40, 1e-7, 1e-4])
def test_a_low_temperature_gives_the_nearest_neighbours_class(temperature: float) -> None:
    """All votes would be 0, and every query of the first class."""
    bank, labels, queries, _ = (
        one.float() if one.is_floating_point() else one for one in problem()
    )
    near, one = knn_scores(bank, labels, queries, [20, 1], temperature=temperature)
    assert torch.equal(one.argmax(1), knn_scores(bank, labels, queries, [1])[0].argmax(1))
    agree = (near.argmax(1) == one.argmax(1)).double().mean()
    assert agree == 1.0 if temperature < 1e-5 else agree > 0.95


def test_similarities_are_exact_where_training_uses_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    used, real = [], torch.Tensor.topk

    def topk(*arguments: object, **named: object) -> object:
        used.append(torch.get_float32_matmul_precision())
        return real(*arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(torch.Tensor, "topk", topk)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        knn_accuracy(*problem())
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert used[0] == "highest"


def test_the_chunk_size_does_not_change_the_result() -> None:
    bank, labels, queries, _ = problem()
    for whole, parts in zip(
        knn_scores(bank, labels, queries, [5, 20], chunk=1000),
        knn_scores(bank, labels, queries, [5, 20], chunk=7),
        strict=True,
    ):
        assert torch.equal(whole.argmax(1), parts.argmax(1))
        assert torch.allclose(whole, parts)


def test_every_k_of_a_sweep_equals_a_single_k() -> None:
    bank, labels, queries, _ = problem()
    sweep = knn_scores(bank, labels, queries, [1, 20, 200])
    for k, scores in zip([1, 20, 200], sweep, strict=True):
        assert torch.equal(scores, knn_scores(bank, labels, queries, [k])[0])


def test_a_large_bank_needs_less_than_one_more_gigabyte() -> None:
    code = (
        "import resource, torch; from lewel.evaluate.knn import knn_scores;"
        "torch.set_num_threads(1);"
        "bank = torch.randn(200_000, 512); labels = torch.randint(9, (200_000,));"
        "queries = torch.randn(400, 512); usage = resource.getrusage;"
        "kb = lambda: usage(resource.RUSAGE_SELF).ru_maxrss;"
        "before = kb(); knn_scores(bank, labels, queries, [20, 200]); print(kb() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1_000_000, done.stdout


def test_fewer_images_than_neighbours() -> None:
    bank, labels, queries, targets = problem()
    assert 0 <= knn_accuracy(bank[:3], labels[:3], queries, targets) <= 1


@pytest.mark.parametrize("shape", [(16, 16), (40, 64), (64, 40), (9, 100), (1, 3)])
def test_the_whole_view_is_the_centre_of_the_resized_image(shape: tuple[int, int]) -> None:
    image = torch.randint(0, 255, (3, *shape), dtype=torch.uint8)
    view = whole_view(image, 16)
    assert view.shape == (3, 16, 16)
    if shape == (16, 16):
        assert torch.equal(view, image)


def test_features_are_the_pooled_output_in_the_order_of_the_indices() -> None:
    backbone = small_backbone().eval()
    source = Scenes("val", 16, 12)
    indices = np.array([3, 0, 7])
    extractor = Extractor(backbone, 16, (0.5,) * 3, (0.5,) * 3, torch.device("cpu"), batch_size=2)
    features, readable = extractor.gathered_features(source, indices)
    assert readable.all()
    images = torch.stack([source.read(int(i)) for i in indices]).float() / 127.5 - 1
    with torch.no_grad():
        assert torch.allclose(features, backbone.net(images), atol=1e-5)
