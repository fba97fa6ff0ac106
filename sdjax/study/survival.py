"""Drafts as they are served: the survival that their drafter stated, and how far the rule accepted them."""

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Float

from sdjax.decode.generate import bucket, prefill, rows_needed, start
from sdjax.decode.state import Loop, Params, State
from sdjax.decode.step import step
from sdjax.study.calibration import Drafts


@partial(jax.jit, static_argnames="loop", donate_argnames="state")
def watched_step(loop: Loop, params: Params, state: State) -> tuple[Float[Array, "B N"] | None, State]:
    """A step, and the survival that its draft states."""
    draft, _ = loop.drafter.propose(loop.context(params, state), params.drafter, state.drafter)
    return draft.survival, step(loop, params, state)


def served_drafts(loop: Loop, params: Params, prompts: Sequence[Sequence[int]], max_new: int, batch: int) -> Drafts:
    """Decodes `max_new` tokens behind each prompt, `batch` at a time; ValueError for trees, and drafts without survival."""
    if not loop.drafter.is_chain:
        raise ValueError(f"{type(loop.drafter).__name__} drafts a tree; survival is calibrated slot by slot, along a chain")
    if loop.schedule:
        raise ValueError(f"{type(loop.schedule).__name__} cuts drafts: what it cuts is never judged; calibrate without it")
    capacity = bucket(rows_needed(loop, prompts, max_new))
    stated, accepted, request = [], [], []
    for at in range(0, len(prompts), batch):
        part = prompts[at : at + batch]
        state, lengths = start(loop, part, max_new, range(at, at + len(part)), capacity)
        if jax.eval_shape(partial(watched_step, loop), params, state)[0] is None:
            raise ValueError(f"the {type(loop.drafter).__name__} states no survival; train it with a confidence head")
        state, survival = prefill(loop, params, state, lengths), []
        while not np.all(state.done):
            found, state = watched_step(loop, params, state)
            survival.append(np.asarray(found))
        records = jax.device_get(state.records)
        b, s = np.nonzero(records.committed[:, : len(survival)])
        stated.append(np.stack(survival, 1)[b, s] if survival else np.ones((0, loop.drafter.nodes)))
        accepted.append(records.accepted[b, s])
        request.append(at + b)
    return Drafts.of(*map(np.concatenate, (stated, accepted, request)))
