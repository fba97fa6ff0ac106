"""The one attention primitive: queries against (committed cache) ∪ (staged block under a small mask).

Prefill, chain, tree, beam and bidirectional block differ only in the block's mask. Masks are built once a
forward pass and shared by its layers; no array of shape [T, S] exists unless a layer has a sliding window.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.cache import KV
from sdjax.core.linear import einsum_f32

NEVER = -1e30  # finite: a padding row that sees nothing stays finite instead of NaN
WIDE = 64  # queries from which scores are too large for a CPU's caches


def cache_mask(length: Int[Array, " B"], rows: int, positions: Int[Array, "B T"], window: int | None) -> Bool[Array, "B t S"]:
    """Which cache rows each query sees: the committed ones, within `window` of it (t = 1 without a window)."""
    row = jnp.arange(rows)
    seen = (row < length[:, None])[:, None]
    if window is None:
        return seen
    return seen & (positions[:, :, None] - row < window)


def block_mask(
    mask: Bool[Array, "b T U"], positions: Int[Array, "B T"], block_positions: Int[Array, "B U"], window: int | None
) -> Bool[Array, "b T U"]:
    """Which rows of the block each query sees: those the caller allows, within `window` of it; a window reaches back only."""
    if window is None:
        return mask
    back = positions[:, :, None] - block_positions[:, None]
    return mask & (back >= 0) & (back < window)


def attend(
    q: Float[Array, "B T H K"],
    cache: KV,
    seen: Bool[Array, "B t S"],
    block: KV,
    mask: Bool[Array, "b T U"],
    scale: float,
) -> Float[Array, "B T H K"]:
    """Softmax attention over both segments at once; scores and softmax are float32.

    `block` is scratch rows, then the new tokens.
    """
    t, groups = q.shape[1], cache.k.shape[1]
    shared = q.shape[2] // groups
    queries = fold_heads(q * scale, groups)
    over = one_by_one if t >= WIDE else jax.vmap

    def of_sequence(q: Array, cache: KV, seen: Array, block: KV, mask: Array) -> Array:
        seen, mask = every_head(seen, shared), every_head(mask, shared)
        return over(jax.checkpoint(lambda q, cache, block: mix(q, cache, seen, block, mask)))(q, cache, block)

    whole = lambda mask: jnp.broadcast_to(mask, (q.shape[0], *mask.shape[1:]))
    return unfold_heads(over(of_sequence)(queries, cache, whole(seen), block, whole(mask)), t)


def mix(
    q: Float[Array, "n K"], cache: KV, seen: Bool[Array, "#n S"], block: KV, mask: Bool[Array, "#n U"]
) -> Float[Array, "n K"]:
    """One sequence's queries of one kv head: a softmax over cache and block together."""
    in_cache = jnp.where(seen, einsum_f32("nk,sk->ns", q, cache.k), NEVER)
    in_block = jnp.where(mask, einsum_f32("nk,uk->nu", q, block.k), NEVER)
    top = lax.stop_gradient(jnp.maximum(in_cache.max(-1, keepdims=True), in_block.max(-1, keepdims=True)))
    in_cache, in_block = jnp.exp(in_cache - top), jnp.exp(in_block - top)
    total = in_cache.sum(-1, keepdims=True) + in_block.sum(-1, keepdims=True)
    mixed = einsum_f32("ns,sk->nk", in_cache.astype(q.dtype), cache.v)
    mixed += einsum_f32("nu,uk->nk", in_block.astype(q.dtype), block.v)
    return (mixed / total).astype(q.dtype)


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` over leading axes, like vmap; on a CPU one after the other, so that its scores stay in the caches."""

    def over(*arguments: Any) -> Any:
        in_turn = lambda *arguments: lax.map(lambda one: function(*one), arguments)
        return lax.platform_dependent(*arguments, cpu=in_turn, default=jax.vmap(function))

    return over


def fold_heads(q: Float[Array, "B T H K"], groups: int) -> Float[Array, "B G n K"]:
    """The queries that share a kv head side by side, n = H/G · T: both products are then plain batched matrices."""
    b, t, h, k = q.shape
    return q.reshape(b, t, groups, h // groups, k).transpose(0, 2, 3, 1, 4).reshape(b, groups, -1, k)


def unfold_heads(x: Float[Array, "B G n K"], t: int) -> Float[Array, "B T H K"]:
    """The inverse of `fold_heads`."""
    b, groups, n, k = x.shape
    return x.reshape(b, groups, n // t, t, k).transpose(0, 3, 1, 2, 4).reshape(b, t, -1, k)


def every_head(mask: Bool[Array, "t S"], shared: int) -> Bool[Array, "#n S"]:
    """A mask of queries for the folded ones, `shared` heads a kv head; one that is the same for all queries stays so."""
    return mask if mask.shape[0] == 1 else jnp.tile(mask, (shared, 1))
