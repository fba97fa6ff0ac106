"""The one attention primitive: queries against (committed cache) ∪ (staged block under a small mask).

Prefill, chain, tree, beam and bidirectional block differ only in the block's mask. Masks are built once a
forward pass and shared by its layers; no array of shape [T, S] exists unless a layer has a sliding window.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.cache import KV
from sdjax.core.linear import einsum_f32

NEVER = -1e30  # finite: a padding row that sees nothing stays finite instead of NaN


def cache_mask(length: Int[Array, " B"], prefix: int, positions: Int[Array, "B T"], window: int | None) -> Bool[Array, "B t S"]:
    """Which cache rows each query sees: the committed ones, within `window` of it (t = 1 without a window)."""
    rows = jnp.arange(prefix)
    seen = (rows < length[:, None])[:, None]
    if window is None:
        return seen
    return seen & (positions[:, :, None] - rows < window)


def block_mask(
    mask: Bool[Array, "b T U"], positions: Int[Array, "B T"], block_positions: Int[Array, "B U"], window: int | None
) -> Bool[Array, "b T U"]:
    """Which rows of the block each query sees: those the caller allows, within `window` of it."""
    if window is None:
        return mask
    return mask & (positions[:, :, None] - block_positions[:, None] < window)


def attend(
    q: Float[Array, "B T H K"],
    cache: KV,
    seen: Bool[Array, "B t S"],
    block: KV,
    mask: Bool[Array, "b T U"],
    scale: float,
) -> Float[Array, "B T H K"]:
    """Softmax attention over both segments at once; scores and softmax are float32.

    `cache` may be longer than `seen`: its first S rows are read. `block` is scratch rows, then the new tokens.
    """
    prefix = seen.shape[-1]
    b, t, h, k = q.shape
    groups = cache.k.shape[1]
    q = q.reshape(b, t, groups, h // groups, k)
    in_cache = einsum_f32("btgmk,bgsk->bgmts", q, cache.k[:, :, :prefix]) * scale
    in_block = einsum_f32("btgmk,bguk->bgmtu", q, block.k) * scale
    in_cache = jnp.where(seen[:, None, None], in_cache, NEVER)
    in_block = jnp.where(mask[:, None, None], in_block, NEVER)
    top = jnp.maximum(in_cache.max(-1, keepdims=True), in_block.max(-1, keepdims=True))
    in_cache, in_block = jnp.exp(in_cache - top), jnp.exp(in_block - top)
    total = in_cache.sum(-1) + in_block.sum(-1)
    mix = einsum_f32("bgmts,bgsk->btgmk", in_cache.astype(q.dtype), cache.v[:, :, :prefix])
    mix += einsum_f32("bgmtu,bguk->btgmk", in_block.astype(q.dtype), block.v)
    return (mix / jnp.moveaxis(total, 3, 1)[..., None]).astype(q.dtype).reshape(b, t, h, k)
