"""Random orders."""

import numpy as np
import pytest

from lewel.ops.randomness import generator, permutation


@pytest.mark.parametrize("key", [(0,), (0, 0, 0, 7), (2**32 - 1, 3), (2**32, 3), (2**62, 1, 2)])
def test_a_key_seeds_as_numpy_seeds_by_its_numbers(key: tuple[int, ...]) -> None:
    expected = np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
    assert np.array_equal(generator(*key).random(9), expected.random(9))


def test_orders_in_half_of_the_memory_are_the_same() -> None:
    for count in (0, 1, 2, 1000, 70_000):
        order = permutation(generator(3, 5), count)
        assert order.dtype == np.int32
        assert np.array_equal(order, generator(3, 5).permutation(count))
