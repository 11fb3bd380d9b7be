"""RoIs of Faster and Mask R-CNN: pooling, box and mask heads, losses and detections."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import roi_align
from torchvision.ops.poolers import LevelMapper

from lewel.losses.detection import mask_loss, mask_targets, roi_losses
from lewel.ops.precision import precise

Target = dict[str, Tensor]  # boxes (M, 4), labels (M,) from 1, perhaps masks (M, H, W)
Sizes = list[tuple[int, int]]  # height and width of each image before padding


class RoIPool(nn.Module):
    """RoIAlign from the FPN level of a RoI's size: boxes -> (R, C, S, S)."""

    def __init__(self, size: int, strides: Sequence[int], *, aligned: bool, samples: int) -> None:
        super().__init__()
        self.size, self.strides = size, tuple(strides)
        self.aligned, self.samples = aligned, samples  # 0 samples: adapted to the RoI's size
        levels = [stride.bit_length() - 1 for stride in self.strides]
        self.level = LevelMapper(min(levels), max(levels))

    def forward(self, maps: dict[str, Tensor], boxes: list[Tensor]) -> Tensor:
        rows = torch.cat(
            [
                torch.cat([torch.full_like(mine[:, :1], image), mine], 1)
                for image, mine in enumerate(boxes)
            ]
        )
        seen = list(maps.values())[: len(self.strides)]
        if len(seen) == 1:
            return self.pool(seen[0], rows, self.strides[0])
        levels = self.level(boxes)
        parts = [torch.where(levels == level)[0] for level in range(len(seen))]
        pooled = [
            self.pool(one, rows[part], stride)
            for one, part, stride in zip(seen, parts, self.strides, strict=True)
        ]
        return torch.cat(pooled)[torch.cat(parts).argsort()]

    def pool(self, features: Tensor, rows: Tensor, stride: int) -> Tensor:
        size = (self.size, self.size)
        out: Tensor = roi_align(features, rows, size, 1 / stride, self.samples, self.aligned)
        return out


class BoxPredictor(nn.Module):
    """RoIs (R, C, S, S) or (R, C) -> scores (R, K) and deltas (R, 4 K); class 0 is background."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(channels, classes)
        self.bbox_pred = nn.Linear(channels, 4 * classes)
        for layer, deviation in ((self.cls_score, 0.01), (self.bbox_pred, 0.001)):
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)

    def forward(self, rois: Tensor) -> tuple[Tensor, Tensor]:
        if rois.ndim == 4:
            rois = rois.mean((2, 3))
        return precise(self.cls_score(rois)), precise(self.bbox_pred(rois))


class MaskHead(nn.Module):
    """The mask head: on its own RoI features (FPN), or on the box head's where pool is None."""

    def __init__(
        self, pool: RoIPool | None, channels: int, width: int, classes: int, layers: int
    ) -> None:
        super().__init__()
        self.pool = pool
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        parts += [nn.ConvTranspose2d(channels, width, 2, 2), nn.ReLU(inplace=True)]
        parts.append(nn.Conv2d(width, classes, 1))
        self.layers = nn.Sequential(*parts)
        for layer in parts:
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        nn.init.normal_(self.layers[-1].weight, std=0.001)  # type: ignore[arg-type]

    def forward(self, rois: Tensor) -> Tensor:
        """RoIs (R, C, S, S) -> logits (R, K, 2 S, 2 S)."""
        return precise(self.layers(rois))


class RoIs(RoIHeads):  # type: ignore[misc]
    """The RoI heads: class, box and mask of each RoI.

    Sampling and post-processing are torchvision's. The forward is our own, for its losses, and
    because a C4 head runs once for boxes and masks, so that its batch norm gets each RoI once.
    """

    masks: MaskHead | None

    def __init__(
        self,
        pool: RoIPool,
        head: nn.Module,
        predictor: BoxPredictor,
        masks: MaskHead | None,
        *,
        drawn: int,
        score: float,
        detections: int,
        beta: float,
    ) -> None:
        super().__init__(pool, head, predictor, 0.5, 0.5, drawn, 0.25, None, score, 0.5, detections)
        self.masks, self.beta, self.aligned = masks, beta, pool.aligned

    def forward(
        self,
        maps: dict[str, Tensor],
        proposals: list[Tensor],
        sizes: Sizes,
        targets: list[Target] | None = None,
    ) -> tuple[list[Target], dict[str, Tensor]]:
        if self.training:
            assert targets is not None
            return [], self.losses(maps, proposals, targets)
        return self.detections(maps, proposals, sizes), {}

    def losses(
        self, maps: dict[str, Tensor], proposals: list[Tensor], targets: list[Target]
    ) -> dict[str, Tensor]:
        """The losses of RoIs sampled from the proposals and the ground truth."""
        drawn, which, labels, deltas = self.select_training_samples(proposals, targets)
        features = self.box_head(self.box_roi_pool(maps, drawn))
        every = torch.cat(labels)
        scores, moves = self.box_predictor(features)
        kinds, boxes = roi_losses(scores, moves, every, torch.cat(deltas), self.beta)
        losses = {"loss_classifier": kinds, "loss_box_reg": boxes}
        if self.masks is not None:
            inside = [one > 0 for one in labels]
            kept = [one[mine] for one, mine in zip(drawn, inside, strict=True)]
            own = features[every > 0] if self.masks.pool is None else self.masks.pool(maps, kept)
            logits = self.masks(own)
            ground_truth = [
                mask_targets(t["masks"], boxes, w[mine], logits.shape[-1], self.aligned)
                for t, boxes, w, mine in zip(targets, kept, which, inside, strict=True)
            ]
            losses["loss_mask"] = mask_loss(logits, every[every > 0], torch.cat(ground_truth))
        return losses

    def detections(
        self, maps: dict[str, Tensor], proposals: list[Tensor], sizes: Sizes
    ) -> list[Target]:
        """Boxes, labels, scores and, with a mask head, masks (D, S, S) of [0, 1] for each image."""
        features = self.box_head(self.box_roi_pool(maps, proposals))
        boxes, scores, labels = self.postprocess_detections(
            *self.box_predictor(features), proposals, sizes
        )
        found = [
            {"boxes": b, "labels": k, "scores": s}
            for b, k, s in zip(boxes, labels, scores, strict=True)
        ]
        if self.masks is not None:
            pool = self.masks.pool
            seen = (
                self.box_head(self.box_roi_pool(maps, boxes)) if pool is None else pool(maps, boxes)
            )
            logits, own = self.masks(seen), torch.cat(labels)
            shapes = logits[torch.arange(len(own), device=own.device), own].sigmoid()
            for one, mine in zip(found, shapes.split([len(b) for b in boxes]), strict=True):
                one["masks"] = mine
        return found
