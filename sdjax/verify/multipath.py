"""Greedy multi-path block verification: the best of K i.i.d. paths, judged as one block (after arXiv:2602.16961).

The paper's body was not available; the order of paths and the law of the best one are a reconstruction, confirmed by
exact enumeration. The rule has to sort the vocabulary at every node of the chosen path.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import Case, WarpedRows, branch, judge_by_coins, next_child, put, repeat
from sdjax.verify.proposal import drawn_law


@struct.dataclass
class Level:
    """A prefix of the best path: one of the nodes that carry it, and all of them (`same`).

    `lower` is the q-mass of all paths below this prefix in the order, `mass` that of the prefix itself. Of the next
    token x: `upto` is the q-mass of the tokens up to x in the order, `law` the unnormalised law of the best path's.
    """

    node: Int[Array, ""]
    same: Bool[Array, " N"]
    lower: Float[Array, ""]
    mass: Float[Array, ""]
    upto: Float[Array, " V"]
    law: Float[Array, " V"]


@struct.dataclass
class Trial:
    """`kept` is the longest prefix that passed, `scale` its P; `level` is under test, `weight` its P."""

    kept: Level
    scale: Float[Array, ""]
    level: Level
    weight: Float[Array, ""]
    depth: Int[Array, ""]
    done: Bool[Array, ""]

    @property
    def node(self) -> Any:
        return self.kept.node

    @property
    def coin(self) -> tuple[Any, int]:
        return self.depth, 0


@dataclass(frozen=True)
class BestPath:
    """K paths from the root, i.i.d. from q; the best is that whose tokens have, level by level, the largest p/q.

    With T(x) the q-mass of tokens up to x in that order, the best path goes from a prefix to x with the law
    ((lower + mass·T(x))^K - (lower + mass·T(x-))^K) / ((lower + mass)^K - lower^K); block verification against it.
    Lossless for i.i.d. paths. Judged down to the depth where a path ends or branches.
    """

    laws: ClassVar[frozenset[Law]] = frozenset({Law.IID})
    chains_only: ClassVar[bool] = False
    lossless: ClassVar[bool] = True
    by_numbers: ClassVar[bool] = True
    greedy: ClassVar[bool] = False

    def start(self, xp: Any, case: Case) -> Trial:
        one = xp.ones_like(case.p[0, 0])
        root = self.level(xp, case, xp.int32(0), xp.arange(case.tokens.shape[0]) == 0, 0 * one, one)
        return self.ahead(xp, case, root, one, root, one, xp.int32(0))

    def level(self, xp: Any, case: Case, node: Any, same: Any, lower: Any, mass: Any) -> Level:
        """Sorts the tokens behind `node` by ascending p/q, ties by id, and finds the law of the best path's next."""
        p, q = case.p[node], self.law_at(xp, case, node)
        order = xp.argsort(xp.where(q > 0, p / xp.where(q > 0, q, 1), 0), stable=True)
        upto = put(xp, xp.zeros_like(q), order, xp.cumsum(q[order]))
        return Level(node, same, lower, mass, upto, self.law_of_best(xp, case, q, upto, lower, mass))

    def law_at(self, xp: Any, case: Case, node: Any) -> Any:
        """q's row at `node`; a point mass on its child where the row cannot have drawn it."""
        child, _ = next_child(xp, case, node, node)
        return drawn_law(xp, case.p[node], case.q[case.q_row[node]], case.tokens[child])

    def law_of_best(self, xp: Any, case: Case, q: Any, upto: Any, lower: Any, mass: Any) -> Any:
        """a^K - b^K, as (a - b)·Σ a^j b^(K-1-j): nothing cancels where the prefix is unlikely."""
        a, b = lower + mass * upto, lower + mass * (upto - q)
        count = self.paths(case)
        add = lambda state: (state[0] + 1, state[1] * b + state[2], state[2] * a)
        state = (xp.int32(0), xp.zeros_like(q), xp.ones_like(q))
        return q * repeat(xp, lambda state: state[0] < count, add, state)[1]

    def ahead(self, xp: Any, case: Case, kept: Level, scale: Any, tested: Level, weight: Any, depth: Any) -> Trial:
        """The trial whose next test is that of the best path's next prefix; done where some path has ended."""
        here = case.valid & tested.same[case.parent] & (case.depth == depth + 1)
        node = xp.where(here, tested.upto[case.tokens], -1).argmax().astype(xp.int32)
        token = case.tokens[node]
        q = self.law_at(xp, case, tested.node)[token]
        lower = tested.lower + tested.mass * (tested.upto[token] - q)
        level = self.level(xp, case, node, here & (case.tokens == token), lower, tested.mass * q)
        law = drawn_law(xp, tested.law, tested.law, token)
        weight = xp.minimum(1, weight * case.p[tested.node, token] / law[token])
        return Trial(kept, scale, level, weight, depth + 1, ~self.complete(xp, case, depth + 1))

    def complete(self, xp: Any, case: Case, depth: Any) -> Any:
        """Whether every path reaches `depth`, and none branches there."""
        here = case.valid & (case.depth == depth)
        goes_on = (here & (case.parent == xp.arange(case.tokens.shape[0])[:, None])).any(1)
        count = self.paths(case)
        return (count > 0) & (here.sum() == count) & (goes_on.sum() == xp.where(depth == 1, 1, count))

    def paths(self, case: Case) -> Any:
        return ((case.depth == 1) & case.valid).sum()

    def excess(self, xp: Any, case: Case, level: Level, weight: Any, depth: Any) -> tuple[Any, Any]:
        """(P p - law of the best)+ behind a prefix [V], and whether every path goes on there."""
        total = level.law.sum(0)
        law = level.law / xp.where(total > 0, total, 1)
        return xp.maximum(weight * case.p[level.node] - law, 0), self.complete(xp, case, depth + 1)

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        excess, inner = self.excess(xp, case, trial.level, trial.weight, trial.depth)
        total = excess.sum(0)
        bound = total + 1 - trial.weight
        certain = ~inner | (bound <= 0)  # 0/0 counts as 1; the last prefix is tested with P itself
        return xp.where(certain, trial.weight, total), xp.where(certain, 1, bound)

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        kept, scale = branch(xp, heads, lambda: (trial.level, trial.weight), lambda: (trial.kept, trial.scale))
        return self.ahead(xp, case, kept, scale, trial.level, trial.weight, trial.depth)

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        excess, inner = self.excess(xp, case, trial.kept, trial.scale, case.depth[trial.kept.node])
        return xp.where(inner & (excess.sum(0) > 0), excess, case.p[trial.kept.node])

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        return judge_by_coins(self, ctx, draft, WarpedRows(logits, ctx.warp))
