"""SpecTr's k-sequential selection among i.i.d. siblings (Sun et al. 2023, arXiv:2310.15141)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import Case, WarpedRows, branch, judge_by_coins, next_child, repeat
from sdjax.verify.proposal import drawn_law

HALVINGS = 24  # of [1, k]: past float32's resolution; every γ that the search visits on the safe side is exact


@struct.dataclass
class Trial:
    """`node` is the last accepted, `child` under test, the `rank`-th tested there; γ and k belong to `node`."""

    node: Int[Array, ""]
    child: Int[Array, ""]
    depth: Int[Array, ""]
    rank: Int[Array, ""]
    gamma: Float[Array, ""]
    k: Int[Array, ""]
    done: Bool[Array, ""]

    @property
    def coin(self) -> tuple[Any, Any]:
        return self.depth + 1, self.rank


@dataclass(frozen=True)
class KSequential:
    """Each of k siblings passes with min(1, p/(γ q)), the first to pass is accepted; none, and the rest of p is emitted.

    β = Σ min(q, p/γ); the rest is p - min(q, p/γ)·(1 - (1 - β)^k)/β. It is a law where 1 - (1 - β)^k ≤ γβ, which
    γ = k always fulfils; `best` takes the smallest such γ, found by bisection. Lossless for i.i.d. children only.
    """

    best: bool = True
    laws: ClassVar[frozenset[Law]] = frozenset({Law.IID})
    chains_only: ClassVar[bool] = False
    lossless: ClassVar[bool] = True
    by_numbers: ClassVar[bool] = False
    greedy: ClassVar[bool] = False

    def start(self, xp: Any, case: Case) -> Trial:
        return self.at(xp, case, xp.int32(0), xp.int32(0))

    def at(self, xp: Any, case: Case, node: Any, depth: Any) -> Trial:
        """The trial that has just accepted `node`; done where no child stands below it."""
        child, found = next_child(xp, case, node, node)
        k = ((case.parent == node) & case.valid).sum().astype(xp.int32)
        return Trial(node, child, depth, xp.int32(0), self.gamma(xp, case, node, k), k, ~found)

    def gamma(self, xp: Any, case: Case, node: Any, k: Any) -> Any:
        """k, or the smallest γ in [1, k] for which what is left is a law."""
        p, q = case.p[node], self.law_at(xp, case, node)
        one = xp.ones_like(p[0])
        if not self.best:
            return one * k

        def halve(state: tuple) -> tuple:
            step, low, high = state
            middle = (low + high) / 2
            beta = xp.minimum(q, p / middle).sum(0)
            fine = 1 - (1 - beta) ** k <= middle * beta
            return step + 1, xp.where(fine, low, middle), xp.where(fine, middle, high)

        return repeat(xp, lambda state: state[0] < HALVINGS, halve, (xp.int32(0), one, one * k))[2]

    def law_at(self, xp: Any, case: Case, node: Any) -> Any:
        """q's row at `node`; a point mass on the first child where the row cannot have drawn it."""
        child, _ = next_child(xp, case, node, node)
        return drawn_law(xp, case.p[node], case.q[case.q_row[node]], case.tokens[child])

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        token = case.tokens[trial.child]
        return case.p[trial.node, token], trial.gamma * self.law_at(xp, case, trial.node)[token]

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        return branch(xp, heads, lambda: self.at(xp, case, trial.child, trial.depth + 1), lambda: self.refused(xp, case, trial))

    def refused(self, xp: Any, case: Case, trial: Trial) -> Trial:
        child, found = next_child(xp, case, trial.node, trial.child)
        return trial.replace(child=child, rank=trial.rank + 1, done=~found)

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        """What is left of p where siblings were refused, p at a leaf."""
        p = case.p[trial.node]
        part = xp.minimum(self.law_at(xp, case, trial.node), p / xp.where(trial.k > 0, trial.gamma, 1))
        beta = part.sum(0)
        scale = (1 - (1 - beta) ** trial.k) / xp.where(beta > 0, beta, 1)
        left = xp.maximum(p - part * scale, 0)
        return xp.where((trial.k > 0) & (left.sum(0) > 0), left, p)

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        return judge_by_coins(self, ctx, draft, WarpedRows(logits, ctx.warp))
