"""What a rule promises, and the driver that tosses a coin rule's coins inside the compiled loop.

A rule that rejects by coins is written once, as pure functions on one sequence, generic over the array namespace
(`xp`: jax.numpy in the loop, numpy in `verify/law.py`):

    start(xp, case) -> trial          the state before the first coin
    odds(xp, case, trial) -> (a, b)   the coin now tossed is heads with probability min(1, a / b)
    toss(xp, case, trial, heads)      the state after it
    residual(xp, case, trial) -> [V]  once trial.done: the unnormalised law of the token emitted last

The loop compares a uniform u with the odds (heads iff u·b < a, strictly: u = 0 never accepts a token of
probability zero); the exact law branches on them. Neither knows how the other decides.
"""

from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.sampling import Purpose, coin_key, draw, warped_probs
from sdjax.core.types import Context, Draft, Law, Verdict, rows
from sdjax.trees.tree import ancestor_mask


class Rule(Protocol):
    """Who judges: frozen and hashable. `laws` are those for which the output's law is exactly the target's."""

    laws: ClassVar[frozenset[Law]]
    chains_only: ClassVar[bool]

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict: ...


@struct.dataclass
class Case:
    """One sequence's draft with the target's warped law p at every node: what a coin rule reads."""

    tokens: Int[Array, " N"]
    parent: Int[Array, " N"]
    depth: Int[Array, " N"]
    valid: Bool[Array, " N"]
    p: Float[Array, "N V"]
    q: Float[Array, "I V"] | None
    q_row: Int[Array, " N"] | None


class CoinRule(Rule, Protocol):
    """A rule whose decisions are coins; its trials have the fields `done`, `node` (the last accepted), `coin`.

    `coin` is (depth, rank): the address of the next coin's noise. No two coins of a step share one.
    """

    def start(self, xp: Any, case: Case) -> Any: ...
    def odds(self, xp: Any, case: Case, trial: Any) -> tuple[Any, Any]: ...
    def toss(self, xp: Any, case: Case, trial: Any, heads: Any) -> Any: ...
    def residual(self, xp: Any, case: Case, trial: Any) -> Any: ...


def refuse_law(rule: Rule, draft: Draft) -> None:
    """Raises ValueError where the rule is not lossless for the way the draft was drawn."""
    if draft.law not in rule.laws:
        good = ", ".join(sorted(rule.laws))
        raise ValueError(f"{type(rule).__name__} is not lossless for a draft drawn {draft.law}; it is for: {good}")


def judge_by_coins(rule: CoinRule, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
    """Runs a coin rule on every sequence with its own keyed coins, then draws the last token from the residual."""
    refuse_law(rule, draft)

    def one(case: Case, seed: Array, p: Array):
        def toss(trial: Any) -> Any:
            a, b = rule.odds(jnp, case, trial)
            u = jax.random.uniform(coin_key(seed, p, Purpose.ACCEPT, *trial.coin))
            return rule.toss(jnp, case, trial, u * b < a)

        trial = jax.lax.while_loop(lambda trial: ~trial.done, toss, rule.start(jnp, case))
        residual = rule.residual(jnp, case, trial)
        return trial.node, draw(jnp.log(residual), coin_key(seed, p, Purpose.RESIDUAL))

    p = warped_probs(logits, ctx.warp)
    case = Case(draft.tokens, draft.parent, draft.depth, draft.valid, p, draft.q, draft.q_row)
    return verdict_at(draft, *jax.vmap(one)(case, ctx.seed, ctx.p))


def verdict_at(draft: Draft, node: Int[Array, " B"], bonus: Int[Array, " B"]) -> Verdict:
    """The verdict that accepts the path from the anchor down to `node`, then emits `bonus`."""
    on_path = rows(ancestor_mask(draft.parent, draft.max_depth), node)
    at_depth = draft.depth[:, None] == jnp.arange(draft.max_depth + 1)[:, None]
    path = jnp.argmax(on_path[:, None] & at_depth, -1)
    accepted = jnp.sum(on_path, -1) - 1
    return Verdict(path.astype(jnp.int32), accepted.astype(jnp.int32), bonus)
