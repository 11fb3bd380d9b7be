"""The head of a fully convolutional network: a class for each position of a feature map."""

import torch
from torch import Tensor, nn


def conv3x3(wide: int, channels: int) -> nn.Sequential:
    """A 3x3 convolution, batch norm and ReLU: (B, C, h, w) -> (B, D, h, w)."""
    conv = nn.Conv2d(wide, channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


class FCNHead(nn.Module):
    """Convolutions, then a linear classifier at each position: (B, C, h, w) -> (B, K, h, w).

    With `joins` the input stands beside the convolutions' output, and one more convolution joins
    the two.
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
