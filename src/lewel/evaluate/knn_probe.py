"""The k-NN probe of a run: accuracy of the current backbone, where there are labels."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lewel.data.sources.source import Source, labels_at
from lewel.evaluate.features import Extractor
from lewel.evaluate.knn import knn_accuracy
from lewel.ops.randomness import generator, permutation
from lewel.ops.ranks import on_rank_0, ranks


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

        bank, labels = self.features(self.train, self.bank, advance)
        queries, targets = self.features(self.val, self.queries, advance)

        def work(beat: Callable[[], None]) -> float:
            return knn_accuracy(bank, labels, queries, targets, neighbours=self.neighbours)

        return {"knn": on_rank_0(work, self.extractor.device)}

    def features(
        self, source: Source, indices: np.ndarray, advance: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        """Features (N, C) and labels (N,) of all images that can be read, on rank 0's device."""
        rows, readable = self.extractor.gathered_features(source, indices, advance)
        labels = torch.from_numpy(labels_at(source, indices))[readable].to(rows.device)
        return rows[readable.to(rows.device)] if len(rows) else rows, labels


def choose(total: int, most: int) -> np.ndarray:
    """At most `most` of all indices, always the same ones."""
    return np.sort(permutation(generator(total, most), total)[:most].astype(np.int64))
