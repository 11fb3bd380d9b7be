"""Losses of two-stage detectors: smooth L1 of boxes (beta 0 is L1; torchvision's 1/9), masks."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import roi_align


def roi_losses(
    scores: Tensor, deltas: Tensor, labels: Tensor, targets: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """Scores (R, K), deltas (R, 4 K), classes (R,), target deltas (R, 4) -> class and box loss.

    Class 0 is the background, which has no box; both losses are means over all R RoIs.
    """
    found = torch.where(labels > 0)[0]
    own = deltas.reshape(len(deltas), -1, 4)[found, labels[found]]
    box = F.smooth_l1_loss(own, targets[found], beta=beta, reduction="sum") / labels.numel()
    return F.cross_entropy(scores, labels), box


def mask_targets(masks: Tensor, boxes: Tensor, which: Tensor, size: int, aligned: bool) -> Tensor:
    """Masks (M, H, W) cropped to boxes (R, 4), box r of mask which[r] -> (R, S, S) of [0, 1].

    With `aligned` they are rounded to 0 and 1, as in detectron2; otherwise as in torchvision.
    """
    rows = torch.cat([which.to(boxes)[:, None], boxes], 1)
    crops: Tensor = roi_align(masks[:, None].to(boxes), rows, (size, size), 1.0, aligned=aligned)[
        :, 0
    ]
    return (crops >= 0.5).to(crops) if aligned else crops


def mask_loss(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Logits (R, K, S, S), classes (R,), targets (R, S, S) -> mean over these classes' masks."""
    if not len(targets):
        return logits.sum() * 0  # keeps every weight in the graph
    own = logits[torch.arange(len(labels), device=labels.device), labels]
    return F.binary_cross_entropy_with_logits(own, targets)
