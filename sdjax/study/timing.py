"""Fair clocks: every program compiled and run once before anything is timed, and the portable costs of a step."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sdjax.core.cache import with_rows
from sdjax.core.types import Draft
from sdjax.decode import pack
from sdjax.decode.generate import LEAST_ROWS, bucket, next_rows, overhang, prefill, rows_at_first, run, start
from sdjax.decode.place import put_back
from sdjax.decode.probes import append_probes, split_probes
from sdjax.decode.state import Loop, Params, State
from sdjax.decode.step import schedule
from sdjax.mesh.layout import within
from sdjax.study.methods import Arm
from sdjax.trees.tree import ancestor_mask, present

ROUNDS = 4  # steps a timed call of the loop runs
REPEATS = 7  # the median of so many calls counts


@dataclass(frozen=True)
class Costs:
    """What one step costs, in steps of plain decoding from the same state: the part of a speed-up that travels."""

    draft: float
    verify: float
    overhead: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Shapes:
    """What decides which programs are compiled: sequences of a batch, token cap, and how many rows the caches may have."""

    batch: int
    capacity: int
    max_new: int
    prefill_rows: frozenset[int]
    run_rows: frozenset[int]


def shapes_of(loop: Loop, batches: Iterable[Sequence[Sequence[int]]], capacity: int, max_new: int) -> list[Shapes]:
    """The shapes that decoding these batches of prompts will meet, one entry for each number of rows."""
    found: dict[int, tuple[set[int], set[int]]] = {}
    for batch in batches:
        lengths = [len(prompt) for prompt in batch]
        at_prefill, at_run = found.setdefault(len(batch), (set(), set()))
        at_prefill.add(rows_at_first(loop, max(lengths), capacity))
        last = [length + max_new - 1 for length in lengths]
        ends = min(min(n + LEAST_ROWS // 2, end) for n, end in zip(lengths, last, strict=True))
        size = bucket(ends + overhang(loop))
        while size < 2 * bucket(max(last) + overhang(loop)):
            at_run.add(min(size, capacity))
            size *= 2
    return [Shapes(rows, capacity, max_new, frozenset(a), frozenset(b)) for rows, (a, b) in found.items()]


def warm_up(arm: Arm, shapes: Shapes) -> None:
    """Compiles what decoding these shapes needs, and runs each program once."""
    prompts = [[0]] * shapes.batch
    with within(arm.layout):
        for first in sorted(shapes.prefill_rows):
            state, lengths = start(arm.loop, prompts, shapes.max_new, None, shapes.capacity, arm.layout, first)
            state = put_back(arm.layout, arm.loop, prefill(arm.loop, arm.params, state, lengths))
            jax.block_until_ready([with_rows(state, rows) for rows in shapes.run_rows])
        for rows in sorted(shapes.run_rows):
            state = run(arm.loop, arm.params, with_rows(state, rows), jnp.int32(1))
        jax.block_until_ready(state)


@contextmanager
def no_compilation(label: str) -> Iterator[None]:
    """Raises RuntimeError if the decode programs were compiled inside: the clock would have measured the compiler."""
    before = programs()
    yield
    if programs() != before:
        raise RuntimeError(f"{label}: a program was compiled while the clock ran (programs {before} → {programs()})")


def programs() -> list[int]:
    """How many programs prefill and decode loop have been compiled into."""
    jitted: list[Any] = [prefill, run]
    return [function._cache_size() for function in jitted]


@partial(jax.jit, static_argnames="loop")
def propose(loop: Loop, params: Params, state: State) -> tuple[Draft, Any]:
    """The drafter's part of a step alone."""
    return loop.drafter.propose(loop.context(params, state), params.drafter, state.drafter)


@partial(jax.jit, static_argnames=("target", "taps", "max_depth"))
def verify(target: Any, taps: tuple, max_depth: int, params: Any, cache: Any, p: Array, draft: dict[str, Any]) -> Any:
    """The target's part of a step alone: forward over the draft, probes included where it has some, and its logits."""
    x, probes = target.embed(params, draft["tokens"]), draft.get("probes")
    x, depth, mask = append_probes(probes, x, draft["depth"], ancestor_mask(draft["parent"], max_depth))
    out = target.forward(params, x, p[:, None] + depth, cache, mask, taps=taps)
    hidden, probed = split_probes(probes, out.hidden)
    return target.unembed(params, hidden), probed, out.staged, out.features


@partial(jax.jit, static_argnames="loop")
def verify_packed(loop: Loop, params: Params, state: State, draft: Draft) -> Any:
    """The same of a loop that packs: over what its schedule leaves of the draft."""
    ancestors = ancestor_mask(draft.parent, draft.max_depth)
    draft = draft.replace(valid=present(draft, ancestors))
    _, draft = schedule(loop, state, loop.context(params, state), draft)
    out, logits, _ = pack.verify(loop, params, state, draft, ancestors)
    return logits, out.staged, out.features


def measure(arms: Sequence[Arm], prompts: Sequence[Sequence[int]], capacity: int, max_new: int) -> dict[str, Costs]:
    """The costs of each arm's step behind these prompts (one batch), by label; the first arm is plain decoding.

    Parts and arms take turns, so that a drift of the machine hits all alike; the median of each counts.
    """
    with within(arms[0].layout):
        clocks = {arm.label: Clocks(arm, prefilled(arm, prompts, capacity, max_new)) for arm in arms}
        for _ in range(1 + REPEATS):  # the first round compiles, and is left out
            for clock in clocks.values():
                clock.tick()
    _, _, plain = clocks[arms[0].label].medians()
    costs = {}
    for label, clock in clocks.items():
        draft, verify, step = clock.medians()
        costs[label] = Costs(draft / plain, verify / plain, (step - draft - verify) / plain)
    return costs


class Clocks:
    """Seconds of drafting alone, of the target's pass alone and of a whole step of one arm, always from the same state."""

    def __init__(self, arm: Arm, state: State):
        self._arm, self._state = arm, state
        self._draft, _ = propose(arm.loop, arm.params, state)
        self._seconds: list[tuple[float, float, float]] = []

    def tick(self) -> None:
        """Times each part once."""
        self._seconds.append((seconds(self.propose), seconds(self.verify), self.step_seconds()))

    def medians(self) -> tuple[float, float, float]:
        """Of drafting, verifying, a step; NaN where no step could run."""
        draft, verify, step = np.median(self._seconds[1:], axis=0).tolist()
        return draft, verify, step

    def propose(self) -> Any:
        return propose(self._arm.loop, self._arm.params, self._state)

    def verify(self) -> Any:
        draft, loop = self._draft, self._arm.loop
        if loop.pack:
            return verify_packed(loop, self._arm.params, self._state, draft)
        parts = {name: getattr(draft, name) for name in ("tokens", "parent", "depth", "probes")}
        target, taps = loop.target, loop.drafter.taps
        return verify(target, taps, draft.max_depth, self._arm.params.target, self._state.cache, self._state.p, parts)

    def step_seconds(self) -> float:
        """A step inside the compiled loop, which runs ROUNDS of them on a copy of the state (it keeps what it is given)."""
        state = jax.block_until_ready(jax.tree.map(jnp.copy, self._state))
        begin = time.perf_counter()
        state = jax.block_until_ready(run(self._arm.loop, self._arm.params, state, jnp.int32(ROUNDS)))
        passed = time.perf_counter() - begin
        return passed / int(state.step) if int(state.step) else float("nan")


def prefilled(arm: Arm, prompts: Sequence[Sequence[int]], capacity: int, max_new: int) -> State:
    """The state behind the prompts, with the cache rows that decoding would take."""
    rows = rows_at_first(arm.loop, max(map(len, prompts)), capacity)
    state, lengths = start(arm.loop, prompts, max_new, None, capacity, arm.layout, rows)
    state = put_back(arm.layout, arm.loop, prefill(arm.loop, arm.params, state, lengths))
    state = state.replace(done=state.done & False)
    return with_rows(state, next_rows(arm.loop, state.p, state))


def seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begin


def median_seconds(call: Callable[[], Any]) -> float:
    """Seconds of a call, the median of REPEATS behind one that compiles its program."""
    call()
    return float(np.median([seconds(call) for _ in range(REPEATS)]))
