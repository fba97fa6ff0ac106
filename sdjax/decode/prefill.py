"""Prefill: the prompts in chunks, then each sequence's first token from the target."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from sdjax.core.cache import commit
from sdjax.core.sampling import target_choice
from sdjax.core.types import Committed, rows
from sdjax.decode.state import Loop, Params, State
from sdjax.decode.step import write
from sdjax.targets.decoder import causal_mask


@partial(jax.jit, static_argnames="loop", donate_argnames="state")
def prefill(loop: Loop, params: Params, state: State, lengths: Int[Array, " B"]) -> State:
    """Commits the prompts state.tokens[b, :lengths[b]] and puts the first new token behind each as its anchor.

    As many chunks run as the longest prompt needs: one compiled program serves every prompt length. The state is donated.
    """
    chunks = -(-jnp.max(lengths) // loop.chunk)
    _, state = lax.while_loop(
        lambda carry: carry[0] < chunks,
        lambda carry: (carry[0] + 1, prefill_chunk(loop, params, carry[1], lengths, carry[0] * loop.chunk)),
        (jnp.int32(0), state),
    )
    anchor = rows(state.tokens, lengths[:, None])[:, 0]
    return state.replace(done=loop.is_stop(anchor) | (state.last <= state.p))


def prefill_chunk(loop: Loop, params: Params, state: State, lengths: Int[Array, " B"], start: Int[Array, ""]) -> State:
    """Commits prompt positions start .. start + chunk - 1 of every sequence that has them; the drafter observes."""
    positions = jnp.broadcast_to(start + jnp.arange(loop.chunk), (lengths.shape[0], loop.chunk))
    tokens = lax.dynamic_slice_in_dim(state.tokens, start, loop.chunk, axis=1)
    count = jnp.clip(lengths - start, 0, loop.chunk)
    x = loop.target.embed(params.target, tokens)
    out = loop.target.forward(params.target, x, positions, state.cache, causal_mask(loop.chunk), taps=loop.drafter.taps)
    ends_here = (start < lengths) & (lengths <= start + loop.chunk)
    anchor = first_tokens(loop, params, rows(out.hidden, jnp.maximum(count - 1, 0)[:, None])[:, 0], state, lengths)
    node = jnp.broadcast_to(jnp.arange(loop.chunk), positions.shape)
    all_tokens = write(state.tokens, anchor[:, None], lengths, ends_here.astype(jnp.int32))
    state = state.replace(tokens=all_tokens, p=state.p + count, cache=commit(state.cache, out.staged, node, count))
    seen = Committed(
        tokens=tokens,
        positions=positions,
        next_tokens=rows(all_tokens, jnp.minimum(positions + 1, all_tokens.shape[1] - 1)),
        features=out.features,
        node=node,
        count=count,
    )
    with jax.named_scope("observe"):
        observed = loop.drafter.observe(loop.context(params, state), params.drafter, state.drafter, seen)
    return state.replace(drafter=observed)


def first_tokens(loop: Loop, params: Params, hidden: Array, state: State, lengths: Int[Array, " B"]) -> Int[Array, " B"]:
    """The target's choice of the token behind each prompt, from the hidden state [B, E] of the prompt's last token."""
    logits = loop.target.unembed(params.target, hidden)
    choose = lambda logits, seed, position: target_choice(logits, loop.warp, seed, position)
    return jax.vmap(choose)(logits, state.seed, lengths)
