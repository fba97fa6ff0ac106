"""What the processes of one run tell each other; with a single process nothing is sent."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Sharding

from sdjax.core.types import Batch, Trace
from sdjax.mesh.start import speaks


def gather(value: Any) -> list[Any]:
    """Every process's JSON data, in the order of processes."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(len(text)))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(text)] = text
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]


def told_by_first(value: Any) -> Any:
    """The first process's JSON data, in all of them."""
    if jax.process_count() == 1:
        return value
    text = np.frombuffer(json.dumps(value if speaks() else None).encode(), np.uint8)
    whole = np.zeros(int(multihost_utils.broadcast_one_to_all(np.array(len(text)))), np.uint8)
    if speaks():
        whole[:] = text
    return json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(whole))))


def anywhere(flag: bool) -> bool:
    """Whether it is true in any process; all of them must ask."""
    return any(gather(flag))


def meet(name: str) -> None:
    """Waits until every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def seen_by_all(folder: Any) -> bool:
    """Whether what the first process writes into a folder (a Path or epath.Path) is seen by all; all must ask."""
    if jax.process_count() == 1:
        return True
    mark = folder / f".seen{told_by_first(time.time_ns())}"
    if speaks():
        mark.write_text("")
    meet("mark written")
    seen = all(gather(mark.exists()))
    if speaks():
        mark.unlink()
    return seen


@contextmanager
def first_process_first(name: str) -> Iterator[None]:
    """The others wait until the first is through: what it has made they find."""
    if not speaks():
        meet(name)
    yield
    if speaks():
        meet(name)


def from_first(read: Callable[[], Any], specs: Any) -> Any:
    """What the first process reads, in all of them: the others may not see its files."""
    if jax.process_count() == 1:
        return read()
    found = read() if speaks() else jax.tree.map(lambda spec: np.zeros(spec.shape, spec.dtype), specs)
    return jax.tree.map(multihost_utils.broadcast_one_to_all, found)  # leaf by leaf: each is whole on every chip for a while


def whole_batch(batch: Batch | Trace, sharding: Sharding | None) -> Batch | Trace:
    """The batch of all processes from each one's rows; without a sharding, these rows alone."""
    if sharding is None:
        return batch
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), batch)
