"""Attention of a drafter that is unrolled in training as it drafts: what EAGLE-3 and multi-token modules share."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.attention import NEVER, fold_heads, one_by_one, unfold_heads
from sdjax.core.cache import KV
from sdjax.core.linear import einsum_f32


def attend_unrolled(
    q: Float[Array, "B T H K"], kept: KV, now: Int[Array, ""] | int, mask: Bool[Array, "b T T"], scale: float
) -> Float[Array, "B T H K"]:
    """At step `now`, row r sees step 0's rows under `mask` and, of every later step so far, row r alone.

    `kept` holds all N steps' rows, [N B G T K]. One softmax over [mask | I | I | ...] (EAGLE-3, Fig. 6); the identities
    are products row by row, so that T + N scores stand for a row instead of N · T.
    """
    groups = kept.k.shape[2]
    queries = fold_heads(q * scale, groups)
    kept = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), kept)  # B G N T K
    whole = jnp.broadcast_to(mask, (q.shape[0], *mask.shape[1:]))

    def of_sequence(q: Array, kept: KV, mask: Array) -> Array:
        return one_by_one(jax.checkpoint(lambda q, kept: mix_unrolled(q, kept, now, mask)))(q, kept)

    return unfold_heads(one_by_one(of_sequence)(queries, kept, whole), q.shape[1])


def mix_unrolled(q: Float[Array, "n K"], kept: KV, now: Int[Array, ""] | int, mask: Bool[Array, "T T"]) -> Float[Array, "n K"]:
    """One sequence's queries of one kv head, n = heads that share it · T; `kept` [N T K]."""
    steps, t, width = kept.k.shape
    heads = q.reshape(-1, t, width)
    ran = (jnp.arange(steps) > 0) & (jnp.arange(steps) <= now)
    wide = jnp.where(mask, einsum_f32("htk,sk->hts", heads, kept.k[0]), NEVER)
    own = (heads.astype(jnp.float32)[:, None] * kept.k).sum(-1)
    own = jnp.where(ran[:, None], own, NEVER)
    top = lax.stop_gradient(jnp.maximum(wide.max(-1), own.max(1)))
    wide, own = jnp.exp(wide - top[..., None]), jnp.exp(own - top[:, None])
    total = wide.sum(-1) + own.sum(1)
    mixed = einsum_f32("hts,sk->htk", wide.astype(q.dtype), kept.v[0]) + (own[..., None] * kept.v).sum(1)
    return (mixed / total[..., None]).reshape(q.shape).astype(q.dtype)
