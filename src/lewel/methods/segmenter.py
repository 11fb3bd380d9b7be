"""Learning the class of each pixel: the dilated FCN of section 4.3."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lewel.data.voc import IGNORED
from lewel.methods.base import Method, Step
from lewel.nn.dense import DenseFeatures
from lewel.nn.fcn import FCNHead

AUXILIARY_WEIGHT = 0.4


class Segmenter(Method):
    """A head on the last stage tells classes; another on the stage before only helps to learn.

    Nothing is frozen: backbone, heads and all batch norms learn.
    """

    def __init__(
        self, features: DenseFeatures, classes: int, *, channels: int, auxiliary_channels: int
    ) -> None:
        super().__init__()
        third, last = features.channels
        self.features = features
        self.head = FCNHead(last, channels, classes, convolutions=2, joins=True)
        self.auxiliary = FCNHead(third, auxiliary_channels, classes, convolutions=1, joins=False)

    def forward(self, views: list[Tensor], masks: Tensor | None = None) -> Step:
        """Crops (B, 3, S, S) and their classes (B, S, S) -> the cross entropy of both heads."""
        images = views[0]
        if masks is None:  # only memory is asked for
            masks = images.new_zeros(images.shape[0], *images.shape[2:], dtype=torch.long)
        third, last = self.features(images)
        scores = enlarge(self.head(last), images)
        loss = pixel_loss(scores, masks)
        loss = loss + AUXILIARY_WEIGHT * pixel_loss(enlarge(self.auxiliary(third), images), masks)
        counts = masks != IGNORED
        right = ((scores.detach().argmax(1) == masks) & counts).sum() / counts.sum().clamp(min=1)
        return Step(loss, {"accuracy": right})

    def scores(self, images: Tensor) -> Tensor:
        """Whole images (B, 3, H, W) -> the score of each class at each pixel (B, K, H, W)."""
        _, last = self.features(images)
        return enlarge(self.head(last), images)


def enlarge(scores: Tensor, images: Tensor) -> Tensor:
    """Scores (B, K, h, w) at the pixels of images (B, 3, H, W): (B, K, H, W), float32."""
    # Losses and decisions stay in 32 bits.
    return F.interpolate(scores.float(), images.shape[2:], mode="bilinear", align_corners=False)


def pixel_loss(scores: Tensor, masks: Tensor) -> Tensor:
    """Cross entropy of scores (B, K, H, W) for masks (B, H, W), ignored pixels as zeros.

    The mean is over all pixels, as in mmsegmentation: a batch of ignored ones gives 0, and the
    mean over ranks is the mean over the batch.
    """
    total = F.cross_entropy(scores, masks.long(), ignore_index=IGNORED, reduction="sum")
    return total / masks.numel()
