"""Whether speculative decoding gave plain decoding's very tokens; and where it did not, by how little plain decoding chose."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sdjax.core.sampling import Purpose, Warp, coin_key, warp_logits
from sdjax.decode.generate import bucket, prefill, round_up, start
from sdjax.decode.state import State
from sdjax.mesh.layout import within
from sdjax.mesh.place import on_host
from sdjax.study.methods import Arm, Promise
from sdjax.study.runs import Record

# Logits that rounding may decide, by the target's precision; a larger gap is a fault.
NEAR_TIE = {"float32": 1e-3, "mixed": 0.1, "bfloat16": 1e-3}


@dataclass(frozen=True)
class Mismatch:
    """The first token that differs: `position` counts new tokens from 0; `gap` is in logits, inf where one side ended.

    It is a fault unless the gap is below `near_tie`.
    """

    method: str
    temperature: float
    prompt: str
    turn: int
    position: int
    expected: int | None
    found: int | None
    gap: float
    near_tie: float

    @property
    def fails(self) -> bool:
        return not self.gap < self.near_tie

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"fails": self.fails}

    def __str__(self) -> str:
        kind = "FAILURE" if self.fails else "near-tie"
        return (
            f"{kind}: {self.method} T={self.temperature:g} on {self.prompt}, turn {self.turn + 1}: new token {self.position} "
            f"is {self.found}, plain decoding's is {self.expected}, which led by {self.gap:.2g} logits"
        )


def mismatches(groups: Sequence[Sequence[Arm]], records: Sequence[Record]) -> list[Mismatch]:
    """Every (method, prompt) whose tokens should equal the baseline's and do not."""
    found = []
    for baseline, *others in groups:
        plain = {record.item: record for record in records if record.arm == baseline.key}
        exact = {arm.key for arm in others if arm.promise is Promise.TOKENS}
        for record in records:
            if record.arm in exact and record.tokens != plain[record.item].tokens:
                found.append(explain(baseline, plain[record.item], record))
    return found


def explain(baseline: Arm, plain: Record, other: Record) -> Mismatch:
    """The first difference, and how close plain decoding's choice was there."""
    position = first_difference(plain.tokens, other.tokens)
    expected, found = (tokens[position] if position < len(tokens) else None for tokens in (plain.tokens, other.tokens))
    gap = float("inf")
    if expected is not None and found is not None:
        context = [*plain.prompt_tokens, *plain.tokens[:position]]
        scores = choice_scores(next_logits(baseline, context), baseline.warp, plain.seed, len(context))
        gap = abs(float(scores[expected] - scores[found]))
    near_tie = NEAR_TIE[baseline.loop.target.precision]
    return Mismatch(*other.arm, *other.item, position, expected, found, gap, near_tie)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """The first index at which two different sequences differ; the shorter's length if it begins the longer."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def next_logits(baseline: Arm, context: Sequence[int]) -> Float[Array, " V"]:
    """The target's logits behind the context: its last token runs alone, as in a step of plain decoding."""
    capacity = round_up(bucket(len(context) + 1), baseline.loop.chunk)
    with within(baseline.layout):
        state, lengths = start(baseline.loop, [context[:-1]], 1, None, capacity, baseline.layout)
        state = prefill(baseline.loop, baseline.params, state, lengths)
        return on_host(run_alone(baseline.loop.target, baseline.params.target, state, jnp.int32([[context[-1]]])))


@partial(jax.jit, static_argnames="target")
def run_alone(target: Any, params: Any, state: State, token: Array) -> Float[Array, " V"]:
    """Logits behind one more token."""
    out = target.forward(params, target.embed(params, token), state.p[:, None], state.cache, jnp.ones((1, 1, 1), bool))
    return target.unembed(params, out.hidden)[0, 0]


def choice_scores(logits: Float[Array, " V"], warp: Warp, seed: int, position: int) -> np.ndarray:
    """What `target_choice` takes the argmax of, in units of logits: the logits, with keyed noise at temperature > 0."""
    if warp.greedy:
        return np.asarray(logits)
    key = coin_key(jnp.uint32(seed), jnp.int32(position), Purpose.TARGET)
    noise = jax.random.gumbel(key, logits.shape, jnp.float32)
    return np.asarray((warp_logits(logits, warp) + noise) * warp.temperature)
