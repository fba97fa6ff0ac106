"""Self-selection: the target picks one of several drafts, then accepts it token by token (Sandler et al. 2025, 2511.00606).

The choice is made by p and the drafts, before any coin is tossed. Whatever path it falls on, that path is then fixed, and
accepting x with p(x) emits the target's law. A choice that looked at the coins would not: it would favour drafts that
are accepted (tests/verify/test_selection.py).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from flax import struct
from jaxtyping import Array, Bool, Float

from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import Case, WarpedRows, judge_by_coins, put, repeat
from sdjax.verify.recursive import Recursive
from sdjax.verify.recursive import Trial as Judgement

RULE = Recursive()


@struct.dataclass
class Trial:
    """The judgement of the selected path, whose nodes are marked."""

    selected: Bool[Array, " N"]
    judgement: Judgement

    @property
    def node(self) -> Any:
        return self.judgement.node

    @property
    def done(self) -> Any:
        return self.judgement.done

    @property
    def coin(self) -> tuple[Any, Any]:
        return self.judgement.coin


@dataclass(frozen=True)
class SelfSelection:
    """Of all paths the one with the largest Σ_m Π_{j ≤ m} p(x_j | x_<j), the first where there are several.

    Then accept x with p(x); at the first refusal emit from p without x. How the draft was drawn is not asked: its law may
    be either that drafts of several paths have. The walk may turn to any path, where this rule keeps to one.
    """

    laws: ClassVar[frozenset[Law]] = frozenset({Law.IID, Law.ONE_HOT})
    chains_only: ClassVar[bool] = False
    lossless: ClassVar[bool] = True
    by_numbers: ClassVar[bool] = True
    greedy: ClassVar[bool] = False

    def start(self, xp: Any, case: Case) -> Trial:
        selected = path_to(xp, case, streaks(xp, case).argmax())
        return Trial(selected, RULE.start(xp, fixed(case, selected)))

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        return RULE.odds(xp, fixed(case, trial.selected), trial.judgement)

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        return trial.replace(judgement=RULE.toss(xp, fixed(case, trial.selected), trial.judgement, heads))

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        return RULE.residual(xp, fixed(case, trial.selected), trial.judgement)

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        return judge_by_coins(self, ctx, draft, WarpedRows(logits, ctx.warp))


def fixed(case: Case, selected: Any) -> Case:
    """The selected nodes alone, as tokens that were not drawn."""
    return case.replace(valid=case.valid & selected, law=Law.ONE_HOT)


def streaks(xp: Any, case: Case) -> Any:
    """[N]: the expected number of accepted tokens of the path that ends at each node, were it selected."""

    def add(state: tuple) -> tuple:
        node, reach, streak = state
        up = case.parent[node]
        here = xp.where(case.valid[node], reach[up] * case.p[up, case.tokens[node]], 0)
        return node + 1, put(xp, reach, node, here), put(xp, streak, node, streak[up] + here)

    one = xp.ones_like(case.p[0, 0])
    nodes = case.tokens.shape[0]
    reach, streak = (xp.full((nodes,), start, one.dtype) for start in (1, 0))
    return repeat(xp, lambda state: state[0] < nodes, add, (xp.int32(1), reach, streak))[2]


def path_to(xp: Any, case: Case, node: Any) -> Any:
    """bool[N]: the nodes from the anchor to `node`."""
    up = lambda state: (case.parent[state[0]], put(xp, state[1], state[0], True))
    begin = (xp.int32(node), xp.zeros(case.tokens.shape[0], bool))
    return repeat(xp, lambda state: state[0] >= 0, up, begin)[1]
