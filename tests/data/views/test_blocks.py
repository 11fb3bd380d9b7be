"""The order over blocks: every sample once, shuffled, and few blocks for each rank and worker."""

import numpy as np
import pytest

from lewel.data.views.blocks import BLOCK, SPREAD, block_shuffle
from lewel.data.views.loader import Order


def blocks_of_shards(*shards: int) -> np.ndarray:
    """Blocks of BLOCK samples that end with their shard, counted by hand."""
    blocks: list[int] = []
    for samples in shards:
        first = blocks[-1] + 1 if blocks else 0
        blocks += [first + place // BLOCK for place in range(samples)]
    return np.array(blocks, np.int32)


@pytest.mark.parametrize("batch_size", [1, 6, 32, 48, 256])
@pytest.mark.parametrize("shards", [(1,), (31, 33), (1000, 1000, 17)])
def test_every_sample_comes_once(batch_size: int, shards: tuple[int, ...]) -> None:
    blocks = blocks_of_shards(*shards)
    order = block_shuffle(blocks, batch_size, np.random.default_rng(0))
    assert sorted(order.tolist()) == list(range(len(blocks)))


@pytest.mark.parametrize("batch_size", [6, 32, 256])
@pytest.mark.parametrize("shards", [(1,), (31, 33), (1000, 1000, 17)])
@pytest.mark.parametrize("some", [False, True])
def test_the_order_is_that_of_the_first_version(
    batch_size: int, shards: tuple[int, ...], some: bool
) -> None:
    """Runs that were begun by it resume; blocks of a subset need not be complete or sorted."""
    blocks = blocks_of_shards(*shards)
    if some:
        blocks = np.random.default_rng(1).permutation(blocks)[: 1 + len(blocks) // 2]
    draw = np.random.default_rng(0)
    place = draw.permutation(int(blocks.max()) + 1)
    expected = np.argsort(place[blocks], kind="stable")
    width = np.gcd(batch_size, BLOCK)
    full = len(expected) - len(expected) % (SPREAD * batch_size)
    lanes = expected[:full].reshape(-1, SPREAD * width)
    steps = draw.permuted(lanes, axis=1).reshape(-1, batch_size // width, SPREAD, width)
    expected[:full] = steps.swapaxes(1, 2).ravel()
    draw.shuffle(expected[full:])
    assert np.array_equal(block_shuffle(blocks, batch_size, np.random.default_rng(0)), expected)


def test_the_order_depends_only_on_seed_and_epoch() -> None:
    blocks = blocks_of_shards(2048, 500)
    order = Order(len(blocks), 64, seed=5, blocks=blocks)
    again = Order(len(blocks), 64, seed=5, accumulate=2, rank=1, ranks=2, blocks=blocks)
    assert np.array_equal(order.epoch(3), again.epoch(3))
    assert not np.array_equal(order.epoch(3), order.epoch(4))
    other = Order(len(blocks), 64, seed=6, blocks=blocks)
    assert not np.array_equal(order.epoch(3), other.epoch(3))


def test_without_blocks_the_order_is_a_plain_permutation() -> None:
    expected = np.random.Generator(np.random.Philox(np.random.SeedSequence((7, 2))))
    assert np.array_equal(Order(100, 10, 7).epoch(2), expected.permutation(100))


def test_a_step_and_a_rank_need_few_blocks() -> None:
    batch, ranks, samples = 256, 4, 32 * 1024
    blocks = blocks_of_shards(*[8192] * 4)
    per_rank = batch // ranks
    seen: list[set[int]] = []
    for rank in range(ranks):
        order = Order(samples, batch, 0, rank=rank, ranks=ranks, blocks=blocks)
        mine = [[index for _, index in keys] for keys in order.keys(0, order.steps_per_epoch)]
        for step in mine:  # each of its lanes draws from SPREAD blocks
            assert len(set(blocks[step].tolist())) <= per_rank // BLOCK * SPREAD
        seen.append(set(blocks[np.concatenate(mine)].tolist()))
    assert all(len(some) == samples // BLOCK // ranks for some in seen)  # none is fetched twice
    assert set.union(*seen) == set(range(samples // BLOCK))


def test_samples_of_a_block_are_distributed_over_several_steps() -> None:
    blocks = blocks_of_shards(32 * 256)
    order = block_shuffle(blocks, 64, np.random.default_rng(1))
    step = np.empty(len(order), int)
    step[order] = np.arange(len(order)) // 64
    steps_of_block = [len(set(step[blocks == block].tolist())) for block in range(256)]
    assert min(steps_of_block) >= 3 and max(steps_of_block) == SPREAD


def test_data_smaller_than_the_window_is_shuffled_completely() -> None:
    blocks = blocks_of_shards(96)
    first = [int(block_shuffle(blocks, 32, np.random.default_rng(seed))[0]) for seed in range(2000)]
    counts = np.bincount(first, minlength=96)  # 2000 / 96 = 20.8 expected, standard deviation 4.5
    assert counts.min() > 0 and counts.max() < 48
