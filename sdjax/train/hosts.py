"""What the processes of one run tell each other; with a single process nothing is sent."""

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Sharding

from sdjax.core.types import Batch, Trace


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


def anywhere(flag: bool) -> bool:
    """Whether it is true in any process; all of them must ask."""
    return any(gather(flag))


def meet(name: str) -> None:
    """Waits until every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def own_copy(params: Any) -> Any:
    """Parameters that are the same on every device, on this process's first one: each process then decodes by itself."""
    return jax.tree.map(lambda x: x.addressable_data(0) if x.is_fully_replicated else x, params)


def whole_batch(batch: Batch | Trace, sharding: Sharding | None) -> Batch | Trace:
    """The batch of all processes from each one's rows; without a sharding, these rows alone."""
    if sharding is None:
        return batch
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), batch)
