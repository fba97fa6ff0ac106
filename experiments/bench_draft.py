"""What drafting costs on SmolLM2-135M, in steps of plain decoding: `make bench-draft`, or

    python -m experiments.bench_draft [eagle3 medusa ..] [--repeats 15] [--temperature 0]

Each family of configs/train/NAME_smollm2.py drafts its chain with fresh weights, with the config's draft vocabulary and with
the target's whole one; EAGLE-3 also drafts a chain of 5, DFlash blocks of 7 and 15. `propose` is a draft; `observe` takes in
the depth + 1 tokens that a step commits at most: as many rows run, whatever was accepted. Both are calls of their own, what a
call costs included, and take turns with plain steps in the compiled loop; medians are quoted, all is float32, batch 1, behind
FILLED rows. The last line is one JSON object:

plain_step_ms             a step of plain decoding
lm_head_fraction          of which the target's vocabulary matrix, read for one token
families.NAME.VOCABULARY  {"propose", "observe", "both"} as fractions of a plain step; the vocabulary is a size, or "whole"
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import sdjax
from experiments.bench_decode import FILLED, loop_timer
from experiments.bench_train import configs_of, rounded
from experiments.launch import command_line, decode_in_float32, mistakes_end_the_program
from sdjax.core.cache import Cache, with_rows
from sdjax.core.sampling import Warp
from sdjax.core.types import Committed
from sdjax.decode.state import Loop, Params, State
from sdjax.drafters.base import with_parts
from sdjax.drafters.head import DraftHead
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.timing import propose
from sdjax.targets.load import Model
from sdjax.trees.tree import Tree
from sdjax.verify.walk import Walk

CAPACITY, PREFIX = 1024, 256  # rows of a cache, and those that attention reads
LONGER = Tree.chain(5)
LONGER_BLOCKS = (7, 15)


@dataclass(frozen=True)
class Bench:
    """What is measured."""

    families: tyro.conf.Positional[tuple[str, ...]] = ()
    """names of configs/train/NAME_smollm2.py; none: all of them"""
    repeats: int = 15
    """calls whose median counts"""
    temperature: float = 0.0
    """of the drafts; 0 is argmax"""


def main(bench: Bench) -> dict[str, Any]:
    decode_in_float32()
    model = sdjax.load("smollm2-135m")
    clocks: dict[tuple[str, str, str], Clock] = {}
    for name, drafter in drafters(bench.families).items():
        for vocabulary, one in vocabularies(drafter).items():
            print(f"compiling {name}, vocabulary {vocabulary}", flush=True)
            clocks |= {(name, vocabulary, part): clock for part, clock in clocks_of(model, one, bench.temperature).items()}
    plain, head = loop_timer(model.target, model.params, NoDraft(), CAPACITY), head_clock(model)
    for _ in range(bench.repeats):
        plain.sample()
        for clock in [head, *clocks.values()]:
            clock.sample()
    found: dict[str, Any] = {}
    for (name, vocabulary, part), clock in clocks.items():
        found.setdefault(name, {}).setdefault(vocabulary, {})[part] = clock.median / plain.median
    for costs in (costs for family in found.values() for costs in family.values()):
        costs["both"] = costs["propose"] + costs["observe"]
    show(found, plain.median)
    figures = {"plain_step_ms": 1e3 * plain.median, "lm_head_fraction": head.median / plain.median, "families": found}
    print(json.dumps(rounded(figures)))
    return figures


def drafters(families: tuple[str, ...]) -> dict[str, Any]:
    """Who drafts, by name."""
    found = {name: config.drafter for name, config in configs_of(families).items()}
    if "eagle3" in found:
        found["eagle3, chain of 5"] = replace(found["eagle3"], tree=LONGER)
    if "dflash" in found:
        found |= {f"dflash, block of {length}": replace(found["dflash"], length=length) for length in LONGER_BLOCKS}
    return found


def vocabularies(drafter: Any) -> dict[str, Any]:
    """The drafter with its own draft vocabulary, by size, and with the whole vocabulary."""
    sizes: list[int | None] = []

    def whole(head: DraftHead) -> DraftHead:
        sizes.append(head.size)
        return replace(head, size=None)

    found = {"whole": with_parts(drafter, DraftHead, whole)}
    return {str(size): drafter for size in sizes if size} | found


@dataclass
class Clock:
    """A timed call on what `fresh` makes for it, off the clock."""

    call: Callable[[Any], Any]
    fresh: Callable[[], Any] = lambda: None
    seconds: list[float] = field(default_factory=list)

    def sample(self) -> None:
        given = jax.block_until_ready(self.fresh())
        begin = time.perf_counter()
        jax.block_until_ready(self.call(given))
        self.seconds.append(time.perf_counter() - begin)

    @property
    def median(self) -> float:
        return median(self.seconds)


def clocks_of(model: Model, drafter: Any, temperature: float) -> dict[str, Clock]:
    """A draft, and taking in what a step commits; both are compiled and have run once."""
    loop = Loop(model.target, drafter, Walk(), Warp(temperature))
    counts = np.ones(model.target.vocab, np.int64)
    params = Params(model.params, drafter.initial(model.target, model.params, counts, jax.random.key(0)))
    state, seen = filled(loop), committed(loop)
    _, scratch = propose(loop, params, state)
    clocks = {
        "propose": Clock(lambda _: propose(loop, params, state)),
        "observe": Clock(
            lambda own: observe(loop, params, state, own, seen, scratch), lambda: jax.tree.map(jnp.copy, state.drafter)
        ),
    }
    for clock in clocks.values():
        clock.sample()
        clock.seconds.clear()
    return clocks


@partial(jax.jit, static_argnames="loop", donate_argnames="own")
def observe(loop: Loop, params: Params, state: State, own: Any, seen: Committed, scratch: Any) -> Any:
    """The drafter's state behind a step; its caches are written in place, as in the loop."""
    ctx = loop.context(params, state.replace(p=state.p + seen.count))
    return loop.drafter.observe(ctx, params.drafter, own, seen, scratch)


def filled(loop: Loop) -> State:
    """A state behind FILLED tokens, made up: what it holds is random."""
    length, key = jnp.full(1, FILLED, jnp.int32), jax.random.key(0)
    is_cache = lambda x: isinstance(x, Cache)
    full = lambda x: x.replace(length=length) if is_cache(x) else x
    state = jax.tree.map(full, loop.empty(1, CAPACITY, 1).replace(p=length), is_leaf=is_cache)
    draw = lambda x: jax.random.normal(key, x.shape, x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x
    return with_rows(state.replace(drafter=jax.tree.map(draw, state.drafter)), PREFIX)


def committed(loop: Loop) -> Committed:
    """All tokens of the drafter's longest path, and the anchor."""
    width, target = loop.drafter.depth + 1, loop.target
    place = jnp.arange(width, dtype=jnp.int32)[None]
    features = jax.random.normal(jax.random.key(1), (1, width, len(loop.drafter.taps), target.width), jnp.dtype(target.dtype))
    return Committed(place, FILLED + place, place + 1, features, node=place, count=jnp.full(1, width, jnp.int32))


def head_clock(model: Model) -> Clock:
    """The target's vocabulary product for one token."""
    product = jax.jit(model.target.unembed)
    hidden = jax.random.normal(jax.random.key(2), (1, 1, model.target.width), jnp.dtype(model.target.dtype))
    clock = Clock(lambda _: product(model.params, hidden))
    clock.sample()
    clock.seconds.clear()
    return clock


def show(found: dict[str, Any], plain: float) -> None:
    table = Table(title=f"drafting, in plain steps of {1e3 * plain:.1f} ms", title_justify="left")
    for title in ("family", "vocabulary", "propose", "observe", "both"):
        table.add_column(title, justify="left" if title == "family" else "right")
    for name, family in found.items():
        for i, (vocabulary, costs) in enumerate(family.items()):
            parts = (f"{costs[part]:.1%}" for part in ("propose", "observe", "both"))
            table.add_row("" if i else name, vocabulary, *parts)
    Console().print(table)


if __name__ == "__main__":
    with mistakes_end_the_program():
        main(command_line("bench_draft", Bench, __doc__))
