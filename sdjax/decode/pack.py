"""Packed verification: of a batch's drafts, only the nodes that are there run, all sequences' as one flat array.

The pass is compiled for a few numbers of rows, and the draft's own count of nodes chooses among them inside the step: it
takes the least that holds them. Nothing but time depends on that.
"""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.pack import Pack, holding, widths_of
from sdjax.core.types import Draft
from sdjax.decode.probes import append_probes, split_probes
from sdjax.decode.state import Loop, Params, State
from sdjax.targets.decoder import Forward


def verify(
    loop: Loop, params: Params, state: State, draft: Draft, ancestors: Bool[Array, "B N N"]
) -> tuple[Forward, Float[Array, "B N V"], Int[Array, " B"] | int]:
    """The target's pass over a draft: its states, its logits, and how many rows each sequence took of it."""
    if not loop.pack:
        return *run_rows(loop, params, state, draft, ancestors, None), draft.rows
    if draft.probes is not None:
        raise ValueError("pack leaves out rows that are no nodes, and this drafter reads probes behind them; take pack=()")
    widths = widths_of(loop.pack, draft.tokens.size)
    count = jnp.sum(draft.valid)
    chosen = holding(count, widths)
    passes = [partial(packed, loop, int(width)) for width in widths[:-1]]
    whole = partial(run_rows, loop, pack=None)
    out, logits = lax.switch(chosen, [*passes, whole], params, state, draft, ancestors)
    return out, logits, shared(draft.valid, jnp.asarray(widths)[chosen] - count)


def packed(
    loop: Loop, width: int, params: Params, state: State, draft: Draft, ancestors: Bool[Array, "B N N"]
) -> tuple[Forward, Float[Array, "B N V"]]:
    """A pass of `width` rows."""
    return run_rows(loop, params, state, draft, ancestors, Pack.of(draft.valid, width))


def run_rows(
    loop: Loop, params: Params, state: State, draft: Draft, ancestors: Bool[Array, "B N N"], pack: Pack | None
) -> tuple[Forward, Float[Array, "B N V"]]:
    """States, those of probes too, and the nodes' logits; with `pack`, of its rows alone, and zeros elsewhere."""
    x, depth, mask = append_probes(draft.probes, loop.target.embed(params.target, draft.tokens), draft.depth, ancestors)
    positions = state.p[:, None] + depth
    out = loop.target.forward(params.target, x, positions, state.cache, mask, taps=loop.drafter.taps, pack=pack)
    if pack is None:
        return out, loop.target.unembed(params.target, split_probes(draft.probes, out.hidden)[0])
    return out, pack.spread(loop.target.unembed(params.target, pack.take(out.hidden)))


def shared(valid: Bool[Array, "B N"], padding: Int[Array, ""]) -> Int[Array, " B"]:
    """Each sequence's own rows, and the pass's padding shared out among those that run."""
    runs = valid[:, 0]
    rank, running = jnp.cumsum(runs) - 1, jnp.maximum(jnp.sum(runs), 1)
    part = padding // running + (rank < padding % running)
    return jnp.sum(valid, 1) + jnp.where(runs, part, 0)
