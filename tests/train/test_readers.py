"""Readers of a run's data: the batches are the same however many processes hold them."""

import numpy as np
import pytest

from sdjax.train.readers import Readers, readers_here, rows_here
from sdjax.train.tiny_world import Windows

ROWS, READERS = 8, 4
TEXT = np.random.default_rng(0).integers(0, 29, 1000).astype(np.uint8)


def held(*numbers):
    """A process with some of the readers."""
    return Readers({i: Windows(TEXT, ROWS // READERS, 16, seed=i) for i in numbers})


class Sharding:
    """A sharding, seen by a process whose devices hold these parts of the rows."""

    def __init__(self, *parts):
        self.parts = parts

    def addressable_devices_indices_map(self, shape):
        return {i: (slice(*part),) for i, part in enumerate(self.parts)}

    def devices_indices_map(self, shape):
        return {i: (slice(i, i + 1),) for i in range(*shape)}


def test_processes_share_the_batches_of_one():
    one, two = held(*range(READERS)), (held(0, 1), held(2, 3))
    for _ in range(3):
        whole = next(one)
        assert np.array_equal(whole.tokens, np.concatenate([next(part).tokens for part in two]))
    assert one.position() == two[0].position() | two[1].position()


def test_another_number_of_processes_goes_on_where_it_was():
    one = held(*range(READERS))
    next(one)
    position, expected = one.position(), next(one).tokens
    parts = (held(0), held(1), held(2, 3))
    for part in parts:
        part.restore(position)
    assert np.array_equal(np.concatenate([next(part).tokens for part in parts]), expected)


def test_readers_are_where_their_rows_are():
    assert readers_here(None, ROWS, READERS) == [0, 1, 2, 3]
    assert readers_here(Sharding((0, 2), (2, 4)), ROWS, READERS) == [0, 1]
    assert readers_here(Sharding((4, 8), (4, 8)), ROWS, 2) == [1], "devices that share rows"
    assert rows_here(Sharding((0, 2)), ROWS).tolist() == [True] * 2 + [False] * 6
    with pytest.raises(ValueError, match=r"readers is 2, but .* only a part .*\(8\), or a multiple"):
        readers_here(Sharding((0, 2)), ROWS, 2)
