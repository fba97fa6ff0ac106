"""How a node's children are drawn from the drafter's logits: one function for each law of a draft.

The law is that of the warped float32 logits, and the very same numbers are returned as q: what a rule divides by is
what was drawn from. Each draw has its own noise, keyed by the children's depth and their place in their level.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from sdjax.core.sampling import Purpose, coin_key, draw, top_k, warp_logits
from sdjax.core.types import Context, Law


@struct.dataclass
class Children:
    """The children of I nodes, parent by parent in draw order; q holds a row for each parent (None: one-hot).

    A child that could not be drawn, since fewer tokens have mass, is not valid.
    """

    tokens: Int[Array, "B C"]
    valid: Bool[Array, "B C"]
    q: Float[Array, "B I V"] | None


def draw_children(logits: Float[Array, "B I V"], widths: tuple[int, ...], law: Law, ctx: Context, depth: int) -> Children:
    """widths[i] ≥ 1 children for parent i, at `depth`, drawn by `law`; at temperature 0 always the likeliest ones."""
    by_law = {Law.IID: iid, Law.WITHOUT_REPLACEMENT: without_replacement, Law.MIXED: mixed}
    if ctx.warp.greedy or law is Law.ONE_HOT:
        return likeliest(logits, widths)
    return by_law[law](warp_logits(logits, ctx.warp), widths, ctx, depth)


def likeliest(logits: Float[Array, "B I V"], widths: tuple[int, ...]) -> Children:
    """Child k is the parent's k-th likeliest token: no noise, no q."""
    best, tokens = top_k(logits, max(widths))
    return Children(pick(tokens, widths), pick(best > -jnp.inf, widths), None)


def iid(logits: Float[Array, "B I V"], widths: tuple[int, ...], ctx: Context, depth: int) -> Children:
    """Independent draws from q; duplicates stay (SpecInfer)."""
    row, _ = places(widths)
    tokens = jax.vmap(jax.vmap(draw))(logits[:, row], keys(ctx, depth, np.arange(len(row))))
    return Children(tokens, jnp.ones(tokens.shape, bool), jax.nn.softmax(logits))


def without_replacement(logits: Float[Array, "B I V"], widths: tuple[int, ...], ctx: Context, depth: int) -> Children:
    """Successive draws from q, each without the earlier ones (Sequoia): the Gumbel-top-k trick, in draw order."""
    noise = jax.vmap(jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[2:], jnp.float32)))
    best, tokens = top_k(logits + noise(keys(ctx, depth, first_places(widths))), max(widths))
    return Children(pick(tokens, widths), pick(best > -jnp.inf, widths), jax.nn.softmax(logits))


def mixed(logits: Float[Array, "B I V"], widths: tuple[int, ...], ctx: Context, depth: int) -> Children:
    """All children but the first are the likeliest tokens; the first is drawn from what q has left (Hu et al. 2025)."""
    best, fixed = top_k(logits, max(widths))
    excluded = np.arange(max(widths)) < np.array(widths)[:, None] - 1
    outside = jnp.where(excluded, fixed, logits.shape[-1])
    rest = jnp.put_along_axis(logits, outside, -jnp.inf, axis=-1, inplace=False, mode="drop")
    sampled = jax.vmap(jax.vmap(draw))(rest, keys(ctx, depth, first_places(widths)))[..., None]
    possible = rest.max(-1, keepdims=True) > -jnp.inf
    tokens = jnp.concatenate([sampled, fixed], -1)
    valid = jnp.concatenate([possible, best > -jnp.inf], -1)
    return Children(pick(tokens, widths), pick(valid, widths), jnp.where(possible, jax.nn.softmax(rest), 0))


def places(widths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Of every child: its parent's place and its own rank."""
    return np.repeat(np.arange(len(widths)), widths), np.concatenate([np.arange(width) for width in widths])


def first_places(widths: tuple[int, ...]) -> np.ndarray:
    """The place of each parent's first child: the address of noise that siblings share."""
    return np.cumsum([0, *widths[:-1]])


def pick(table: Array, widths: tuple[int, ...]) -> Array:
    """table[b, parent, rank] of every child."""
    row, rank = places(widths)
    return table[:, row, rank]


def keys(ctx: Context, depth: int, place: np.ndarray) -> Key[Array, "B C"]:
    """A key for each place of a level."""
    of_sequence = lambda seed, p: jax.vmap(lambda place: coin_key(seed, p, Purpose.DRAFT, depth, place))(jnp.asarray(place))
    return jax.vmap(of_sequence)(ctx.seed, ctx.p)
