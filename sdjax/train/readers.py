"""The input of several processes: a run has a fixed number of readers, and each process holds those whose rows it needs.

What is learnt from then depends neither on the number of processes nor on the shape of the mesh.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding

from sdjax.core.types import Batch, Trace


class Data(Protocol):
    """Endless batches with an exact position."""

    def __next__(self) -> Batch | Trace: ...

    def position(self) -> dict[str, Any]:
        """Where the next batch comes from, as JSON data."""
        ...

    def restore(self, position: dict[str, Any]) -> None:
        """Goes to a position."""
        ...


class Readers(Iterator[Batch | Trace]):
    """This process's readers by number: their rows stand one below the other."""

    def __init__(self, readers: Mapping[int, Data]):
        self._readers = dict(sorted(readers.items()))

    def __next__(self) -> Batch | Trace:
        parts = [next(reader) for reader in self._readers.values()]
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *parts)

    def position(self) -> dict[str, Any]:
        """Where each of them is."""
        return {str(number): reader.position() for number, reader in self._readers.items()}

    def restore(self, positions: dict[str, Any]) -> None:
        """Goes to the positions of these among all readers'."""
        for number, reader in self._readers.items():
            reader.restore(positions[str(number)])


def parts_of(sharding: NamedSharding | None, rows: int) -> int:
    """In how many parts the devices of all processes hold a batch's rows: with as many readers, none is needed in part.

    Fewer may not do: a process's devices are neighbours in the machine, and their rows need not be in the batch.
    """
    if sharding is None:
        return 1
    return len({index[0].indices(rows)[:2] for index in sharding.devices_indices_map((rows,)).values()})


def rows_here(sharding: NamedSharding | None, rows: int) -> np.ndarray:
    """bool[rows]: those of a batch that this process's devices need; without a sharding all."""
    if sharding is None:
        return np.ones(rows, bool)
    needed = np.zeros(rows, bool)
    for index in sharding.addressable_devices_indices_map((rows,)).values():
        needed[index] = True
    return needed


def readers_here(sharding: NamedSharding | None, rows: int, readers: int) -> list[int]:
    """Which of the readers, with an equal part of the rows each, this process needs; processes may share one.

    ValueError where a reader's rows are needed in part.
    """
    by_reader = rows_here(sharding, rows).reshape(readers, -1)
    if (by_reader.any(1) != by_reader.all(1)).any():
        raise ValueError(
            f"readers is {readers}, but this process's devices need only a part of one reader's rows; give as many as "
            f"there are parts of a batch on the mesh ({parts_of(sharding, rows)}), or a multiple"
        )
    return np.flatnonzero(by_reader.all(1)).tolist()
