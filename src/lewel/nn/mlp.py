"""Projectors and predictors: the paper's two-layer perceptron, and one of three layers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lewel.ops.aggregate import aggregate_linear, project_first_is_cheaper, project_locations
from lewel.ops.perceptron import (
    Loss,
    gathered_moments,
    gathered_perceptron,
    linear_variance,
    moments_are_cheaper,
    perceptron_loss,
)


class MLP(nn.Module):
    """Linear, batch norm, ReLU, linear, on tokens (..., inputs) -> (..., outputs).

    Batch norm takes its statistics over all leading dimensions together; `norm` switches it off.
    With many tokens the norm is folded into the layer before it: the same result, without a pass
    over the hidden activations, which for the aligned embeddings are the largest tensors of a step.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, norm: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.norm = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.last = nn.Linear(hidden, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = tokens.flatten(0, -2)
        if not self._folds(rows):
            return self.finish(self.first(tokens))
        out: Tensor = self.last(F.linear(rows, *self._folded(rows)).relu_())
        return out.view(*tokens.shape[:-1], -1)

    def loss(self, tokens: Tensor, target: Tensor, loss: Loss) -> Tensor:
        """loss(forward(tokens), target) for a loss that is a mean over tokens.

        (..., inputs), (..., outputs) -> scalar.
        """
        rows = tokens.flatten(0, -2)
        if not self._folds(rows):
            return loss(self(tokens), target)
        last = (self.last.weight, self.last.bias)
        return perceptron_loss(rows, self._folded(rows), last, target.flatten(0, -2), loss)

    def forward_aggregated(self, features: Tensor, maps: Tensor, groups: int) -> Tensor:
        """The same as forward(aggregate(features, maps, groups)), often at a fraction of its cost.

        (B, N, C), (B, D, N) -> (B, D/h, outputs).
        """
        locations, channels = features.shape[1:]
        few = 2 * groups * locations <= maps.shape[1] // groups
        if not (few and self._can_fold(features)) or not project_first_is_cheaper(
            locations, channels, maps.shape[1], groups
        ):
            return self.finish(
                aggregate_linear(features, maps, self.first.weight, self.first.bias, groups)
            )
        return self._gather(features, maps, groups)

    def finish(self, hidden: Tensor) -> Tensor:
        """All that follows the first linear layer, (..., hidden) -> (..., outputs)."""
        active = self.norm(hidden.flatten(0, -2)).relu_()
        out: Tensor = self.last(active)
        return out.view(*hidden.shape[:-1], -1)

    def _gather(self, features: Tensor, maps: Tensor, groups: int) -> Tensor:
        """forward_aggregated for few locations: they are normalised before the aggregation."""
        batch, locations, _ = features.shape
        grouped = maps.to(features.dtype).reshape(batch, -1, groups * locations)  # (B, K, h N)
        norm, weight = self._norm(), self.first.weight
        if norm.training:
            # A map sums to 1, so subtracting a vector from all features subtracts it from the
            # aggregate. Without their mean the variance loses no digits to cancellation.
            mean = features.mean((0, 1))
            values = project_locations(features - mean, weight, groups)
            centre, variance = gathered_moments(grouped, values)
            rows = grouped.shape[0] * grouped.shape[1]
            self._update_running(F.linear(mean, weight, self.first.bias) + centre, variance, rows)
            scale = norm.weight * (variance + norm.eps).rsqrt()
            centre = self.first.bias + centre
            values = values * scale + self._offset(centre, scale) / groups
        else:
            scale, offset = self._running()
            values = project_locations(features, weight * scale[:, None], groups)
            values += offset / groups
        return gathered_perceptron(grouped, values, self.last.weight, self.last.bias)

    def _norm(self) -> nn.BatchNorm1d:
        assert isinstance(self.norm, nn.BatchNorm1d)
        return self.norm

    def _can_fold(self, tokens: Tensor) -> bool:
        """Whether the norm is a plain BatchNorm1d in float32: no ShuffleBN groups, no SyncBN.

        Only on a CPU: chunks that fit its cache would be many small kernels on a GPU.
        """
        plain = type(self.norm) is nn.BatchNorm1d and self.norm.momentum is not None
        return plain and tokens.device.type == "cpu" and not torch.is_autocast_enabled("cpu")

    def _folds(self, rows: Tensor) -> bool:
        """Whether rows (M, inputs) are so many that folding the norm is faster."""
        if not self._can_fold(rows):
            return False
        tokens, inputs = rows.shape
        if self.norm.training:
            return moments_are_cheaper(tokens, inputs, self.first.out_features)
        return tokens > 4 * inputs

    def _folded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and bias of the first layer and the norm in one, for rows (M, inputs)."""
        norm, first = self._norm(), self.first
        if norm.training:
            mean = F.linear(rows.mean(0), first.weight, first.bias)
            variance = linear_variance(rows, first.weight)
            self._update_running(mean, variance, len(rows))
            scale = norm.weight * (variance + norm.eps).rsqrt()
            offset = self._offset(mean, scale)
        else:
            scale, offset = self._running()
        return first.weight * scale[:, None], offset

    def _running(self) -> tuple[Tensor, Tensor]:
        """Scale and offset of the norm by its running statistics."""
        norm = self._norm()
        assert norm.running_mean is not None and norm.running_var is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        return scale, self._offset(norm.running_mean, scale)

    def _offset(self, mean: Tensor, scale: Tensor) -> Tensor:
        return self._norm().bias + (self.first.bias - mean) * scale

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor, rows: int) -> None:
        """Update the running statistics as the norm would itself."""
        norm = self._norm()
        if norm.running_mean is None or norm.running_var is None:
            return
        assert norm.momentum is not None and norm.num_batches_tracked is not None
        norm.num_batches_tracked += 1
        # By `data`: torch's own batch norm may have saved them for a backward that ignores them.
        norm.running_mean.data.lerp_(mean, norm.momentum)
        norm.running_var.data.lerp_(variance * (rows / (rows - 1)), norm.momentum)


class DeepMLP(nn.Module):
    """Three linear layers on tokens (..., inputs) -> (..., outputs), the projector of some methods.

    Batch norm and ReLU follow the first two; with `last_norm` a batch norm without weights follows
    the last. `norm` switches all of them off. Statistics are over all leading dimensions together.
    """

    def __init__(
        self, inputs: int, hidden: int, outputs: int, norm: bool = True, last_norm: bool = False
    ) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.norm = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.second = nn.Linear(hidden, hidden)
        self.second_norm = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.last = nn.Linear(hidden, outputs)
        scaled = norm and last_norm
        self.last_norm = nn.BatchNorm1d(outputs, affine=False) if scaled else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.finish(self.first(tokens))

    def forward_aggregated(self, features: Tensor, maps: Tensor, groups: int) -> Tensor:
        """The same as forward(aggregate(features, maps, groups)), in the cheaper order.

        (B, N, C), (B, D, N) -> (B, D/h, outputs).
        """
        return self.finish(
            aggregate_linear(features, maps, self.first.weight, self.first.bias, groups)
        )

    def finish(self, hidden: Tensor) -> Tensor:
        """All that follows the first linear layer, (..., hidden) -> (..., outputs)."""
        active = self.norm(hidden.flatten(0, -2)).relu_()
        active = self.second_norm(self.second(active)).relu_()
        out: Tensor = self.last_norm(self.last(active))
        return out.view(*hidden.shape[:-1], -1)
