"""Token verification: rejection sampling along a chain (Leviathan et al. 2022, Alg. 1; Chen et al. 2023, Alg. 2)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import Case, WarpedRows, branch, judge_by_coins, next_child
from sdjax.verify.proposal import drawn_law, drawn_odds, rest_at


@struct.dataclass
class Trial:
    """`node` is the last accepted, `child` under test; `rejected` says whether it was refused."""

    node: Int[Array, ""]
    child: Int[Array, ""]
    rejected: Bool[Array, ""]
    done: Bool[Array, ""]

    @property
    def coin(self) -> tuple[Any, int]:
        return self.child, 0


@dataclass(frozen=True)
class TokenRejection:
    """Accept draft x with probability min(1, p(x) / q(x)); at the first refusal emit from norm((p - q)+).

    Lossless for every law: the single child of a chain is drawn from q, or fixed.
    """

    laws: ClassVar[frozenset[Law]] = frozenset(Law)
    chains_only: ClassVar[bool] = True
    lossless: ClassVar[bool] = True
    by_numbers: ClassVar[bool] = False
    greedy: ClassVar[bool] = False

    def start(self, xp: Any, case: Case) -> Trial:
        return self.at(xp, case, xp.int32(0))

    def at(self, xp: Any, case: Case, node: Any) -> Trial:
        """The trial that stands at `node`: done where no child is left to test."""
        child, found = next_child(xp, case, node, node)
        return Trial(node, child, xp.bool_(False), ~found)

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        token = case.tokens[trial.child]
        return case.p[trial.node, token], drawn_odds(xp, rest_at(case, trial.node), token)

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        refused = lambda: trial.replace(rejected=xp.bool_(True), done=xp.bool_(True))
        return branch(xp, heads, lambda: self.at(xp, case, trial.child), refused)

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        """(p - q)+ after a refusal, p where every draft was accepted."""
        p, token = case.p[trial.node], case.tokens[trial.child]
        left = xp.maximum(p - drawn_law(xp, p, rest_at(case, trial.node), token), 0)
        # A refusal with nothing left is rounding (p = q): p itself is then the law.
        return xp.where(trial.rejected & (left.sum(0) > 0), left, p)

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        return judge_by_coins(self, ctx, draft, WarpedRows(logits, ctx.warp))
