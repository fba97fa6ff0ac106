"""Token verification: rejection sampling along a chain (Leviathan et al. 2022, Alg. 1; Chen et al. 2023, Alg. 2)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import Case, judge_by_coins


@struct.dataclass
class Trial:
    """`node` is the last accepted; `rejected` says whether its child was refused or there is none."""

    node: Int[Array, ""]
    rejected: Bool[Array, ""]
    done: Bool[Array, ""]

    @property
    def coin(self) -> tuple[Any, int]:
        return self.node + 1, 0


@dataclass(frozen=True)
class TokenRejection:
    """Accept draft x with probability min(1, p(x) / q(x)); at the first refusal emit from norm((p - q)+)."""

    laws: ClassVar[frozenset[Law]] = frozenset({Law.ONE_HOT, Law.IID, Law.WITHOUT_REPLACEMENT})
    chains_only: ClassVar[bool] = True

    def start(self, xp: Any, case: Case) -> Trial:
        return self.at(xp, case, xp.int32(0))

    def at(self, xp: Any, case: Case, node: Any) -> Trial:
        """The trial that stands at `node`: done where no child is left to test."""
        size = case.tokens.shape[0]
        child = xp.minimum(node + 1, size - 1)
        return Trial(node, xp.bool_(False), (node + 1 == size) | ~case.valid[child])

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        token = case.tokens[trial.node + 1]
        return case.p[trial.node, token], draft_law(xp, case, trial.node)[token]

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        ahead = self.at(xp, case, trial.node + 1)
        return Trial(xp.where(heads, ahead.node, trial.node), ~heads, ~heads | ahead.done)

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        """(p - q)+ after a refusal, p where every draft was accepted."""
        p = case.p[trial.node]
        left = xp.maximum(p - draft_law(xp, case, trial.node), 0)
        # A refusal with nothing left is rounding (p = q): p itself is then the law.
        return xp.where(trial.rejected & (left.sum() > 0), left, p)

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        return judge_by_coins(self, ctx, draft, logits)


def draft_law(xp: Any, case: Case, node: Any) -> Any:
    """The law of the draft after `node` on a chain: q's row, or a point mass on the draft where there is no q."""
    size = case.tokens.shape[0]
    if case.q is None:
        token = case.tokens[xp.minimum(node + 1, size - 1)]
        return (xp.arange(case.p.shape[-1]) == token).astype(case.p.dtype)
    return case.q[case.q_row[node]]
