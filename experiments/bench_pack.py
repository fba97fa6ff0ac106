"""Packed verification against padded on SmolLM2-135M: `make bench-pack`, or `python -m experiments.bench_pack`.

Steps of the real decode loop, float32, batch 8, drafts of 7 tokens that cost nothing and are never accepted. Their
survivals are products of conditional acceptances drawn from Beta(9, 1), mean 0.9 (DSpark's first slot is accepted 0.88 of
the time, arXiv:2607.05147); its synchronous rule then cuts them, by the cost curve below, to about 4 rows a sequence; what
the compiled width has room for is filled: 4.7 rows, the anchor and 3.7 drafts of 7 (the paper verifies 4 to 6 tokens).
Everything is measured in one run, interleaved, medians quoted. The last line is one JSON object:

packed_over_padded        a step that cuts and packs, over one that runs all 8 × 8 rows
full_pack_over_padded     a step that packs and cuts nothing, over the same: what choosing a width costs
rows_a_sequence           rows that the target really ran a step and sequence, padding to a width included
kept_a_sequence           rows that the schedule kept
"""

import json
import time
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import sdjax
from experiments.launch import takes_no_arguments
from sdjax.core.sampling import Purpose, Warp, coin_key
from sdjax.core.types import Context, Draft, Law
from sdjax.decode.generate import prefill, run, start
from sdjax.decode.schedule import Prefix, Throughput
from sdjax.decode.state import Loop, Params, State
from sdjax.targets.decoder import Decoder
from sdjax.trees.hardware import CostCurve
from sdjax.trees.tree import Tree
from sdjax.verify.walk import Walk

BATCH = 8
FILLED = 160  # committed rows when timing starts
ROUNDS = 12
REPEATS = 5
WIDTHS = (24, 32, 40, 48)
# t(n) of this model on two CPU cores (make bench-decode), fixed so that every run verifies the same lengths.
COSTS = CostCurve(tokens=(1, 8, 16, 32, 64), verify=(1.0, 2.7, 3.7, 6.5, 10.5), draft=0.0)


@dataclass(frozen=True)
class Confident:
    """Drafts a chain of whatever comes, with survivals as of a drafter that is accepted 0.9 of the time."""

    length: int = 7
    taps: ClassVar[tuple[int, ...]] = ()
    is_chain: ClassVar[bool] = True

    @property
    def depth(self) -> int:
        return self.length

    @property
    def nodes(self) -> int:
        return self.length + 1

    def specs(self, target: Decoder) -> dict[str, Any]:
        return {}

    def empty(self, target: Decoder, batch: int, capacity: int) -> None:
        return None

    def observe(self, ctx: Context, params: Any, state: None, seen: Any, scratch: Any = None) -> None:
        return None

    def propose(self, ctx: Context, params: Any, state: None) -> tuple[Draft, None]:
        def one(seed: jax.Array, p: jax.Array) -> jax.Array:
            return jax.random.beta(coin_key(seed, p, Purpose.DRAFT), 9.0, 1.0, (self.length,))

        survival = jnp.pad(jnp.cumprod(jax.vmap(one)(ctx.seed, ctx.p), 1), ((0, 0), (1, 0)), constant_values=1)
        tokens = (ctx.anchor[:, None] + jnp.arange(self.nodes)) % ctx.target.vocab
        return Tree.chain(self.length).draft(tokens, Law.ONE_HOT).replace(survival=survival), None

    @classmethod
    def tiny(cls, target: Decoder) -> "Confident":
        return cls(length=3)


def filled(loop: Loop, params: Params) -> State:
    """The state behind prompts of FILLED different tokens."""
    prompts = [list(range(100 * (row + 1), 100 * (row + 1) + FILLED)) for row in range(BATCH)]
    state, lengths = start(loop, prompts, 64, None, 256)
    return jax.block_until_ready(prefill(loop, params, state, lengths))


def timed(loop: Loop, params: Params, state: State) -> tuple[float, State]:
    """Seconds of a step, of ROUNDS in one call from a copy of the state; and what it became."""
    state = jax.block_until_ready(jax.tree.map(jnp.copy, state))
    begin = time.perf_counter()
    state = jax.block_until_ready(run(loop, params, state, jnp.int32(ROUNDS)))
    return (time.perf_counter() - begin) / ROUNDS, state


def rows_a_step(state: State, what: str) -> float:
    return float(np.asarray(getattr(state.records, what))[:, :ROUNDS].mean())


def main() -> None:
    model = sdjax.load("smollm2-135m")
    params = Params(jax.block_until_ready(model.params), {})
    loop = partial(Loop, model.target, Confident(), Walk(), Warp(0.0))
    loops = {
        "padded": loop(),
        "packed": loop(schedule=Prefix(Throughput(COSTS)), pack=WIDTHS),
        "packed, nothing cut": loop(pack=WIDTHS),
    }
    state = filled(loops["padded"], params)  # no schedule here remembers anything: one state serves all
    done = {name: timed(loop, params, state)[1] for name, loop in loops.items()}  # compiles
    rounds = [{name: timed(loop, params, state)[0] for name, loop in loops.items()} for _ in range(REPEATS)]
    for name in loops:
        print(f"{name:22} {1e3 * median(times[name] for times in rounds):8.1f} ms a step")
    of_padded = lambda name: median(times[name] / times["padded"] for times in rounds)
    figures = {
        "packed_over_padded": of_padded("packed"),
        "full_pack_over_padded": of_padded("packed, nothing cut"),
        "rows_a_sequence": rows_a_step(done["packed"], "verified"),
        "kept_a_sequence": rows_a_step(done["packed"], "proposed") + 1,
    }
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    takes_no_arguments("bench_pack", __doc__)
    main()
