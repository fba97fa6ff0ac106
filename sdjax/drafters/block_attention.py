"""Attention of the blocks that training hangs on a text's anchors: each sees the text before its anchor, and itself."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.attention import block_mask, every_head, fold_heads, mix, one_by_one, unfold_heads
from sdjax.core.cache import KV

QUERIES = 512  # of one kv head whose scores are held at a time


def attend_blocks(
    q: Float[Array, "B A R H K"],
    context: KV,
    own: KV,
    segments: Int[Array, "B T"],
    place: Int[Array, "B A"],
    mask: Bool[Array, "R R"],
    scale: float,
    window: int | None = None,
) -> Float[Array, "B A R H K"]:
    """Row i of the block at place[b, a] sees its document's tokens before that place, and of its block those of mask[i].

    With a `window`, of these the `window` newest, itself included, and none behind itself. `context` holds a row for each
    of the text's T tokens, `own` one for each of the A·R rows of the blocks. No mask or score has all blocks' rows: a few
    blocks go through at a time, and the backward pass computes their scores anew.
    """
    b, a, r, heads, width = q.shape
    groups = own.k.shape[1]
    by_block = lambda x: x.reshape(b, groups, a, -1, width)
    queries = fold_heads((q * scale).reshape(b * a, r, heads, width), groups)
    queries = jnp.swapaxes(queries.reshape(b, a, groups, -1, width), 1, 2)
    own_rows, shared = jnp.arange(r)[None], heads // groups
    inside = every_head(block_mask(mask[None], own_rows, own_rows, window)[0], shared)
    step = min(max(QUERIES // inside.shape[0], 1), a)

    def of_sequence(q: Array, context: KV, own: KV, segments: Array, place: Array) -> Array:
        def of_head(q: Array, context: KV, own: KV) -> Array:
            @jax.checkpoint
            def of_block(block: tuple[Array, KV, Array]) -> Array:
                q, own, place = block
                seen = ((segments == segments[place]) & (jnp.arange(len(segments)) < place))[None]
                seen = block_mask(seen[None], place + own_rows, jnp.arange(len(segments))[None], window)[0]
                return mix(q, context, every_head(seen, shared), own, inside)

            return lax.map(of_block, (q, own, place), batch_size=step)

        return one_by_one(jax.checkpoint(of_head))(q, context, own)

    mixed = one_by_one(of_sequence)(queries, context, jax.tree.map(by_block, own), segments, place)
    mixed = jnp.swapaxes(mixed, 1, 2).reshape(b * a, groups, -1, width)
    return unfold_heads(mixed, r).reshape(q.shape)
