"""Multi-round recursive rejection down a tree: siblings are tested in draw order, each against what is left of p.

With children i.i.d. from q this is SpecInfer's multi-step sampling (arXiv:2305.09781), without replacement Sequoia's
Algorithm 2 (arXiv:2402.12374), one-hot the rule of EAGLE-2/3's code, mixed the sampled-child-first form of Hu et al.
(arXiv:2502.18779).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import Case, WarpedRows, branch, judge_by_coins, next_child
from sdjax.verify.proposal import drawn_law, drawn_odds, rest_at, rest_without


@struct.dataclass
class Trial:
    """`node` is the last accepted, `child` under test, the `rank`-th tested there.

    `r` is what is left of p at `node`, unnormalised; `rest` what is left of q.
    """

    node: Int[Array, ""]
    child: Int[Array, ""]
    depth: Int[Array, ""]
    rank: Int[Array, ""]
    r: Float[Array, " V"]
    rest: Float[Array, " V"] | None
    done: Bool[Array, ""]

    @property
    def coin(self) -> tuple[Any, Any]:
        return self.depth + 1, self.rank


@dataclass(frozen=True)
class Recursive:
    """Accept child c with min(1, r(c)/d(c)); refused, r becomes norm((r - d)+); all refused, emit from r.

    d is the law c was drawn from given the refused siblings (`proposal`). Lossless for every law.
    """

    laws: ClassVar[frozenset[Law]] = frozenset(Law)
    chains_only: ClassVar[bool] = False
    lossless: ClassVar[bool] = True
    by_numbers: ClassVar[bool] = False
    greedy: ClassVar[bool] = False

    def start(self, xp: Any, case: Case) -> Trial:
        return self.at(xp, case, xp.int32(0), xp.int32(0))

    def at(self, xp: Any, case: Case, node: Any, depth: Any) -> Trial:
        """The trial that has just accepted `node`; done where no child stands below it."""
        child, found = next_child(xp, case, node, node)
        return Trial(node, child, depth, xp.int32(0), case.p[node], rest_at(case, node), ~found)

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        token = case.tokens[trial.child]
        return trial.r[token], trial.r.sum(0) * drawn_odds(xp, trial.rest, token)

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        return branch(xp, heads, lambda: self.at(xp, case, trial.child, trial.depth + 1), lambda: self.refused(xp, case, trial))

    def refused(self, xp: Any, case: Case, trial: Trial) -> Trial:
        """The trial that has refused its child and turns to the next sibling."""
        token = case.tokens[trial.child]
        left = xp.maximum(trial.r - trial.r.sum(0) * drawn_law(xp, trial.r, trial.rest, token), 0)
        # Nothing left (r = d) makes the refusal one of rounding: r stays.
        r = xp.where(left.sum(0) > 0, left, trial.r)
        child, found = next_child(xp, case, trial.node, trial.child)
        rest = rest_without(xp, case, trial.rest, token)
        return trial.replace(child=child, rank=trial.rank + 1, r=r, rest=rest, done=~found)

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        return trial.r

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        return judge_by_coins(self, ctx, draft, WarpedRows(logits, ctx.warp))
