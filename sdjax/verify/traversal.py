"""Traversal verification: from the leaves to the root, whole paths at a time (Weng et al. 2025, arXiv:2505.12398).

The formulas are rebuilt from the paper's appendix F (a pseudo-child of target mass 1 - w is added to a parent whose
child was refused) and confirmed by exact enumeration.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import Case, WarpedRows, branch, judge_by_coins, next_child, put, repeat
from sdjax.verify.proposal import drawn_law, drawn_odds, rest_at, rest_without


@struct.dataclass
class Trial:
    """`node`, at `depth`, is under test: every draft below it was refused.

    For the nodes at depths 0..depth on the way to it: `weight` [A] is w; `left` [A, V] is w times what is left of p;
    `rest` [A, V] is what is left of q.
    """

    node: Int[Array, ""]
    depth: Int[Array, ""]
    weight: Float[Array, " A"]
    left: Float[Array, "A V"]
    rest: Float[Array, "A V"] | None
    done: Bool[Array, ""]

    @property
    def coin(self) -> tuple[Any, Any]:
        return self.depth, self.node


@dataclass(frozen=True)
class Traversal:
    """w(root) = 1, w(child) = min(1, w·p/d); depth first, a leaf is accepted with w, and its whole path with it.

    Refused, it is deleted, and its parent alone updated: A = (w·p - d)+, w becomes ΣA/(ΣA + 1 - w), p norm(A), and d
    goes on to the next sibling. A parent out of children is tested itself; the root always passes. Emitted last: what
    is left of p at the accepted node. Lossless for every law. On a chain it accepts as much as block verification.
    """

    laws: ClassVar[frozenset[Law]] = frozenset(Law)
    chains_only: ClassVar[bool] = False
    lossless: ClassVar[bool] = True
    by_numbers: ClassVar[bool] = False
    greedy: ClassVar[bool] = False

    def start(self, xp: Any, case: Case) -> Trial:
        """Stands at the first leaf."""
        p, levels = case.p[0], case.max_depth + 1
        pile = lambda row: xp.zeros((levels, *row.shape), row.dtype)
        rest = rest_at(case, 0)
        trial = Trial(
            node=xp.int32(0),
            depth=xp.int32(0),
            weight=xp.ones((levels, *p.shape[1:]), p.dtype),
            left=put(xp, pile(p), 0, p),
            rest=None if rest is None else put(xp, pile(rest), 0, rest),
            done=xp.bool_(False),
        )
        return self.down(xp, case, trial, xp.int32(0))

    def down(self, xp: Any, case: Case, trial: Trial, after: Any) -> Trial:
        """From `trial.node` to the first leaf below its children behind index `after`; stays where there is none."""

        def step(state: tuple) -> tuple:
            trial, after = state
            child, depth = next_child(xp, case, trial.node, after)[0], trial.depth + 1
            token = case.tokens[child]
            rest = None if trial.rest is None else trial.rest[trial.depth]
            w = xp.minimum(1, trial.left[trial.depth, token] / drawn_odds(xp, rest, token))
            below = Trial(
                node=child,
                depth=depth,
                weight=put(xp, trial.weight, depth, w),
                left=put(xp, trial.left, depth, w * case.p[child]),
                rest=None if rest is None else put(xp, trial.rest, depth, rest_at(case, child)),
                done=xp.bool_(False),
            )
            return below, child

        inner = lambda state: next_child(xp, case, state[0].node, state[1])[1]
        trial, _ = repeat(xp, inner, step, (trial, after))
        return trial.replace(done=trial.node == 0)

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        return trial.weight[trial.depth], 1

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        return branch(xp, heads, lambda: trial.replace(done=xp.bool_(True)), lambda: self.refused(xp, case, trial))

    def refused(self, xp: Any, case: Case, trial: Trial) -> Trial:
        """Back to the parent, updated, and down to the next leaf below it."""
        token, up = case.tokens[trial.node], trial.depth - 1
        w, left = trial.weight[up], trial.left[up]
        rest = None if trial.rest is None else trial.rest[up]
        excess = xp.maximum(left - drawn_law(xp, left, rest, token), 0)
        total = excess.sum(0)
        bound = total + 1 - w
        # 0/0: p = d, so that the refusal is one of rounding: the parent stays as it was.
        fine = bound > 0
        scale = 1 / xp.where(fine, bound, 1)
        parent = trial.replace(
            node=case.parent[trial.node],
            depth=up,
            weight=put(xp, trial.weight, up, xp.where(fine, total * scale, w)),
            left=put(xp, trial.left, up, xp.where(fine, excess * scale, left)),
            rest=None if rest is None else put(xp, trial.rest, up, rest_without(xp, case, rest, token)),
        )
        return self.down(xp, case, parent, trial.node)

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        return trial.left[trial.depth]

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        return judge_by_coins(self, ctx, draft, WarpedRows(logits, ctx.warp))
