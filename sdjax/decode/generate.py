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

from sdjax.core.cache import with_prefix
from sdjax.core.metrics import Steps
from sdjax.core.types import Records
from sdjax.decode import prefill as prefill_module
from sdjax.decode.state import Loop, Params, State
from sdjax.decode.step import step

LEAST_PREFIX = 256
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
def prefill(loop: Loop, params: Params, state: State, lengths: Int[Array, " B"]) -> State:
    """`decode.prefill`, compiled; the state is donated."""
    return prefill_module.prefill(loop, params, state, lengths)


@partial(jax.jit, static_argnames="loop", donate_argnames="state")
def run(loop: Loop, params: Params, state: State, max_rounds: Int[Array, ""]) -> State:
    """Steps until every sequence is done, max_rounds have run, or one outgrows the prefix that attention reads."""
    stop_at = state.step + max_rounds

    def goes_on(state: State) -> Array:
        fits = jnp.all(state.done | (state.p <= state.cache.prefix))
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
) -> Generation:
    """Generates at most `max_new` tokens behind each prompt (a batch of one or more, ragged).

    `seeds` key each sequence's noise (default 0, 1, ...). `capacity` is the cache's rows (default: what is needed,
    rounded up to a bucket). With `watch`, the host reads the new tokens so far after every `max_rounds` steps.
    Raises ValueError, before anything compiles, for a prompt that is empty, too long or outside the vocabulary.
    """
    check_prompts(loop, prompts, max_new)
    needed = rows_needed(loop, prompts, max_new)
    capacity = round_up(bucket(needed) if capacity is None else capacity, loop.chunk)
    if capacity < needed:
        longest = max(map(len, prompts))
        raise ValueError(
            f"the longest prompt has {longest} tokens and needs {needed} cache rows with {max_new} new tokens and a "
            f"draft {loop.drafter.depth} deep, but the cache holds {capacity}; raise capacity or shorten the prompt"
        )
    state, lengths = start(loop, prompts, max_new, seeds, capacity)
    begin = time.perf_counter()
    state = jax.block_until_ready(prefill(loop, params, with_prefix(state, bucket(max(map(len, prompts)))), lengths))
    prefilled = time.perf_counter()
    while not np.all(state.done):
        state = run(loop, params, with_prefix(state, next_prefix(state)), jnp.int32(max_rounds))
        if watch:
            watch(new_tokens(state, prompts))
    state = jax.block_until_ready(state)
    ended = time.perf_counter()
    records = jax.device_get(state.records)
    steps = [Steps.of(records, row) for row in range(len(prompts))]
    return Generation(new_tokens(state, prompts), steps, records, prefilled - begin, ended - prefilled)


def check_prompts(loop: Loop, prompts: Sequence[Sequence[int]], max_new: int) -> None:
    """Raises ValueError for what cannot be decoded, naming the prompt."""
    if not prompts:
        raise ValueError("no prompts were given")
    if max_new < 1:
        raise ValueError(f"max_new is {max_new}; at least one token must be generated")
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {i} is empty; give it at least one token, such as the tokenizer's BOS")
        if not 0 <= min(prompt) <= max(prompt) < loop.target.vocab:
            raise ValueError(f"prompt {i} has token ids outside the vocabulary (0..{loop.target.vocab - 1})")
        if len(prompt) + max_new > loop.target.max_position:
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens; with {max_new} new ones it exceeds the {loop.target.max_position} "
                "positions the target was made for"
            )


def rows_needed(loop: Loop, prompts: Sequence[Sequence[int]], max_new: int) -> int:
    """Cache rows that a run touches: prompts padded to whole chunks, and room for a step's overhang."""
    longest = max(map(len, prompts))
    return max(round_up(longest, loop.chunk), longest + max_new + loop.drafter.depth + 1)


def round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def bucket(n: int) -> int:
    """The power of two that holds n, at least LEAST_PREFIX: one program is compiled for each."""
    return max(LEAST_PREFIX, 1 << (n - 1).bit_length())


def next_prefix(state: State) -> int:
    """A bucket with room to grow for the longest sequence still running, and no larger than its end needs."""
    running = ~np.asarray(state.done)
    p, last = np.asarray(state.p)[running], np.asarray(state.last)[running]
    return bucket(int(min(p.max() + LEAST_PREFIX // 2, last.max())))


def start(
    loop: Loop, prompts: Sequence[Sequence[int]], max_new: int, seeds: Sequence[int] | None, capacity: int
) -> tuple[State, Int[Array, " B"]]:
    """The state that holds the prompts, and their lengths."""
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    tokens = np.zeros((len(prompts), capacity), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    seeds = range(len(prompts)) if seeds is None else seeds
    if len(seeds) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts, but {len(seeds)} seeds")
    state = loop.empty(len(prompts), capacity, 1 << (max_new - 1).bit_length())
    state = state.replace(
        tokens=jnp.asarray(tokens),
        last=jnp.asarray(lengths + max_new - 1),
        seed=jnp.asarray([seed % 2**32 for seed in seeds], jnp.uint32),
    )
    return state, jnp.asarray(lengths)


def new_tokens(state: State, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """What has been generated behind each prompt so far."""
    tokens, p = np.asarray(state.tokens), np.asarray(state.p)
    return [tokens[i, len(prompt) : p[i] + 1].tolist() for i, prompt in enumerate(prompts)]
