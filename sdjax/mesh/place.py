"""Arrays to a mesh, between layouts of it, and back to the host: with one process or many."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def spread(tree: Any, shardings: Any) -> Any:
    """Arrays that every process holds whole, onto the devices: each gets its own part, nothing is sent between hosts."""

    def put(x: Any, sharding: Any) -> jax.Array:
        whole = np.asarray(x)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(put, tree, shardings)


def lay_out(tree: Any, shardings: Any) -> Any:
    """Each array as it is where it is in place, laid out anew where it is on these devices, and else spread.

    One that is in place by another mesh's words is said in this one's: in a program of two meshes JAX may find no names for
    how results are split.
    """

    def placed(x: Any, sharding: Any) -> jax.Array:
        if not isinstance(x, jax.Array) or x.sharding.device_set != sharding.device_set:
            return spread(x, sharding)
        if x.sharding == sharding:
            return x
        if x.sharding.is_equivalent_to(sharding, x.ndim):
            return jax.make_array_from_single_device_arrays(x.shape, sharding, [part.data for part in x.addressable_shards])
        return jax.jit(unchanged, out_shardings=sharding)(x)

    return jax.tree.map(placed, tree, shardings)


def unchanged(x: jax.Array) -> jax.Array:
    return x


def on_host(tree: Any) -> Any:
    """Numpy arrays, whole; where parts are with other processes, all must ask."""
    leaves, treedef = jax.tree.flatten(tree)
    near = [getattr(leaf, "is_fully_addressable", True) for leaf in leaves]
    here = iter(jax.device_get([leaf for leaf, is_near in zip(leaves, near, strict=True) if is_near]))
    found = [next(here) if n else multihost_utils.process_allgather(x, tiled=True) for x, n in zip(leaves, near, strict=True)]
    return jax.tree.unflatten(treedef, found)
