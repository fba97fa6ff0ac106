"""What the EAGLE heads share: rows that pair a token with the state before it, and one layer that runs them.

Row t holds (the target's state at t, token t + 1), stands at position t and predicts token t + 2. A drafted token's row
takes its parent's output in the place of the target's state, which is not known there.
"""

from dataclasses import replace

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.attention import cache_mask
from sdjax.core.cache import Cache, Staged, commit
from sdjax.core.linear import product
from sdjax.core.spec import Spec
from sdjax.core.types import Committed, Context, rows
from sdjax.drafters.head import own_tokens
from sdjax.drafters.losses import soft_cross_entropy
from sdjax.drafters.recursion import Cell
from sdjax.targets.decoder import Decoder, causal_mask, known_after, rms_norm, swiglu


@struct.dataclass
class State:
    """Rows 0..p-1, all from the target's states; `root` is the output of the last, which has consumed the anchor."""

    cache: Cache
    root: Float[Array, "B E"]


def layer_for(target: Decoder, layer: Decoder | None) -> Decoder:
    """The shape of a head's layer: `layer`, or a Llama layer (no biases, no norms of queries and keys) as the target's."""
    if layer is None:
        return replace(target, layers=1, windows=(), qkv_bias=False, o_bias=False, mlp_bias=False, qk_norm=False)
    for name in ("width", "precision"):
        own, given = getattr(layer, name), getattr(target, name)
        if own != given:
            raise ValueError(f"the head's layer has {name} {own}, the target {given}; states are passed on, so make them equal")
    return replace(layer, layers=1, windows=())


def layer_specs(layer: Decoder, into: int) -> dict[str, Spec]:
    """A layer without a norm before its attention, which reads rows of width `into`."""
    specs = {name: spec for name, spec in layer.specs()["layers"][0].items() if name != "attn_norm"}
    return specs | {name: replace(specs[name], shape=(specs[name].shape[0], into)) for name in ("q", "k", "v")}


def run_layer(
    layer: Decoder,
    p: dict[str, Array],
    residual: Float[Array, "B T E"],
    x: Float[Array, "B T i"],
    positions: Int[Array, "B T"],
    cache: Cache,
    mask: Bool[Array, "b T U"],
    scratch: Staged | None,
) -> tuple[Float[Array, "B T E"], Staged]:
    """Attention of `x` to cache, scratch and itself, added to `residual`; then the MLP. No final norm."""
    masks = (cache_mask(cache.length, cache.capacity, positions, None), mask)
    before = None if scratch is None else scratch.layers[0]
    angles = layer.rope.angles(positions, layer.head_width)
    mixed, kv = layer.attention(p, x, angles, cache.layers[0], before, masks)
    out = add_mlp(layer, p, residual + mixed)
    return out, Staged([kv], known_after(positions, out[:, :1, 0]))


def add_mlp(layer: Decoder, p: dict[str, Array], x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
    """x + MLP(norm(x))."""
    return x + swiglu(p, rms_norm(x, p["mlp_norm"], layer.norm_eps))


def empty_state(layer: Decoder, batch: int, capacity: int) -> State:
    """No rows; the root is still to come."""
    return State(layer.empty_cache(batch, capacity), jnp.zeros((batch, layer.width), jnp.dtype(layer.dtype)))


def extend(cell: Cell, state: State, hidden: Float[Array, "B T E"], seen: Committed) -> State:
    """Runs and keeps the rows of all that was committed, `hidden` being the target's states there."""
    width = seen.tokens.shape[1]
    out, staged = cell.run(seen.next_tokens, hidden, seen.positions, causal_mask(width), None)
    path = jnp.broadcast_to(jnp.arange(width), seen.tokens.shape)
    last = rows(out, jnp.maximum(seen.count - 1, 0)[:, None])[:, 0]
    root = jnp.where(seen.count[:, None] > 0, last, state.root)
    return State(commit(state.cache, staged, path, seen.count), root)


def against_target(
    ctx: Context,
    ids: Int[Array, " D"] | None,
    judge: Float[Array, "D E"],
    logits: Float[Array, "n N D"],
    hidden: Float[Array, "n E"],
) -> tuple[Float[Array, "n N"], Float[Array, "n N"], Float[Array, " n"]]:
    """N laws on the draft vocabulary against one law of the target each, that of its final state `hidden`.

    `judge` are the rows of the target's head for the draft vocabulary. Returns the cross-entropy with the target's law,
    which is cut to the draft vocabulary and renormalised; whether the argmax is the target's; and whether the target's
    argmax lies in the draft vocabulary at all. With a draft vocabulary the whole one's logits serve the argmax alone: the
    backward pass does not need them.
    """
    whole = ctx.target.unembed(ctx.target_params, hidden)
    best, inside = own_tokens(ids, jnp.argmax(whole, -1))
    agrees = inside[:, None] & (jnp.argmax(logits, -1) == best[:, None])
    teacher = lax.stop_gradient(whole if ids is None else product(hidden, judge))
    as_float = lambda x: x.astype(jnp.float32)
    return soft_cross_entropy(logits, teacher[:, None]), as_float(agrees), as_float(inside)
