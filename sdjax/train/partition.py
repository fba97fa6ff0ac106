"""Which parameters are learnt, and the arithmetic they are learnt in.

A run's parameters are one pytree; a tuple of bools, one a leaf, says which of them are learnt. What is learnt is kept
in float32 (the masters); each loss casts it to the dtype that the specs name. Maps of ids are never differentiated.
"""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp

Learnt = tuple[bool, ...]


def is_float(leaf: Any) -> bool:
    """Whether a parameter, or its spec, can be learnt at all."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def learnt_of(specs: Any, frozen: Sequence[str] = ()) -> Learnt:
    """The leaves that their spec lets be learnt, without those whose path one of the globs `frozen` matches.

    A path reads "drafter.layers.0.q". ValueError for a glob that matches nothing.
    """
    leaves = jax.tree_util.tree_leaves_with_path(specs)
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    for glob in frozen:
        if not any(fnmatchcase(path, glob) for path in paths):
            near = difflib.get_close_matches(glob, paths, 1, 0.3)
            raise ValueError(f"frozen: no parameter matches {glob!r}" + (f"; there is {near[0]!r}" if near else ""))
    held = [any(fnmatchcase(path, glob) for glob in frozen) for path in paths]
    return tuple(spec.trainable and is_float(spec) and not kept for (_, spec), kept in zip(leaves, held, strict=True))


def matrices_of(specs: Any) -> tuple[bool, ...]:
    """The leaves that are linear maps: no vectors, no tables with a row a token, no stacks with a row a tap."""
    return tuple(
        len(spec.shape) == 2 and min(spec.shape) > 1 and not {"vocab", "tap"} & set(spec.axes)
        for spec in jax.tree.leaves(specs)
    )


def split(params: Any, learnt: Learnt) -> tuple[Any, Any]:
    """What is learnt and what is not: two trees of one shape, each with None where the other has a leaf."""
    leaves, treedef = jax.tree.flatten(params)
    pairs = list(zip(leaves, learnt, strict=True))
    return (
        jax.tree.unflatten(treedef, [leaf if yes else None for leaf, yes in pairs]),
        jax.tree.unflatten(treedef, [None if yes else leaf for leaf, yes in pairs]),
    )


def merge(one: Any, other: Any) -> Any:
    """The inverse of `split`."""
    absent = lambda leaf: leaf is None
    return jax.tree.map(lambda a, b: b if a is None else a, one, other, is_leaf=absent)


def masters(params: Any, learnt: Learnt) -> Any:
    """A copy of the parameters, float32 where they are learnt."""
    leaves, treedef = jax.tree.flatten(params)
    copies = [jnp.array(leaf, jnp.float32 if yes else leaf.dtype) for leaf, yes in zip(leaves, learnt, strict=True)]
    return jax.tree.unflatten(treedef, copies)


def working(specs: Any, params: Any) -> Any:
    """The parameters in the dtypes that their specs name: what losses and decoding run on."""
    return jax.tree.map(lambda spec, leaf: leaf.astype(spec.dtype), specs, params)
