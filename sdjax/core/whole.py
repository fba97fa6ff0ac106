"""What every chip of a group has whole: on a mesh, a word to the compiler against splits that are not worth their exchanges."""

import math
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

SPLIT = ("data", "fsdp"), ("model",)  # the mesh axes of sequences and of kv heads, as sdjax.mesh.layout has them


def ways(axes: tuple[str, ...]) -> list[int]:
    """In how many parts each of these axes of the mesh that is set splits."""
    shape = jax.sharding.get_abstract_mesh().shape
    return [shape.get(axis, 1) for axis in axes]


def whole(tree: Any) -> Any:
    """Arrays that are split along their first axis (sequences) at most, where a mesh is set (`jax.set_mesh`); else as they are.

    Few and small ones are split by XLA as their source was, or as what follows might like, by node or by rank among children:
    each operation on them is then an exchange.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return tree
    spec = lambda x: PartitionSpec(PartitionSpec.UNCONSTRAINED, *(None,) * (x.ndim - 1)) if x.ndim else PartitionSpec()
    return jax.lax.with_sharding_constraint(tree, jax.tree.map(spec, tree))


def whole_heads(rows: Float[Array, "B G A K"]) -> Float[Array, "B G A K"]:
    """Rows for a cache that is whole in every group, for its heads do not divide over `model`: else as they are.

    Were they split, XLA would write them into parts of the cache and gather it.
    """
    return rows if rows.shape[1] % math.prod(ways(SPLIT[1])) == 0 else whole(rows)
