"""The abstract parameter tree: one source for initialisation, checking, sharding and restore."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path

Init = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]


def normal(scale: float = 0.02) -> Init:
    """An initialiser: independent Gaussians of standard deviation `scale`."""
    return lambda key, shape, dtype: (scale * jax.random.normal(key, shape, jnp.float32)).astype(dtype)


def zeros(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """An initialiser: all zero."""
    del key
    return jnp.zeros(shape, dtype)


def ones(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """An initialiser: all one."""
    del key
    return jnp.ones(shape, dtype)


@dataclass(frozen=True)
class Spec:
    """A leaf of the abstract parameter tree.

    `axes` names each dimension for the sharding rules (None: never sharded), `grain` says in multiples of what it may
    be split (the width of a head; empty: 1).
    `trainable=False` marks what travels with the weights but is not learnt (index maps, masks).
    """

    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[str | None, ...]
    init: Init
    trainable: bool = True
    grain: tuple[int, ...] = ()

    def __post_init__(self):
        if len(self.axes) != len(self.shape):
            raise ValueError(f"Spec: {len(self.shape)} dimensions {self.shape}, but {len(self.axes)} axis names {self.axes}")


def initialise(specs: Any, key: jax.Array) -> Any:
    """Draws every leaf with its own key; call it under `jit` with `out_shardings` to build sharded."""
    leaves, treedef = jax.tree.flatten(specs)
    keys = jax.random.split(key, max(len(leaves), 1))
    return jax.tree.unflatten(treedef, [s.init(k, s.shape, s.dtype) for s, k in zip(leaves, keys, strict=False)])


def check_params(specs: Any, params: Any, owner: str) -> None:
    """Raises ValueError naming every leaf of `params` that is missing, unexpected or of a wrong shape."""
    want = {keystr(path): spec.shape for path, spec in tree_flatten_with_path(specs)[0]}
    have = {keystr(path): tuple(jnp.shape(leaf)) for path, leaf in tree_flatten_with_path(params)[0]}
    faults = [f"missing {name} {shape}" for name, shape in want.items() if name not in have]
    faults += [f"unexpected {name} {shape}" for name, shape in have.items() if name not in want]
    faults += [
        f"{name} has shape {have[name]}, expected {shape}"
        for name, shape in want.items()
        if name in have and have[name] != shape
    ]
    if faults:
        raise ValueError(f"parameters do not fit {owner}: " + "; ".join(faults))
