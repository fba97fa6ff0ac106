"""What Medusa and Hydra share: a head for each place ahead, of residual blocks, trained on what stands there.

Head k (from 1) reads the state at t and guesses the token at t + k + 1: the one behind t is the target's own. Its
vocabulary matrix is one for all heads, or each head's own.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sdjax.core.linear import product
from sdjax.core.spec import Spec, zeros
from sdjax.core.types import rows
from sdjax.drafters.head import DraftHead
from sdjax.targets.decoder import Decoder
from sdjax.trees.tree import Tree


def check_heads(tree: Tree, heads: int | None, layers: int, head: DraftHead, own_heads: bool) -> None:
    """Raises ValueError for a tree deeper than the heads, heads without a block, or own matrices that never change."""
    if heads is not None and tree.depth > heads:
        raise ValueError(f"the tree is {tree.depth} deep, but there are {heads} heads; train more or cut the tree")
    if layers < 1:
        raise ValueError(f"layers is {layers}; a head has at least one block")
    if own_heads and not head.trained:
        raise ValueError("own_heads without training are copies of one matrix; take DraftHead(trained=True), or share it")


def block_specs(target: Decoder, count: int) -> list[dict[str, Spec]]:
    """Residual blocks that are the identity until trained."""
    e, dtype = target.width, target.matrix_dtype
    block = {"w": Spec((e, e), dtype, (None, "embed"), zeros), "b": Spec((e,), dtype, (None,), zeros)}
    return [dict(block) for _ in range(count)]


def residual_block(block: dict[str, Array], x: Float[Array, "... E"]) -> Float[Array, "... E"]:
    """SiLU(W x + b) + x."""
    return jax.nn.silu(product(x, block["w"], block["b"])).astype(x.dtype) + x


def matrix_specs(head: DraftHead, target: Decoder, heads: int, own_heads: bool) -> list[dict[str, Spec]]:
    """The vocabulary matrices: one for all heads, or one for each."""
    return [head.specs(target) for _ in range(heads if own_heads else 1)]


def initial_matrices(
    head: DraftHead, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], like: Sequence[Any]
) -> list[dict[str, Array]]:
    """As many vocabulary matrices as `like` has, each copied from the target."""
    first = head.initial(target, target_params, counts)
    return [jax.tree.map(jnp.copy, first) for _ in like]


def matrix_of(matrices: Sequence[Any], k: int) -> Any:
    """The vocabulary matrix of the k-th head (from 0)."""
    return matrices[k % len(matrices)]


def take_last(x: Float[Array, "B T E"], count: Int[Array, " B"], before: Float[Array, "B E"]) -> Float[Array, "B E"]:
    """Row count[b] - 1 of every sequence; what was there before, where nothing counts."""
    return jnp.where(count[:, None] > 0, rows(x, jnp.maximum(count - 1, 0)[:, None])[:, 0], before)
