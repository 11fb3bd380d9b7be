"""The nearest neighbours of a few images of a run, before and after its training."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from lewel.config.pretrain import PretrainConfig
from lewel.config.resolve import read_config
from lewel.config.settings import storage_of
from lewel.data.sources.file_list import Lists
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.open import open_data
from lewel.data.sources.source import Data, Source
from lewel.data.views.transform import whole_view
from lewel.evaluate.features import Extractor
from lewel.evaluate.knn import nearest
from lewel.evaluate.knn_probe import choose
from lewel.interop.backbones import Network, find_network, open_backbone
from lewel.interop.published import find_published
from lewel.interop.weights import load_weights
from lewel.nn.backbone import Backbone
from lewel.ops.randomness import generator, seed_of
from lewel.pages.neighbours import Neighbours, Query, Thumb
from lewel.train.run_folder import RunFolder

QUERIES, NEAREST, THUMB = 6, 5, 128  # images, neighbours of each, and pixels of them
BANK = (50, 500)  # the fewest and the most images that neighbours are searched in
WORK = 2e12  # floating-point operations of both networks: some seconds on a few cores
CPU = torch.device("cpu")

Indices = NDArray[np.int64]


def neighbours_of_run(run: Path) -> Neighbours | None:
    """Computed on a part of the k-NN bank; None before the first checkpoint."""
    folder = RunFolder(run)
    if not (folder.config.exists() and folder.backbone.exists()):
        return None
    config, network = read_config(folder.config), find_network(run)
    data = opened(config, config.image_size, run)
    bank_source, query_source = sources(data)
    queries, bank = select(bank_source, query_source, config.knn.bank)
    after = open_backbone(run, network)
    bank = bank[choose(len(bank), affordable(after, network.image_size))]
    if not len(bank) or not len(queries):
        return None
    nets = (initial(network, config), after)
    found = [similar(net, network, bank_source, bank, query_source, queries) for net in nets]
    shown = bank_source, query_source
    if config.data == "scenes":  # drawn at the size that they are shown at
        shown = sources(opened(config, max(THUMB, config.image_size), run))
    drawn = [[thumbs(shown[0], bank[row]) for row in rows] for rows in found]
    pairs = zip(thumbs(shown[1], queries), *drawn, strict=True)
    return Neighbours(
        tuple(Query(one, before, later) for one, before, later in pairs),
        bank=len(bank),
        held_out=data.val is not None,
        other_weights=config.init is not None,
    )


def opened(config: PretrainConfig, image_size: int, run: Path) -> Data:
    """The data of a run."""
    return open_data(
        config.data,
        image_size=image_size,
        limit=config.limit,
        classes=config.classes,
        storage=storage_of(config),
        lists=Lists.beside(run),
    )


def sources(data: Data) -> tuple[Source, Source]:
    """The sources of bank and queries: training and validation set, or the same without labels."""
    if data.train is None or data.val is None:
        return data.unlabelled, data.unlabelled
    return data.train, data.val


def select(bank: Source, queries: Source, most: int) -> tuple[Indices, Indices]:
    """The indices of readable queries, of different classes if possible, and of the k-NN bank."""
    order = generator(len(queries), QUERIES).permutation(len(queries))[: 100 * QUERIES]
    if queries.labels is not None:  # the first image of each class, then all others
        _, first = np.unique(queries.labels[order], return_index=True)
        order = np.concatenate([order[np.sort(first)], np.delete(order, first)])
    readable = (index for index in order.tolist() if is_readable(queries, index))
    picked = np.array(list(islice(readable, QUERIES)), np.int64)
    indices = choose(len(bank), most)
    return picked, np.setdiff1d(indices, picked) if bank is queries else indices


def is_readable(source: Source, index: int) -> bool:
    """Whether an image is not corrupt."""
    try:
        source.read(index)
    except UnreadableImage:
        return False
    return True


def affordable(backbone: Backbone, image_size: int) -> int:
    """How many images of a bank both networks can be applied to within WORK operations."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        backbone(torch.zeros(1, 3, image_size, image_size))
    fewest, most = BANK
    return int(np.clip(WORK / (2 * max(1, counter.get_total_flops())), fewest, most))


def initial(network: Network, config: PretrainConfig) -> Backbone:
    """The network that the run began with; raises UserError where its weights are gone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(config.seed))
        built = network.build().eval()
    if config.init is not None:
        published = find_published(config.init)
        file = published.path if published else Path(config.init)
        load_weights(built.net, file)
    return built


def similar(
    backbone: Backbone,
    network: Network,
    bank_source: Source,
    bank: Indices,
    query_source: Source,
    queries: Indices,
) -> Indices:
    """The places in the bank of the images nearest to each query, (Q, k)."""
    extractor = Extractor(
        backbone, network.image_size, network.mean, network.std, CPU, batch_size=50
    )
    rows, readable = extractor.features(bank_source, bank)
    wanted, _ = extractor.features(query_source, queries)
    places = torch.arange(len(bank))[readable]
    found: Indices = places[nearest(rows[readable], wanted, NEAREST)].numpy()
    return found


def thumbs(source: Source, indices: Sequence[int] | Indices) -> tuple[Thumb, ...]:
    """Images as they are evaluated, with their classes."""
    found = []
    for index in map(int, indices):
        pixels = whole_view(source.read(index), THUMB).permute(1, 2, 0).contiguous().numpy()
        known = source.labels is not None and source.classes is not None
        label = source.classes[source.labels[index]] if known else None  # type: ignore[index]
        found.append(Thumb(source.describe(index), label, pixels))
    return tuple(found)
