"""The two stages of Faster and Mask R-CNN: torchvision's, with the losses of the protocol."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork

from lewel.losses.detection import mask_loss, mask_targets, region_losses
from lewel.nn.rcnn import Anchors, Masks, Predictor, ProposalHead, RoIPool

Target = dict[str, Tensor]  # boxes (M, 4), labels (M,) from 1, perhaps masks (M, H, W)
Sizes = list[tuple[int, int]]  # height and width of each image before padding
Counts = tuple[int, int, int, int]  # proposals before and after NMS: in training, then in tests


class Proposals(RegionProposalNetwork):  # type: ignore[misc]
    """A region proposal network with the chosen regression loss."""

    def __init__(
        self, anchors: Anchors, head: ProposalHead, drawn: int, counts: Counts, beta: float
    ) -> None:
        before, after, before_test, after_test = counts
        super().__init__(
            anchors,
            head,
            0.7,
            0.3,
            drawn,
            0.5,
            {"training": before, "testing": before_test},
            {"training": after, "testing": after_test},
            0.7,
        )
        self.beta = beta

    def compute_loss(
        self, objectness: Tensor, deltas: Tensor, labels: list[Tensor], targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Objectness (A, 1), deltas (A, 4), labels and true deltas of all anchors -> two losses."""
        positive, negative = (torch.where(torch.cat(one))[0] for one in self.fg_bg_sampler(labels))
        drawn, truth = torch.cat([positive, negative]), torch.cat(targets)
        boxes = F.smooth_l1_loss(deltas[positive], truth[positive], beta=self.beta, reduction="sum")
        things = F.binary_cross_entropy_with_logits(
            objectness.flatten()[drawn], torch.cat(labels)[drawn]
        )
        return things, boxes / drawn.numel()


class Regions(RoIHeads):  # type: ignore[misc]
    """The second stage: what each proposed region holds, where exactly, and its mask.

    torchvision's sampling and post-processing; the forward is ours for its losses and because a
    C4 head is run once for boxes and masks, so that its batch norm sees each region once.
    """

    masks: Masks | None

    def __init__(
        self,
        pool: RoIPool,
        head: nn.Module,
        predictor: Predictor,
        masks: Masks | None,
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
        return self.found(maps, proposals, sizes), {}

    def losses(
        self, maps: dict[str, Tensor], proposals: list[Tensor], targets: list[Target]
    ) -> dict[str, Tensor]:
        """The losses of regions that are drawn from the proposals and the truth."""
        drawn, which, labels, deltas = self.select_training_samples(proposals, targets)
        regions = self.box_head(self.box_roi_pool(maps, drawn))
        every = torch.cat(labels)
        scores, moves = self.box_predictor(regions)
        kinds, boxes = region_losses(scores, moves, every, torch.cat(deltas), self.beta)
        losses = {"loss_classifier": kinds, "loss_box_reg": boxes}
        if self.masks is not None:
            inside = [one > 0 for one in labels]
            kept = [one[mine] for one, mine in zip(drawn, inside, strict=True)]
            seen = regions[every > 0] if self.masks.pool is None else self.masks.pool(maps, kept)
            logits = self.masks(seen)
            truth = [
                mask_targets(t["masks"], boxes, w[mine], logits.shape[-1], self.aligned)
                for t, boxes, w, mine in zip(targets, kept, which, inside, strict=True)
            ]
            losses["loss_mask"] = mask_loss(logits, every[every > 0], torch.cat(truth))
        return losses

    def found(self, maps: dict[str, Tensor], proposals: list[Tensor], sizes: Sizes) -> list[Target]:
        """Boxes, labels, scores and, where asked, masks (D, S, S) of [0, 1] for each image."""
        regions = self.box_head(self.box_roi_pool(maps, proposals))
        boxes, scores, labels = self.postprocess_detections(
            *self.box_predictor(regions), proposals, sizes
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
