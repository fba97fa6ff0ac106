"""Typical acceptance, lossy: what the target finds likely enough passes (Medusa, arXiv:2401.10774, §2.3.1)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import Case, WarpedRows, judge_by_coins, put, repeat


@struct.dataclass
class Trial:
    """Over before the first coin: `node` ends the path that wins."""

    node: Int[Array, ""]
    done: Bool[Array, ""]

    @property
    def coin(self) -> tuple[int, int]:
        return 0, 0


@dataclass(frozen=True)
class TypicalAcceptance:
    """Draft x passes where p(x) > min(epsilon, delta·exp(-H(p))) and its parent did; nothing is drawn to decide it.

    The longest path wins, ties by the sum of log p; the last token comes from p. NOT lossless, and nothing bounds its
    distance from the target. At temperature 0 it is the match with argmax. Defaults are the repository's.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    laws: ClassVar[frozenset[Law]] = frozenset(Law)
    chains_only: ClassVar[bool] = False
    lossless: ClassVar[bool] = False
    by_numbers: ClassVar[bool] = True
    greedy: ClassVar[bool] = False

    def __post_init__(self):
        for name in ("epsilon", "delta"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"typical acceptance: {name} is {getattr(self, name)}; it must lie in [0, 1]")

    def start(self, xp: Any, case: Case) -> Trial:
        """Goes through the nodes in order, parents first; `score` is Σ log p on the way, -inf where refused."""
        one = xp.ones_like(case.p[0, 0])
        nodes = case.tokens.shape[0]

        def test(state: tuple) -> tuple:
            node, score = state
            p, token = case.p[case.parent[node]], case.tokens[node]
            log_p = xp.log(xp.where(p > 0, p, 1))
            passes = case.valid[node] & (p[token] > xp.minimum(self.epsilon, self.delta * xp.exp((p * log_p).sum(0))))
            value = xp.where(passes, score[case.parent[node]] + log_p[token], -xp.inf).astype(score.dtype)
            return node + 1, put(xp, score, node, value)

        score = put(xp, xp.full(nodes, -xp.inf) * one, 0, 0)
        score = repeat(xp, lambda state: state[0] < nodes, test, (xp.int32(1), score))[1]
        deepest = xp.where(score > -xp.inf, case.depth, 0).max()
        best = xp.where(case.depth == deepest, score, -xp.inf).argmax()
        return Trial(best.astype(xp.int32), xp.bool_(True))

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        return 0, 1

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        return trial

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        return case.p[trial.node]

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        return judge_by_coins(self, ctx, draft, WarpedRows(logits, ctx.warp))
