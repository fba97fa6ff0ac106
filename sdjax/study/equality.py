"""Whether speculative decoding gave plain decoding's very tokens; and where it did not, by how little plain decoding chose."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sdjax.core.sampling import Purpose, Warp, coin_key
from sdjax.decode.generate import bucket, prefill, round_up, start
from sdjax.decode.state import State
from sdjax.mesh.layout import within
from sdjax.mesh.place import on_host
from sdjax.study.methods import Arm, Promise
from sdjax.study.runs import Record

# Logits that rounding may decide, by the target's precision; a larger gap is a fault. Among bfloat16 activations more is
# rounded than in mixed precision: one step of its numbers is 0.125 at the size of a language model's logits, 16 to 32.
NEAR_TIE = {"float32": 1e-3, "mixed": 0.1, "bfloat16": 0.125}


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
            f"is {self.found}, plain decoding's is {self.expected}; logits that move by {self.gap:.2g} exchange them"
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
        gap = gap_of((expected, found), next_logits(baseline, context), baseline.warp, plain.seed, len(context))
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


def gap_of(tokens: Sequence[int], logits: Float[Array, " V"], warp: Warp, seed: int, position: int) -> float:
    """How far logits must move apart for each of the tokens to be the choice: it is kept, and what scores higher is passed,
    or else dropped."""
    scores, edges = choice_scores(logits, warp, seed, position), margins(logits, warp)
    above = lambda token: np.minimum(scores - scores[token], np.maximum(edges, 0)).max()
    return max(float(max(above(token), -edges[token])) for token in tokens)


def choice_scores(logits: Float[Array, " V"], warp: Warp, seed: int, position: int) -> np.ndarray:
    """What `target_choice` takes the argmax of, in units of logits, among the tokens that the warp keeps: the logits, with
    keyed noise at temperature > 0."""
    if warp.greedy:
        return np.asarray(logits)
    key = coin_key(jnp.uint32(seed), jnp.int32(position), Purpose.TARGET)
    return np.asarray(logits + warp.temperature * jax.random.gumbel(key, logits.shape, jnp.float32))


def margins(logits: Float[Array, " V"], warp: Warp) -> Float[np.ndarray, " V"]:
    """How far logits must move apart for a token to be dropped; below 0, for one that is dropped to be kept: by changing
    places across the edge of top-k or top-p, by moving the mass above it past top-p, or itself past the floor of min-p.
    """
    x = np.asarray(logits, np.float64)
    found = np.full(x.shape, np.inf)
    if warp.greedy:
        return found

    def across(kept: np.ndarray) -> np.ndarray:
        return x - np.where(kept, x[~kept].max(initial=-np.inf), x[kept].min())

    if 0 < warp.top_k < len(x):
        found = across(x >= np.sort(x)[-warp.top_k])
    if warp.top_p < 1:
        there = found >= 0
        p = np.where(there, np.exp((x - x.max()) / warp.temperature), 0)
        levels, level = np.unique(x, return_inverse=True)
        mass = np.bincount(level, p / p.sum(), len(levels))
        above = (mass[::-1].cumsum()[::-1] - mass)[level]
        above = np.minimum(above, above[there].max())  # what top-k dropped would come back as the last of its tokens
        with np.errstate(divide="ignore"):
            log_odds = np.log(above) - np.log(np.maximum(1 - above, 0))
        moved = warp.temperature * (np.log(warp.top_p) - np.log1p(-warp.top_p) - log_odds)
        kept = above < warp.top_p
        found = np.minimum(found, np.where(kept, np.minimum(across(kept), moved), np.maximum(across(kept), moved)))
    if warp.min_p > 0:
        found = np.minimum(found, x - x.max() - warp.temperature * np.log(warp.min_p))
    return found
