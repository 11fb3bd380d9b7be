"""The k-NN probe of a run: how good the backbone is now, where there are labels."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lewel.data.sources import Source
from lewel.eval.features import extract_features
from lewel.eval.knn import knn_accuracy
from lewel.nn.backbone import Backbone
from lewel.ops.randomness import generator
from lewel.ops.ranks import gather, rank, ranks


class KnnProbe:
    """Accuracy of queries from `val` by their neighbours in a bank from `train`.

    Each rank extracts its share of the features, and all have all of them in the end.
    """

    def __init__(
        self,
        backbone: Backbone,
        train: Source,
        val: Source,
        *,
        bank: int,
        queries: int,
        neighbours: int,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        workers: int,
    ) -> None:
        self.backbone, self.train, self.val = backbone, train, val
        self.bank, self.queries = choose(len(train), bank), choose(len(val), queries)
        self.neighbours, self.size, self.mean, self.std = neighbours, size, mean, std
        self.device, self.workers = device, workers
        self.done = 0

    def __call__(self, report: Callable[[str], None]) -> dict[str, float]:
        total = (len(self.bank) + len(self.queries)) // ranks()
        self.done = 0

        def advance(images: int) -> None:
            self.done += images
            report(f"k-NN: {min(self.done, total):,} of {total:,} images")

        known, labels = self.features(self.train, self.bank, advance)
        asked, truth = self.features(self.val, self.queries, advance)
        return {"knn": knn_accuracy(known, labels, asked, truth, neighbours=self.neighbours)}

    def features(
        self, source: Source, indices: np.ndarray, advance: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        """Features (N, C) and labels (N,) of all images that can be read."""
        most = -(-len(indices) // ranks())  # all ranks have as many: some take an image twice
        mine = np.resize(indices, most * ranks()).reshape(most, ranks())[:, rank()]
        rows, readable = extract_features(
            self.backbone,
            source,
            mine,
            size=self.size,
            mean=self.mean,
            std=self.std,
            device=self.device,
            workers=self.workers,
            advance=advance,
        )
        order = torch.arange(most * ranks()).view(ranks(), most).T.flatten()[: len(indices)]
        rows = gather(rows.to(self.device)).cpu()[order]
        readable = gather(readable.to(self.device)).cpu()[order]
        assert source.labels is not None
        return rows[readable], torch.from_numpy(source.labels[indices])[readable]


def choose(total: int, most: int) -> np.ndarray:
    """At most so many of all indices, always the same ones."""
    return np.sort(generator(total, most).permutation(total)[:most])
