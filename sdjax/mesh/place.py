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
    """Arrays that are all on these devices already are laid out anew; of others, those that are not in place are spread."""
    is_on = lambda x, sharding: isinstance(x, jax.Array) and x.sharding.device_set == sharding.device_set
    if all(jax.tree.leaves(jax.tree.map(is_on, tree, shardings))):
        return jax.jit(unchanged, out_shardings=shardings)(tree)
    stays = lambda x, sharding: is_on(x, sharding) and x.sharding.is_equivalent_to(sharding, x.ndim)
    return jax.tree.map(lambda x, sharding: x if stays(x, sharding) else spread(x, sharding), tree, shardings)


def unchanged(tree: Any) -> Any:
    return tree


def on_host(tree: Any) -> Any:
    """Numpy arrays, whole; where parts are with other processes, all must ask."""
    leaves, treedef = jax.tree.flatten(tree)
    near = [getattr(leaf, "is_fully_addressable", True) for leaf in leaves]
    here = iter(jax.device_get([leaf for leaf, is_near in zip(leaves, near, strict=True) if is_near]))
    found = [next(here) if n else multihost_utils.process_allgather(x, tiled=True) for x, n in zip(leaves, near, strict=True)]
    return jax.tree.unflatten(treedef, found)
