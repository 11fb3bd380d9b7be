"""Linear probes on cached features: many learning rates and weight decays, trained together."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.ops.randomness import seed_of
from lewel.optim.schedules import cosine

LEARNING_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
WEIGHT_DECAYS = (0.0, 1e-5, 1e-4, 1e-3)

CHUNK = 4096  # held-out rows at a time


def fit(
    features: Tensor,
    labels: Tensor,
    classes: int,
    rates: Tensor,
    decays: Tensor,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    rows: Tensor | None = None,
    advance: Callable[[int], None] = lambda images: None,
) -> Tensor:
    """Weights (G, C + 1, K) of G classifiers on features (N, C), one for each setting.

    They are trained on the settings' device; the features may be elsewhere.

    SGD with momentum 0.9 and cosine learning rates; all candidates see the same batches. The last
    row of the weights is the bias, which has no weight decay. `rows` are those to train on; only a
    batch of them is copied.
    """
    rows = torch.arange(len(features), device=features.device) if rows is None else rows
    weights = rates.new_zeros(len(rates), features.shape[1] + 1, classes, requires_grad=True)
    velocity = torch.zeros_like(weights)
    draws = torch.Generator().manual_seed(seed_of(seed))
    batch_size = min(batch_size, len(rows))
    steps = epochs * (len(rows) // batch_size)
    step = 0
    for _ in range(epochs):
        order = rows[torch.randperm(len(rows), generator=draws).to(rows.device)]
        for part in torch.split(order, batch_size)[: len(rows) // batch_size]:
            inputs = F.pad(features[part].to(rates.device), (0, 1), value=1.0)
            scores = torch.einsum("bc,gck->gbk", inputs, weights)
            targets = labels[part].to(rates.device).expand(len(rates), -1).flatten()
            loss = F.cross_entropy(scores.flatten(0, 1), targets, reduction="sum") / len(part)
            (gradient,) = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                gradient[:, :-1] += decays.view(-1, 1, 1) * weights[:, :-1]
                velocity.mul_(0.9).add_(gradient)
                weights -= cosine(1.0, 0.0, step / steps) * rates.view(-1, 1, 1) * velocity
            step += 1
            advance(len(part))
    return weights.detach()


def scores_of(features: Tensor, weights: Tensor) -> Tensor:
    """Class scores (N, K) of features (N, C) by one classifier (C + 1, K)."""
    return features @ weights[:-1] + weights[-1]


def standardise(features: Tensor, like: Tensor, out: Tensor | None = None) -> Tensor:
    """Features with the mean and standard deviation of others removed, channel by channel."""
    deviation, mean = like.std(0).clamp_min(1e-6).to(features), like.mean(0).to(features)
    return torch.sub(features, mean, out=out).div_(deviation)


def sweep(
    features: Tensor,
    labels: Tensor,
    queries: Tensor,
    classes: int,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    advance: Callable[[int], None] = lambda images: None,
) -> tuple[Tensor, float, float]:
    """Scores (Q, K) of queries (Q, C) by the best candidate, its lr and weight decay.

    The best one is chosen on a tenth of the training images, and then trained on all of them.
    Features and queries are standardised in place: with ImageNet's there is no room for others.
    """
    for one in (queries, features):  # the features last: both need their statistics
        standardise(one, features, out=one)
    grid = torch.cartesian_prod(torch.tensor(LEARNING_RATES), torch.tensor(WEIGHT_DECAYS)).to(
        queries
    )
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed_of(seed, 1)))
    held_out, rest = order.to(features.device).tensor_split([len(order) // 10])
    settings = {"epochs": epochs, "batch_size": batch_size, "seed": seed, "advance": advance}
    tried = fit(features, labels, classes, grid[:, 0], grid[:, 1], rows=rest, **settings)  # type: ignore[arg-type]
    # By the loss: accuracies on few images are often equal.
    losses = held_out_losses(features, labels, held_out, tried)
    least = int(losses.nan_to_num(torch.inf).argmin())
    best = grid[least : least + 1]
    (weights,) = fit(features, labels, classes, best[:, 0], best[:, 1], **settings)  # type: ignore[arg-type]
    return scores_of(queries, weights), float(best[0, 0]), float(best[0, 1])


def held_out_losses(features: Tensor, labels: Tensor, rows: Tensor, tried: Tensor) -> Tensor:
    """Cross entropies (G,) of candidates (G, C + 1, K) on some rows, a few thousand at a time."""
    total = tried.new_zeros(len(tried))
    for part in torch.split(rows, CHUNK):
        inputs, known = features[part].to(tried.device), labels[part].to(tried.device)
        losses = [F.cross_entropy(scores_of(inputs, w), known, reduction="sum") for w in tried]
        total += torch.stack(losses)
    return total / len(rows)
