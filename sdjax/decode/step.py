"""One draft-verify step: propose, schedule, verify, judge, commit, observe. No host in it."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from sdjax.core.cache import commit
from sdjax.core.types import Committed, Context, Draft, Records, Verdict, rows
from sdjax.core.whole import whole
from sdjax.decode.pack import verify
from sdjax.decode.probes import split_probes
from sdjax.decode.state import Loop, Params, State
from sdjax.trees.tree import ancestor_mask, present


def step(loop: Loop, params: Params, state: State) -> State:
    """Every sequence that is not done commits at least one token."""
    ctx = loop.context(params, state)
    with jax.named_scope("propose"):
        draft, scratch = loop.drafter.propose(ctx, params.drafter, state.drafter)
        # Else XLA would carry a drafter's own split, by node, through the target's pass, and exchange states more often.
        draft = whole(draft.replace(q=None, probes=None)).replace(q=draft.q, probes=draft.probes)
    ancestors = ancestor_mask(draft.parent, draft.max_depth)
    with jax.named_scope("schedule"):
        scheduled, draft = schedule(loop, state, ctx, draft.replace(valid=present(draft, ancestors)))
    out, logits, verified = verify(loop, params, state, draft, ancestors)
    with jax.named_scope("judge"):
        verdict = loop.rule.judge(ctx, draft, logits)
    emitted = emit(draft, verdict)
    count, done = cut(loop, state, emitted, verdict.accepted + 1)
    seen = Committed(
        tokens=rows(draft.tokens, verdict.path),
        positions=state.p[:, None] + jnp.arange(verdict.path.shape[1]),
        next_tokens=emitted,
        features=rows(out.features, verdict.path),
        node=verdict.path,
        count=count,
        probes=split_probes(draft.probes, out.hidden)[1],
    )
    state = state.replace(
        tokens=write(state.tokens, emitted, state.p + 1, count),
        p=state.p + count,
        done=done,
        cache=commit(state.cache, out.staged, verdict.path, count),
        schedule=scheduled,
        records=record(state.records, state.step, draft, verdict, count, verified),
        step=state.step + 1,
    )
    with jax.named_scope("observe"):
        observed = loop.drafter.observe(loop.context(params, state), params.drafter, state.drafter, seen, scratch)
    return state.replace(drafter=observed)


def schedule(loop: Loop, state: State, ctx: Context, draft: Draft) -> tuple[Any, Draft]:
    """What the loop's schedule remembers, and what it leaves of the draft; sequences that are done then have no node."""
    if loop.schedule or loop.pack:
        draft = draft.replace(valid=draft.valid & ~state.done[:, None])
    return loop.schedule.cut(state.schedule, ctx, draft, loop.pack) if loop.schedule else (None, draft)


def emit(draft: Draft, verdict: Verdict) -> Int[Array, "B A"]:
    """The accepted drafts and, behind them, the bonus: emitted[b, :accepted[b] + 1]."""
    drafts = jnp.roll(rows(draft.tokens, verdict.path), -1, axis=1)
    place = jnp.arange(drafts.shape[1])
    return jnp.where(place == verdict.accepted[:, None], verdict.bonus[:, None], drafts)


def cut(
    loop: Loop, state: State, emitted: Int[Array, "B A"], count: Int[Array, " B"]
) -> tuple[Int[Array, " B"], Bool[Array, " B"]]:
    """Ends a sequence at its first stop token (kept) or at its cap: how many are committed, and who is done."""
    stops = loop.is_stop(emitted)
    count = jnp.where(stops.any(1), jnp.minimum(count, stops.argmax(1) + 1), count)
    count = jnp.where(state.done, 0, jnp.minimum(count, state.last - state.p))
    stopped = (stops & (jnp.arange(emitted.shape[1]) < count[:, None])).any(1)
    return count, state.done | stopped | (state.p + count >= state.last)


def write(
    tokens: Int[Array, "B S"], new: Int[Array, "B A"], start: Int[Array, " B"], count: Int[Array, " B"]
) -> Int[Array, "B S"]:
    """Puts new[b, :count[b]] at tokens[b, start[b]:]; what would fall outside is dropped."""
    place = jnp.arange(new.shape[1])
    at = jnp.where(place < count[:, None], start[:, None] + place, tokens.shape[1])
    return tokens.at[jnp.arange(tokens.shape[0])[:, None], at].set(new, mode="drop")


def record(
    records: Records,
    step: Int[Array, ""],
    draft: Draft,
    verdict: Verdict,
    count: Int[Array, " B"],
    verified: Int[Array, " B"] | int,
) -> Records:
    """Notes what this step did; zeros (and -1 for nodes) where a sequence took no part."""
    active = count > 0
    nodes = jnp.sum(draft.valid, 1)
    on_path = active[:, None] & (jnp.arange(1, draft.max_depth + 1) <= verdict.accepted[:, None])
    new = Records(
        proposed=jnp.where(active, nodes - 1, 0),
        reach=jnp.where(active, jnp.max(jnp.where(draft.valid, draft.depth, 0), 1), 0),
        accepted=jnp.where(active, verdict.accepted, 0),
        committed=count,
        verified=jnp.where(active, verified, 0),
        node=jnp.where(on_path, verdict.path[:, 1:], -1),
    )
    put = lambda old, new: lax.dynamic_update_slice_in_dim(old, new[:, None], step, axis=1)
    return jax.tree.map(put, records, new)
