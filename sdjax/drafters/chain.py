"""Autoregressive drafting of a chain: what an independent model and a truncated target have in common."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from sdjax.core.cache import Cache, Staged
from sdjax.core.sampling import Purpose, coin_key, draw, warp_logits
from sdjax.core.types import Context, Draft, Law
from sdjax.drafters.head import in_target
from sdjax.targets.decoder import Decoder
from sdjax.trees.draw import Children
from sdjax.trees.tree import Tree


def draft_chain(
    model: Decoder,
    params: Any,
    cache: Cache,
    ctx: Context,
    length: int,
    sampled: bool,
    logits: Callable[[Float[Array, "B E"]], Float[Array, "B D"]] | None = None,
    ids: Int[Array, " D"] | None = None,
) -> tuple[Draft, Staged]:
    """Runs `model` from the anchor for `length` tokens (Leviathan et al. 2022, Alg. 1, first loop).

    Each token is drawn from the model's law under the context's warp where `sampled`, else it is the argmax. `logits` of
    a hidden state are the model's own (None), or over a draft vocabulary, whose tokens are the target's `ids`.
    The scratch has a row for the anchor and each draft; that of the last draft, which was not run, is still empty.
    """
    choose = choose_sampled if sampled and not ctx.warp.greedy else choose_greedy
    logits = logits or (lambda hidden: model.unembed(params, hidden))

    def one(carry: tuple[Array, Staged], i: Array):
        token, scratch = carry
        hidden, scratch = stage_token(model, params, cache, scratch, token, i)
        place, q = choose(logits(hidden), ctx, i + 1)
        return (place if ids is None else ids[place], scratch), (place, q)

    scratch = empty_scratch(cache, ctx.p, length + 1)
    (_, scratch), (places, q) = lax.scan(one, (ctx.anchor, scratch), jnp.arange(length))
    return chain_of(ctx, places, q, ids), scratch


def draft_at_once(ctx: Context, logits: Float[Array, "B D V"], sampled: bool, ids: Int[Array, " V"] | None) -> Draft:
    """The chain of D tokens whose logits were made in one pass, none knowing the others' tokens."""
    choose = choose_sampled if sampled and not ctx.warp.greedy else choose_greedy
    depths = jnp.arange(logits.shape[1]) + 1
    places, q = jax.vmap(choose, (1, None, 0))(logits, ctx, depths)
    return chain_of(ctx, places, q, ids)


def chain_of(ctx: Context, places: Int[Array, "D B"], q: Float[Array, "D B V"] | None, ids: Int[Array, " V"] | None) -> Draft:
    """The chain of D tokens, given as places in the draft vocabulary, each with the law it was drawn from (None: argmax)."""
    law, q = (Law.ONE_HOT, None) if q is None else (Law.IID, jnp.swapaxes(q, 0, 1))
    drawn = in_target(Children(places.T, jnp.ones(places.T.shape, bool), q), ids, ctx.target.vocab)
    tokens = jnp.concatenate([ctx.anchor[:, None], drawn.tokens], 1)
    return Tree.chain(len(places)).draft(tokens, law, drawn.q)


def empty_scratch(cache: Cache, p: Int[Array, " B"], rows: int) -> Staged:
    """Room for the keys and values of positions p .. p + rows - 1."""
    layers = jax.tree.map(lambda x: jnp.zeros((*x.shape[:2], rows, x.shape[3]), x.dtype), cache.layers)
    return Staged(layers, p[:, None] + jnp.arange(rows))


def stage_token(
    model: Decoder, params: Any, cache: Cache, scratch: Staged, token: Int[Array, " B"], i: Int[Array, ""] | int
) -> tuple[Float[Array, "B E"], Staged]:
    """Runs one token a sequence as row i of the scratch, seeing the rows before it: its hidden state, the scratch."""
    rows = scratch.positions.shape[1]
    mask = jnp.append(jnp.arange(rows) < i, True)[None, None]
    position = lax.dynamic_slice_in_dim(scratch.positions, i, 1, axis=1)
    out = model.forward(params, model.embed(params, token[:, None]), position, cache, mask, scratch=scratch)
    put = lambda rows, new: lax.dynamic_update_slice_in_dim(rows, new.astype(rows.dtype), i, axis=2)
    return out.hidden[:, 0], scratch.replace(layers=jax.tree.map(put, scratch.layers, out.staged.layers))


def choose_greedy(logits: Float[Array, "B V"], ctx: Context, depth: Int[Array, ""]) -> tuple[Array, None]:
    """The argmax; its law is one-hot and needs no row."""
    return jnp.argmax(logits, -1).astype(jnp.int32), None


def choose_sampled(logits: Float[Array, "B V"], ctx: Context, depth: Int[Array, ""]) -> tuple[Array, Array]:
    """A draw from the warped law with the drafter's own coin, and that law."""
    logits = warp_logits(logits, ctx.warp)
    keys = jax.vmap(lambda seed, p: coin_key(seed, p, Purpose.DRAFT, depth))(ctx.seed, ctx.p)
    return jax.vmap(draw)(logits, keys), jax.nn.softmax(logits)
