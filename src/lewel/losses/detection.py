"""Losses of two-stage detectors; a beta of 0 is plain L1, torchvision's own is smooth at 1/9."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import roi_align


def region_losses(
    scores: Tensor, deltas: Tensor, labels: Tensor, targets: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """Scores (R, K), deltas (R, 4 K), classes (R,), true deltas (R, 4) -> class and box loss.

    Class 0 is the background, which has no box; both losses are means over all R regions.
    """
    found = torch.where(labels > 0)[0]
    own = deltas.reshape(len(deltas), -1, 4)[found, labels[found]]
    box = F.smooth_l1_loss(own, targets[found], beta=beta, reduction="sum") / labels.numel()
    return F.cross_entropy(scores, labels), box


def mask_targets(masks: Tensor, boxes: Tensor, which: Tensor, size: int, aligned: bool) -> Tensor:
    """Masks (M, H, W) cut by boxes (R, 4), box r of mask which[r] -> (R, S, S) of [0, 1].

    Aligned cuts are rounded to 0 and 1, as detectron2 does; others stay soft, as torchvision's.
    """
    rows = torch.cat([which.to(boxes)[:, None], boxes], 1)
    cut: Tensor = roi_align(masks[:, None].to(boxes), rows, (size, size), 1.0, aligned=aligned)[
        :, 0
    ]
    return (cut >= 0.5).to(cut) if aligned else cut


def mask_loss(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Logits (R, K, S, S), classes (R,), targets (R, S, S) -> mean over the own class's masks."""
    if not len(targets):
        return logits.sum() * 0  # keeps every weight in the graph
    own = logits[torch.arange(len(labels), device=labels.device), labels]
    return F.binary_cross_entropy_with_logits(own, targets)
