"""Blocks behind a text's anchors, as training runs them: which anchors, which tokens stand behind them, and the layers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from sdjax.core.cache import KV
from sdjax.core.linear import linear
from sdjax.core.types import Batch, Trace, rows
from sdjax.drafters.block_attention import attend_blocks
from sdjax.drafters.eagle_layer import add_mlp
from sdjax.targets.decoder import Decoder, rms_norm


def draw_anchors(trace: Trace, count: int, key: Key[Array, ""]) -> tuple[Int[Array, "B A"], Float[Array, "B A"]]:
    """Different places of each row, and which are anchors: learnt from themselves, as is the token behind them.

    A row with fewer such tokens has other places in the end, which are none.
    """
    able = trace.batch.loss_mask & (trace.ahead(1)[1] > 0)
    score = jnp.where(able, jax.random.uniform(key, able.shape), -1)
    best, place = lax.top_k(score, min(count, score.shape[1]))
    return place, (best >= 0).astype(jnp.float32)


def tokens_behind(
    trace: Trace, place: Int[Array, "B A"], drawn: Float[Array, "B A"], length: int
) -> tuple[Int[Array, "B A N"], Float[Array, "B A N"]]:
    """The `length` tokens behind each anchor, and whether they are learnt from: up to the first that is not."""
    ahead = zip(*(trace.ahead(j + 1) for j in range(length)), strict=True)
    labels, weight = (rows(jnp.stack(x, -1), place) for x in ahead)
    return labels, jnp.cumprod(weight, -1) * drawn[..., None]


def run_blocks(
    model: Decoder,
    params: Any,
    x: Float[Array, "B A R E"],
    batch: Batch,
    place: Int[Array, "B A"],
    context: Sequence[KV],
    seen: Bool[Array, "R R"],
) -> Float[Array, "B A R E"]:
    """The final states of R rows from each anchor on; they see of their document what stands before it, and each other.

    `context` holds every layer's keys and values of the text, `seen` says which rows of its block a row sees. `params`
    has {layers, norm}. All blocks go through in one pass.
    """
    b, a, r, e = x.shape
    positions = jnp.take_along_axis(batch.positions, place, 1)[:, :, None] + jnp.arange(r)
    angles = model.rope.angles(positions.reshape(b, a * r), model.head_width)

    @partial(jax.checkpoint, static_argnums=3)
    def layer(x: Array, p: dict[str, Array], given: KV, window: int | None) -> Array:
        q, own = model.project(p, rms_norm(x, p["attn_norm"], model.norm_eps), angles)
        q = q.reshape(b, a, r, model.heads, model.head_width)
        mixed = attend_blocks(q, given, own, batch.segments, place, seen, model.head_width**-0.5, window)
        return add_mlp(model, p, x + linear(mixed.reshape(b, a * r, -1), p["o"], p.get("o_bias")))

    x = x.reshape(b, a * r, e)
    windows = model.windows or (None,) * model.layers
    for p, given, window in zip(params["layers"], context, windows, strict=True):
        x = layer(x, p, given, window)
    return rms_norm(x, params["norm"], model.norm_eps).reshape(b, a, r, e)
