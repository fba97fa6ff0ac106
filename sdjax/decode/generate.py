"""`generate`: prompts in, tokens and records out; two compiled programs, prefill and the decode loop."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from sdjax.core.cache import with_rows
from sdjax.core.checks import as_integer
from sdjax.core.metrics import Steps
from sdjax.core.spec import check_params
from sdjax.core.types import Records
from sdjax.decode.place import empty_state, put_back, state_shardings
from sdjax.decode.prefill import prefill
from sdjax.decode.state import Loop, Params, State
from sdjax.decode.step import step
from sdjax.mesh.layout import Layout, within
from sdjax.mesh.place import on_host

LEAST_ROWS = 256
MAX_ROUNDS = 1 << 30


@dataclass(frozen=True)
class Generation:
    """What was generated: new tokens and verify steps of every sequence; seconds of prefill and of decoding."""

    tokens: list[list[int]]
    steps: list[Steps]
    records: Records
    prefill_seconds: float
    decode_seconds: float


@partial(jax.jit, static_argnames="loop", donate_argnames="state")
def run(loop: Loop, params: Params, state: State, max_rounds: Int[Array, ""]) -> State:
    """Steps until every sequence is done, max_rounds have run, or the caches have no room for one's next step."""
    stop_at = state.step + max_rounds

    def goes_on(state: State) -> Array:
        fits = jnp.all(state.done | (state.p + overhang(loop) <= state.cache.capacity))
        return fits & ~jnp.all(state.done) & (state.step < stop_at)

    return lax.while_loop(goes_on, lambda state: step(loop, params, state), state)


def generate(
    loop: Loop,
    params: Params,
    prompts: Sequence[Sequence[int]],
    max_new: int,
    seeds: Sequence[int] | None = None,
    capacity: int | None = None,
    max_rounds: int = MAX_ROUNDS,
    watch: Callable[[list[list[int]]], None] | None = None,
    layout: Layout | None = None,
) -> Generation:
    """Generates at most `max_new` tokens behind each prompt (a batch of one or more, ragged).

    `seeds` key each sequence's noise, modulo 2³² (default 0, 1, ...). `capacity` is how many rows the caches may grow to
    (default: what is needed, rounded up to a bucket). With `watch`, the host reads the new tokens so far after every
    `max_rounds` steps; the seconds spent in it are in no figure. A `layout` puts the state on its mesh, where `params`
    must be already.

    Raises ValueError, before anything compiles, for parameters that do not fit, a rule that is not made for the draft,
    and a prompt that is empty, too long or outside the vocabulary.
    """
    prompts = checked_prompts(loop, prompts, max_new)
    if not 1 <= max_rounds <= MAX_ROUNDS:
        raise ValueError(f"max_rounds is {max_rounds}; it must lie in 1..{MAX_ROUNDS}")
    check_params(loop.target.specs(), params.target, "the target")
    check_params(loop.drafter.specs(loop.target), params.drafter, f"the drafter {type(loop.drafter).__name__}")
    capacity = rows_for(loop, prompts, max_new, capacity)
    longest = max(map(len, prompts))
    with within(layout):
        state, lengths = start(loop, prompts, max_new, seeds, capacity, layout, rows_at_first(loop, longest, capacity))
        # Tracing the step now lets a rule refuse the draft before prefill is compiled and run; the trace is used again below.
        grown = jax.eval_shape(partial(with_rows, rows=next_rows(loop, lengths, state)), state)
        run.eval_shape(loop, params, grown, jnp.int32(max_rounds))
        begin = time.perf_counter()
        state = jax.block_until_ready(put_back(layout, loop, prefill(loop, params, state, lengths)))
        prefill_seconds, decode_seconds = time.perf_counter() - begin, 0.0
        while not np.all(on_host(state.done)):
            begin = time.perf_counter()
            state = with_rows(state, next_rows(loop, state.p, state))
            state = jax.block_until_ready(run(loop, params, state, jnp.int32(max_rounds)))
            decode_seconds += time.perf_counter() - begin
            if watch:
                watch(new_tokens(state, prompts))
    records = on_host(state.records)
    steps = [Steps.of(records, row) for row in range(len(prompts))]
    return Generation(new_tokens(state, prompts), steps, records, prefill_seconds, decode_seconds)


def checked_prompts(loop: Loop, prompts: Sequence[Sequence[int]], max_new: int) -> list[list[int]]:
    """The prompts as lists of ints; raises ValueError for what cannot be decoded, naming the prompt."""
    if as_integer(max_new, "max_new") < 1:
        raise ValueError(f"max_new is {max_new}; at least one token must be generated")
    if len(prompts) == 0:
        raise ValueError("no prompts were given")
    return [checked_prompt(loop, prompt, f"prompt {i}", max_new) for i, prompt in enumerate(prompts)]


def checked_prompt(loop: Loop, prompt: Sequence[int], name: str, max_new: int) -> list[int]:
    """One prompt as a list of ints."""
    if isinstance(prompt, str) or not hasattr(prompt, "__iter__"):
        raise ValueError(f"{name} is {prompt!r}; a prompt is a sequence of token ids")
    ids = [as_integer(token, f"a token of {name}") for token in prompt]
    if not ids:
        raise ValueError(f"{name} is empty; give it at least one token, such as the tokenizer's BOS")
    if not 0 <= min(ids) <= max(ids) < loop.target.vocab:
        raise ValueError(f"{name} has token ids outside the vocabulary (0..{loop.target.vocab - 1})")
    if len(ids) + max_new > loop.target.max_position:
        raise ValueError(
            f"{name} has {len(ids)} tokens; with {max_new} new ones it exceeds the {loop.target.max_position} positions "
            "the target was made for"
        )
    return ids


def rows_for(loop: Loop, prompts: Sequence[Sequence[int]], max_new: int, capacity: int | None) -> int:
    """The cache's rows, in whole chunks; ValueError where a given capacity does not hold the prompts."""
    needed = rows_needed(loop, prompts, max_new)
    rows = round_up(bucket(needed) if capacity is None else as_integer(capacity, "capacity"), loop.chunk)
    if rows < needed:
        raise ValueError(
            f"the longest prompt has {max(map(len, prompts))} tokens and needs {needed} cache rows with {max_new} new tokens "
            f"and a draft {loop.drafter.depth} deep, but the cache holds {rows}; raise capacity or shorten the prompt"
        )
    return rows


def rows_needed(loop: Loop, prompts: Sequence[Sequence[int]], max_new: int) -> int:
    """Cache rows that a run touches: prompts padded to whole chunks, and room for a step's overhang."""
    longest = max(map(len, prompts))
    return max(round_up(longest, loop.chunk), longest + max_new - 1 + overhang(loop))


def overhang(loop: Loop) -> int:
    """Rows from the anchor's on that a step may touch: the longest path's, and one more."""
    return loop.drafter.depth + 2


def round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def bucket(n: int) -> int:
    """The power of two that holds n, at least LEAST_ROWS: one program is compiled for each."""
    return max(LEAST_ROWS, 1 << (n - 1).bit_length())


def rows_at_first(loop: Loop, longest: int, capacity: int) -> int:
    """Cache rows for prefill."""
    return min(max(bucket(longest), round_up(longest, loop.chunk)), capacity)


def next_rows(loop: Loop, p: Int[Array, " B"], state: State) -> int:
    """Cache rows with room to grow for the longest sequence still running at p, and no more than its end needs."""
    done, p, last = on_host((state.done, p, state.last))
    end = min(p[~done].max() + LEAST_ROWS // 2, last[~done].max())
    return min(bucket(int(end) + overhang(loop)), state.tokens.shape[1])


def start(
    loop: Loop,
    prompts: Sequence[Sequence[int]],
    max_new: int,
    seeds: Sequence[int] | None,
    capacity: int,
    layout: Layout | None = None,
    rows: int | None = None,
) -> tuple[State, Int[Array, " B"]]:
    """The state that holds the prompts, its caches having `rows` rows (default: `capacity`), and the prompts' lengths."""
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    tokens = np.zeros((len(prompts), capacity), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    seeds = range(len(prompts)) if seeds is None else [as_integer(seed, "a seed") % 2**32 for seed in seeds]
    if len(seeds) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts, but {len(seeds)} seeds")
    state = empty_state(layout, loop, len(prompts), capacity, rows or capacity, 1 << (max_new - 1).bit_length())
    state = state.replace(
        tokens=jnp.asarray(tokens),
        last=jnp.asarray(lengths + max_new - 1),
        seed=jnp.asarray(seeds, jnp.uint32),
    )
    if layout is not None:
        state = jax.device_put(state, state_shardings(layout, loop, state))
    return state, jnp.asarray(lengths)


def new_tokens(state: State, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """What has been generated behind each prompt so far."""
    tokens, p = on_host((state.tokens, state.p))
    return [tokens[i, len(prompt) : p[i] + 1].tolist() for i, prompt in enumerate(prompts)]
