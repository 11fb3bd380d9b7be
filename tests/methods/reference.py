"""Slow references of heads and losses, location by location, from the papers' equations.

It shares no code with the package except the backbone f (torchvision's).
"""

import math

import torch
from torch import Tensor


def batch_norm(
    rows: list[Tensor], state: dict[str, Tensor], name: str, train: bool
) -> list[Tensor]:
    if train:
        mean = sum(rows) / len(rows)
        var = sum((row - mean) ** 2 for row in rows) / len(rows)
    else:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    scale, offset = state.get(f"{name}.weight", 1.0), state.get(f"{name}.bias", 0.0)
    return [(row - mean) / (var + 1e-5) ** 0.5 * scale + offset for row in rows]


def mlp(rows: list[Tensor], state: dict[str, Tensor], name: str, train: bool) -> list[Tensor]:
    hidden = [state[f"{name}.first.weight"] @ row + state[f"{name}.first.bias"] for row in rows]
    if f"{name}.norm.running_mean" in state:  # else a projector without a norm
        hidden = batch_norm(hidden, state, f"{name}.norm", train)
    active = [row.clamp(min=0) for row in hidden]
    if f"{name}.second.weight" in state:  # three layers
        weight, bias = state[f"{name}.second.weight"], state[f"{name}.second.bias"]
        hidden = [weight @ row + bias for row in active]
        normed = batch_norm(hidden, state, f"{name}.second_norm", train)
        active = [row.clamp(min=0) for row in normed]
    out = [state[f"{name}.last.weight"] @ row + state[f"{name}.last.bias"] for row in active]
    last = f"{name}.last_norm"
    return batch_norm(out, state, last, train) if f"{last}.running_mean" in state else out


def embed(
    features: Tensor, state: dict[str, Tensor], prefix: str, groups: int | None, train: bool
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Features (B, N, C) of one view -> z of each image, and the list of z_k of each image."""
    batch, locations, channels = features.shape
    pooled = [sum(features[b, n] for n in range(locations)) / locations for b in range(batch)]
    if groups is None:
        return mlp(pooled, state, f"{prefix}project", train), []
    rows = []
    for b in range(batch):
        rows.append(pooled[b])
        rows.extend(features[b, n] for n in range(locations))
    out = mlp(rows, state, f"{prefix}project", train)
    step = locations + 1
    z = [out[b * step] for b in range(batch)]
    representations = []
    for b in range(batch):
        heat = [out[b * step + 1 + n] for n in range(locations)]
        heat = [row / sum(value**2 for value in row) ** 0.5 for row in heat]
        dim = len(heat[0])
        maps = []
        for k in range(dim):
            exponentials = [torch.exp(heat[n][k]) for n in range(locations)]
            maps.append([e / sum(exponentials) for e in exponentials])
        size = channels // groups
        for k in range(1, dim // groups + 1):
            parts = []
            for j in range(1, groups + 1):
                chosen = maps[(k - 1) * groups + j - 1]
                part = features[b, :, (j - 1) * size : j * size]
                parts.append(sum(chosen[n] * part[n] for n in range(locations)))
            representations.append(torch.cat(parts))
    flat = mlp(representations, state, f"{prefix}project_aligned", train)
    each = len(representations) // batch
    return z, [flat[b * each : (b + 1) * each] for b in range(batch)]


def mse(prediction: Tensor, target: Tensor) -> Tensor:
    dot = sum(p * t for p, t in zip(prediction, target, strict=True))
    norms = sum(p * p for p in prediction) * sum(t * t for t in target)
    return 2 - 2 * dot / norms**0.5


def direction(
    state: dict[str, Tensor], student: Tensor, teacher: Tensor, groups: int | None, beta: float
) -> Tensor:
    """One view's features through the student, the other's through an EMAN teacher -> L."""
    z, aligned = embed(student, state, "student.head.", groups, True)
    target, target_aligned = embed(teacher, state, "teacher.network.head.", groups, False)
    total = torch.zeros((), dtype=torch.float64)
    if beta < 1:
        predicted = mlp(z, state, "predict", True)
        losses = [mse(p, t) for p, t in zip(predicted, target, strict=True)]
        total = total + (1 - beta) * sum(losses) / len(losses)
    if beta > 0:
        rows = [row for image in aligned for row in image]
        targets = [row for image in target_aligned for row in image]
        predicted = mlp(rows, state, "predict_aligned", True)
        losses = [mse(p, t) for p, t in zip(predicted, targets, strict=True)]
        total = total + beta * sum(losses) / len(losses)
    assert math.isfinite(total.item())
    return total


def cosine(one: Tensor, two: Tensor) -> Tensor:
    dot = sum(a * b for a, b in zip(one, two, strict=True))
    return dot / (sum(a * a for a in one) * sum(b * b for b in two)) ** 0.5


def simclr_loss(one: list[list[Tensor]], two: list[list[Tensor]], temperature: float) -> Tensor:
    """Embeddings [image][k] of two views -> the mean NT-Xent loss."""
    views, losses = (one, two), []
    for v in range(2):
        for i in range(len(one)):
            for k in range(len(one[i])):
                anchor = views[v][i][k]
                positive = torch.exp(cosine(anchor, views[1 - v][i][k]) / temperature)
                total = positive
                for w in range(2):
                    for j in range(len(one)):
                        if j != i:
                            for other in views[w][j]:
                                total = total + torch.exp(cosine(anchor, other) / temperature)
                losses.append(-torch.log(positive / total))
    return sum(losses) / len(losses)


def simsiam_loss(
    state: dict[str, Tensor], name: str, one: list[Tensor], two: list[Tensor]
) -> Tensor:
    """Embeddings of two views, through the predictor of this name -> the loss."""
    losses = []
    for view, other in ((one, two), (two, one)):
        predicted = mlp(view, state, name, True)
        losses += [-cosine(p, z.detach()) for p, z in zip(predicted, other, strict=True)]
    return sum(losses) / len(losses)


def barlow_loss(one: list[Tensor], two: list[Tensor], weight: float) -> Tensor:
    """Embeddings of two views -> the loss of their cross-correlation."""
    one, two = (batch_norm(rows, {}, "", True) for rows in (one, two))
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(one[0])):
        for j in range(len(one[0])):
            c = sum(a[i] * b[j] for a, b in zip(one, two, strict=True)) / len(one)
            total = total + ((1 - c) ** 2 if i == j else weight * c**2)
    return total


def swav_loss(
    crops: list[list[Tensor]],
    prototypes: Tensor,
    temperature: float,
    epsilon: float,
    earlier: tuple[list[Tensor], list[Tensor]] = ([], []),
) -> Tensor:
    """Embeddings of all crops, the two large ones first -> the loss."""
    losses = []
    for large in range(2):
        rows = [*crops[large], *earlier[large]]
        q = [[math.exp(cosine(z, c).item() / epsilon) for c in prototypes] for z in rows]
        for _ in range(3):
            for k in range(len(prototypes)):
                share = sum(row[k] for row in q) * len(prototypes)
                for row in q:
                    row[k] /= share
            q = [[value / (sum(row) * len(q)) for value in row] for row in q]
        q = [[value * len(q) for value in row] for row in q]
        for crop in range(len(crops)):
            if crop != large:
                for n, z in enumerate(crops[crop]):
                    scores = [torch.exp(cosine(z, c) / temperature) for c in prototypes]
                    losses.append(
                        -sum(q[n][k] * torch.log(s / sum(scores)) for k, s in enumerate(scores))
                    )
    return sum(losses) / len(losses)
