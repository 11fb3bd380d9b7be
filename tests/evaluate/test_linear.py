"""Linear classifiers against scikit-learn's, on a problem that is not separable."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from lewel.evaluate.linear import fit, scores_of, standardise, sweep


def problem(images: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(6, (images,))
    centres = torch.randn(6, 24)
    return centres[labels] * 0.8 + 1.7 * torch.randn(images, 24) + 3, labels


def test_the_sweep_equals_scikit_learn_within_half_a_point() -> None:
    features, labels = problem(8000)
    train, queries, known, targets = features[:4000], features[4000:], labels[:4000], labels[4000:]
    reference = LogisticRegression(max_iter=2000, C=1e3).fit(
        standardise(train, train).numpy(), known.numpy()
    )
    expected = reference.score(standardise(queries, train).numpy(), targets.numpy())
    assert 0.5 < expected < 0.9
    scores, rate, decay = sweep(train, known, queries, 6, epochs=30, batch_size=256, seed=0)
    ours = (scores.argmax(1) == targets).double().mean().item()
    assert ours == pytest.approx(expected, abs=0.005)
    assert rate > 0 and decay >= 0


def test_candidates_trained_together_equal_those_trained_alone() -> None:
    features, labels = problem(300)
    rates, decays = torch.tensor([0.01, 0.1, 0.1]), torch.tensor([0.0, 0.0, 0.1])
    settings = {"epochs": 3, "batch_size": 64, "seed": 4}
    together = fit(features, labels, 6, rates, decays, **settings)
    for number in range(3):
        one = slice(number, number + 1)
        alone = fit(features, labels, 6, rates[one], decays[one], **settings)
        assert torch.allclose(together[number], alone[0], atol=1e-5)
    assert not torch.allclose(together[0], together[1], atol=1e-3)
    assert not torch.allclose(together[1], together[2], atol=1e-3)


def test_one_step_is_the_gradient_of_the_cross_entropy() -> None:
    features, labels = problem(50)
    (weights,) = fit(
        features,
        labels,
        6,
        torch.tensor([0.5]),
        torch.tensor([0.0]),
        epochs=1,
        batch_size=50,
        seed=0,
    )
    inputs = np.concatenate([features.numpy(), np.ones((50, 1))], 1)
    slopes = np.full((50, 6), 1 / 6) - np.eye(6)[labels.numpy()]
    assert np.allclose(weights.numpy(), -0.5 * inputs.T @ slopes / 50, atol=1e-5)
    assert scores_of(features, weights).shape == (50, 6)
