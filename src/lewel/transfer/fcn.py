"""Semantic segmentation: the dilated FCN of section 4.3."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lewel.data.dense.voc import IGNORED
from lewel.nn.trainable import Step, Trainable
from lewel.transfer.dilation import DenseFeatures

AUXILIARY_WEIGHT = 0.4


def conv3x3(wide: int, channels: int) -> nn.Sequential:
    """A 3x3 convolution, batch norm and ReLU: (B, C, h, w) -> (B, D, h, w)."""
    conv = nn.Conv2d(wide, channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


class FCNHead(nn.Module):
    """Convolutions, then a linear classifier at each location: (B, C, h, w) -> (B, K, h, w).

    With `joins` the input is concatenated to the convolutions' output, followed by one more
    convolution (mmsegmentation's `concat_input`).
    """

    def __init__(
        self,
        wide: int,
        channels: int,
        classes: int,
        *,
        convolutions: int,
        joins: bool,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        widths = [wide] + [channels] * convolutions
        self.convolve = nn.Sequential(*map(conv3x3, widths[:-1], widths[1:]))
        self.join = conv3x3(wide + channels, channels) if joins else None
        self.dropout = nn.Dropout2d(dropout)
        self.classify = nn.Conv2d(channels, classes, 1)
        nn.init.normal_(self.classify.weight, std=0.01)
        nn.init.zeros_(self.classify.bias)  # type: ignore[arg-type]

    def forward(self, features: Tensor) -> Tensor:
        x = self.convolve(features)
        if self.join is not None:
            x = self.join(torch.cat([features, x], 1))
        scores: Tensor = self.classify(self.dropout(x))
        return scores


class FCN(Trainable):
    """An FCN head on the last stage, and in training an auxiliary head on the stage before.

    Nothing is frozen: backbone, heads and all batch norms are trained.
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
        if masks is None:  # for the estimate of memory
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
    # Losses and argmax in float32.
    return F.interpolate(scores.float(), images.shape[2:], mode="bilinear", align_corners=False)


def pixel_loss(scores: Tensor, masks: Tensor) -> Tensor:
    """Cross entropy of scores (B, K, H, W) for masks (B, H, W); ignored pixels count as zero.

    The mean is over all pixels, as in mmsegmentation: a batch of ignored ones gives 0, and the
    mean over ranks is the mean over the batch.
    """
    total = F.cross_entropy(scores, masks.long(), ignore_index=IGNORED, reduction="sum")
    return total / masks.numel()
