"""Approximate Speculative Decoding, lossy and greedy: mismatches are let through on a budget of logit regret.

Feng et al. 2026, arXiv:2608.03447; the rule as a public kernel that cites the paper states it (the paper's body was not
available). There the ledger lasts for a whole request; here a rule keeps nothing between steps, so the budget is a
block's: a request's regret is at most `budget` times its number of steps.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import Case, judge_by_coins, marked, next_child, repeat


@struct.dataclass
class Trial:
    """Over before the first coin. `node` is the last accepted; `ledger` the regret spent, `relaxed` the mismatches."""

    node: Int[Array, ""]
    ledger: Float[Array, ""]
    relaxed: Int[Array, ""]
    going: Bool[Array, ""]
    done: Bool[Array, ""]

    @property
    def coin(self) -> tuple[int, int]:
        return 0, 0


@dataclass(frozen=True)
class ApproximateGreedy:
    """A mismatch x at place i of K costs r = max z - z(x) on the target's logits z; the argmax costs nothing.

    It passes while Σr ≤ budget, r/(K - i) ≤ gate and at most `exceptions` have passed; the first failure emits the
    target's argmax. budget = 0 is exactly greedy decoding, ties included; else NOT lossless.
    """

    budget: float = 2.0
    gate: float = 0.25
    exceptions: int = 2
    laws: ClassVar[frozenset[Law]] = frozenset({Law.ONE_HOT})
    chains_only: ClassVar[bool] = True
    lossless: ClassVar[bool] = False
    by_numbers: ClassVar[bool] = True
    greedy: ClassVar[bool] = True

    def __post_init__(self):
        for name in ("budget", "gate", "exceptions"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"approximate: {name} is {getattr(self, name)}; it must be ≥ 0")

    def start(self, xp: Any, case: Case) -> Trial:
        drafts = xp.where(case.valid, case.depth, 0).max()

        def test(trial: Trial) -> Trial:
            child, found = next_child(xp, case, trial.node, trial.node)
            z = case.p[trial.node]
            regret = (z.max(0) - z[case.tokens[child]]).astype(trial.ledger.dtype)
            match = z.argmax(0) == case.tokens[child]
            affordable = (self.budget > 0) & (trial.ledger + regret <= self.budget)
            gated = (regret <= self.gate * (drafts - case.depth[trial.node])) & (trial.relaxed < self.exceptions)
            passes = found & (match | (affordable & gated))
            return Trial(
                node=xp.where(passes, child, trial.node),
                ledger=trial.ledger + xp.where(passes & ~match, regret, 0),
                relaxed=trial.relaxed + xp.where(passes & ~match, 1, 0).astype(xp.int32),
                going=passes,
                done=xp.bool_(True),
            )

        begin = Trial(xp.int32(0), xp.float32(0), xp.int32(0), xp.bool_(True), xp.bool_(True))
        return repeat(xp, lambda trial: trial.going, test, begin)

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        return 0, 1

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        return trial

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        """A point mass on the target's argmax."""
        z = case.p[trial.node]
        return marked(xp, z, z.argmax(0)).astype(z.dtype)

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        if not ctx.warp.greedy:
            raise ValueError(f"ApproximateGreedy judges greedy decoding only; the temperature is {ctx.warp.temperature}")
        return judge_by_coins(self, ctx, draft, logits)
