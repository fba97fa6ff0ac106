"""Attention of a drafter that is unrolled in training as it drafts: what EAGLE-3 and multi-token modules share."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.attention import NEVER, fold_heads, unfold_heads
from sdjax.core.cache import KV
from sdjax.core.linear import einsum_f32


def attend_unrolled(
    q: Float[Array, "B T H K"], kept: KV, now: Int[Array, ""] | int, mask: Bool[Array, "b T T"], scale: float
) -> Float[Array, "B T H K"]:
    """At step `now`, row r sees step 0's rows under `mask` and, of every later step so far, row r alone.

    `kept` holds all N steps' rows, [N B G T K]. One softmax over [mask | I | I | ...] (EAGLE-3, Fig. 6); the identities
    are products row by row, so that T + N scores stand for a row instead of N · T.
    """
    n, _, groups = kept.k.shape[:3]
    q = fold_heads(q * scale, groups).reshape(*kept.k.shape[1:3], -1, *kept.k.shape[3:])  # B G h T K
    wide = jnp.where(mask[:, None, None], einsum_f32("bghtk,bgsk->bghts", q, kept.k[0]), NEVER)
    own = (q.astype(jnp.float32) * kept.k[:, :, :, None]).sum(-1)  # N B G h T
    ran = (jnp.arange(n) > 0) & (jnp.arange(n) <= now)
    own = jnp.where(ran, jnp.moveaxis(own, 0, -1), NEVER)
    p = jax.nn.softmax(jnp.concatenate([wide, own], -1))
    wide, own = p[..., :-n], jnp.moveaxis(p[..., -n:], -1, 0)
    mixed = einsum_f32("bghts,bgsk->bghtk", wide.astype(q.dtype), kept.v[0])
    mixed += (own[..., None] * kept.v[:, :, :, None]).sum(0)
    return unfold_heads(mixed.reshape(*mixed.shape[:2], -1, mixed.shape[-1]), mixed.shape[3]).astype(q.dtype)
