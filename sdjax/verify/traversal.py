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

    Per node [N]: `entry` is its w when it was reached, `weight` its w now, `scale` what its refusal left its parent's
    law multiplied by. No row of V is kept: `left_at` makes a node's law again from these.
    """

    node: Int[Array, ""]
    depth: Int[Array, ""]
    entry: Float[Array, " N"]
    weight: Float[Array, " N"]
    scale: Float[Array, " N"]
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
        one = xp.ones_like(case.p[0, 0])
        blank = xp.ones((case.tokens.shape[0], *one.shape), one.dtype)
        root = Trial(xp.int32(0), xp.int32(0), blank, blank, blank, xp.bool_(False))
        return self.down(xp, case, root, xp.int32(0))

    def left_at(self, xp: Any, case: Case, trial: Trial, node: Any, upto: Any) -> tuple[Any, Any]:
        """w times what is left of p at `node` [V, ...], and of q, its children up to index `upto` having been refused."""

        def refuse(state: tuple) -> tuple:
            left, rest, after = state
            child, _ = next_child(xp, case, node, after)
            token = case.tokens[child]
            left = xp.maximum(left - drawn_law(xp, left, rest, token), 0) * trial.scale[child]
            return left, rest_without(xp, case, rest, token), child

        def goes_on(state: tuple) -> Any:
            child, found = next_child(xp, case, node, state[2])
            return found & (child <= upto)

        begin = (trial.entry[node] * case.p[node], rest_at(case, node), xp.int32(0) * node)
        left, rest, _ = repeat(xp, goes_on, refuse, begin)
        return left, rest

    def down(self, xp: Any, case: Case, trial: Trial, after: Any) -> Trial:
        """From `trial.node` to the first leaf below its children behind index `after`; stays where there is none."""

        def step(state: tuple) -> tuple:
            trial, after = state
            child, _ = next_child(xp, case, trial.node, after)
            token = case.tokens[child]
            left, rest = self.left_at(xp, case, trial, trial.node, after)
            w = xp.minimum(1, left[token] / drawn_odds(xp, rest, token))
            below = trial.replace(
                node=child,
                depth=trial.depth + 1,
                entry=put(xp, trial.entry, child, w),
                weight=put(xp, trial.weight, child, w),
            )
            return below, child

        inner = lambda state: next_child(xp, case, state[0].node, state[1])[1]
        trial, _ = repeat(xp, inner, step, (trial, after))
        return trial.replace(done=trial.node == 0)

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        return trial.weight[trial.node], 1

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        return branch(xp, heads, lambda: trial.replace(done=xp.bool_(True)), lambda: self.refused(xp, case, trial))

    def refused(self, xp: Any, case: Case, trial: Trial) -> Trial:
        """Back to the parent, updated, and down to the next leaf below it."""
        node, up = trial.node, case.parent[trial.node]
        left, rest = self.left_at(xp, case, trial, up, node - 1)
        total = xp.maximum(left - drawn_law(xp, left, rest, case.tokens[node]), 0).sum(0)
        weight, scale = self.updated(xp, total, trial.weight[up])
        parent = trial.replace(
            node=up,
            depth=trial.depth - 1,
            weight=put(xp, trial.weight, up, weight),
            scale=put(xp, trial.scale, node, scale),
        )
        return self.down(xp, case, parent, node)

    def updated(self, xp: Any, total: Any, w: Any) -> tuple[Any, Any]:
        """A parent's new w, and what A is multiplied by to be w·p again, from ΣA and the old w."""
        bound = total + 1 - w
        # 0/0 means that p = d, so that the refusal was one of rounding: w stays.
        fine = bound > 0
        scale = 1 / xp.where(fine, bound, 1)
        return xp.where(fine, total * scale, w), scale

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        """What is left of p at the accepted node; p itself where rounding left nothing."""
        left, _ = self.left_at(xp, case, trial, trial.node, case.tokens.shape[0])
        return xp.where(left.sum(0) > 0, left, case.p[trial.node])

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        return judge_by_coins(self, ctx, draft, WarpedRows(logits, ctx.warp))
