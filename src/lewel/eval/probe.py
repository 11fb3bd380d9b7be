"""The k-NN probe of a run: how good the backbone is now, where there are labels."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lewel.data.sources import Source
from lewel.eval.features import Extractor
from lewel.eval.knn import knn_accuracy
from lewel.ops.randomness import generator
from lewel.ops.ranks import ranks


class KnnProbe:
    """Accuracy of queries from `val` by their neighbours in a bank from `train`."""

    def __init__(
        self,
        extractor: Extractor,
        train: Source,
        val: Source,
        *,
        bank: int,
        queries: int,
        neighbours: int,
    ) -> None:
        self.extractor, self.train, self.val = extractor, train, val
        self.bank, self.queries = choose(len(train), bank), choose(len(val), queries)
        self.neighbours = neighbours

    def __call__(self, report: Callable[[str], None]) -> dict[str, float]:
        total = (len(self.bank) + len(self.queries)) // ranks()
        done = 0

        def advance(images: int) -> None:
            nonlocal done
            done += images
            report(f"k-NN: {min(done, total):,} of {total:,} images")

        known, labels = self.features(self.train, self.bank, advance)
        asked, truth = self.features(self.val, self.queries, advance)
        return {"knn": knn_accuracy(known, labels, asked, truth, neighbours=self.neighbours)}

    def features(
        self, source: Source, indices: np.ndarray, advance: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        """Features (N, C) and labels (N,) of all images that can be read."""
        rows, readable = self.extractor.all(source, indices, advance)
        assert source.labels is not None
        return rows[readable], torch.from_numpy(source.labels[indices])[readable]


def choose(total: int, most: int) -> np.ndarray:
    """At most so many of all indices, always the same ones."""
    return np.sort(generator(total, most).permutation(total)[:most])
