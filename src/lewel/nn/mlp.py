"""The two-layer perceptron that the paper uses for every projector and predictor."""

from torch import Tensor, nn

from lewel.ops.aggregate import aggregate_linear


class MLP(nn.Module):
    """Linear, batch norm, ReLU, linear, on tokens (..., inputs) -> (..., outputs).

    Batch norm takes its statistics over all leading dimensions together; `norm` switches it off.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, norm: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.norm = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.last = nn.Linear(hidden, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.finish(self.first(tokens))

    def forward_aggregated(self, features: Tensor, maps: Tensor, groups: int) -> Tensor:
        """The same as forward(aggregate(features, maps, groups)), often at a fraction of its cost.

        (B, N, C), (B, D, N) -> (B, D/h, outputs).
        """
        return self.finish(
            aggregate_linear(features, maps, self.first.weight, self.first.bias, groups)
        )

    def finish(self, hidden: Tensor) -> Tensor:
        """All that follows the first linear layer, (..., hidden) -> (..., outputs)."""
        active = self.norm(hidden.flatten(0, -2)).relu_()
        out: Tensor = self.last(active)
        return out.view(*hidden.shape[:-1], -1)
