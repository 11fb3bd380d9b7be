"""A slow reference of LEWEL_B and BYOL, location by location, from the paper's equations.

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
    return [
        (row - mean) / (var + 1e-5) ** 0.5 * state[f"{name}.weight"] + state[f"{name}.bias"]
        for row in rows
    ]


def mlp(rows: list[Tensor], state: dict[str, Tensor], name: str, train: bool) -> list[Tensor]:
    hidden = [state[f"{name}.first.weight"] @ row + state[f"{name}.first.bias"] for row in rows]
    active = [row.clamp(min=0) for row in batch_norm(hidden, state, f"{name}.norm", train)]
    return [state[f"{name}.last.weight"] @ row + state[f"{name}.last.bias"] for row in active]


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
