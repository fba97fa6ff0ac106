"""Block verification of a chain: the longest prefix whose own test passes (Sun et al. 2024, arXiv:2403.10444, Alg. 2)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import Case, WarpedRows, branch, judge_by_coins, next_child
from sdjax.verify.proposal import drawn_law, drawn_odds, rest_at


@struct.dataclass
class Trial:
    """`node` is the last prefix that passed, `scale` its P; `child` is under test, `weight` its P."""

    node: Int[Array, ""]
    scale: Float[Array, ""]
    child: Int[Array, ""]
    weight: Float[Array, ""]
    done: Bool[Array, ""]

    @property
    def coin(self) -> tuple[Any, int]:
        return self.child, 0


@dataclass(frozen=True)
class BlockVerification:
    """P_i = min(1, P_{i-1} p/q); prefix i < last passes with A/(A + 1 - P_i), A = Σ(P_i p - q)+, the last with P.

    A failure stops nothing: the largest passing prefix is kept, then norm((P p - q)+) is emitted. Lossless for every
    law; never fewer tokens than token verification, and the same where the draft is one-hot.
    """

    laws: ClassVar[frozenset[Law]] = frozenset(Law)
    chains_only: ClassVar[bool] = True
    lossless: ClassVar[bool] = True
    by_numbers: ClassVar[bool] = False
    greedy: ClassVar[bool] = False

    def start(self, xp: Any, case: Case) -> Trial:
        one = xp.ones_like(case.p[0, 0])
        return self.ahead(xp, case, xp.int32(0), one, xp.int32(0), one)

    def ahead(self, xp: Any, case: Case, node: Any, scale: Any, tested: Any, weight: Any) -> Trial:
        """The trial whose next test is that of `tested`'s child; done where it has none."""
        child, found = next_child(xp, case, tested, tested)
        token = case.tokens[child]
        ratio = case.p[tested, token] / drawn_odds(xp, rest_at(case, tested), token)
        return Trial(node, scale, child, xp.minimum(1, weight * ratio), ~found)

    def excess(self, xp: Any, case: Case, node: Any, weight: Any) -> tuple[Any, Any]:
        """(P p - q)+ behind `node` [V, ...], and whether a draft stands there at all."""
        child, found = next_child(xp, case, node, node)
        p = case.p[node]
        return xp.maximum(weight * p - drawn_law(xp, p, rest_at(case, node), case.tokens[child]), 0), found

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        excess, inner = self.excess(xp, case, trial.child, trial.weight)
        total = excess.sum(0)
        bound = total + 1 - trial.weight
        certain = ~inner | (bound <= 0)  # 0/0 counts as 1; the last draft is tested with P itself
        return xp.where(certain, trial.weight, total), xp.where(certain, 1, bound)

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        node, scale = branch(xp, heads, lambda: (trial.child, trial.weight), lambda: (trial.node, trial.scale))
        return self.ahead(xp, case, node, scale, trial.child, trial.weight)

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        """(P p - q)+ behind the last prefix that passed; p where that is the whole draft."""
        excess, inner = self.excess(xp, case, trial.node, trial.scale)
        return xp.where(inner & (excess.sum(0) > 0), excess, case.p[trial.node])

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        return judge_by_coins(self, ctx, draft, WarpedRows(logits, ctx.warp))
