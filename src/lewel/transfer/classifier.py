"""A linear classifier on a frozen backbone (linear probe) or on one that is fine-tuned."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lewel.nn.backbone import Backbone
from lewel.nn.trainable import Step, Trainable
from lewel.nn.views import Views


class Classifier(Trainable):
    """One linear layer on the mean token of an image (section 4.1).

    A frozen backbone stays in eval mode: neither its weights nor its batch norm statistics change.
    """

    def __init__(self, backbone: Backbone, classes: int, *, frozen: bool) -> None:
        super().__init__()
        self.frozen = frozen
        self.backbone = backbone.requires_grad_(not frozen)
        self.classify = nn.Linear(backbone.channels, classes)
        nn.init.normal_(self.classify.weight, std=0.01)
        nn.init.zeros_(self.classify.bias)

    def train(self, mode: bool = True) -> "Classifier":
        super().train(mode)
        self.backbone.train(mode and not self.frozen)
        return self

    def forward(self, views: Views, labels: Tensor | None = None) -> Step:
        """One view (B, 3, S, S) and its classes (B,) -> the cross entropy."""
        assert labels is not None
        with torch.set_grad_enabled(not self.frozen and torch.is_grad_enabled()):
            features = self.backbone(views[0]).mean(1)
        scores = self.classify(features)
        loss = F.cross_entropy(scores.float(), labels)
        right = (scores.detach().argmax(1) == labels).float().mean()
        return Step(loss, {"accuracy": right})
