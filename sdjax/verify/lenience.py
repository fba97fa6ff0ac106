"""Lenience, lossy: token verification against a draft law made smaller (Leviathan et al. 2022, appendix A.5)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array, Float

from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import Case, WarpedRows, judge_by_coins
from sdjax.verify.token import TokenRejection, Trial

TOKEN = TokenRejection()


@dataclass(frozen=True)
class Lenience:
    """Accept draft x with min(1, p/(l q)); refused, emit from norm((p - q)+). l = 1 is exact.

    NOT lossless: no token exceeds p/l, but none is guaranteed its p. A token's drift is Σ_{q > p} (min(q, p/l) - p).
    """

    l: float = 0.5  # noqa: E741 - the paper's letter
    laws: ClassVar[frozenset[Law]] = frozenset(Law)
    chains_only: ClassVar[bool] = True
    lossless: ClassVar[bool] = False
    by_numbers: ClassVar[bool] = False
    greedy: ClassVar[bool] = False

    def __post_init__(self):
        if not 0 < self.l <= 1:
            raise ValueError(f"lenience is {self.l}; it must lie in (0, 1] (1 is exact)")

    def start(self, xp: Any, case: Case) -> Trial:
        return TOKEN.start(xp, case)

    def odds(self, xp: Any, case: Case, trial: Trial) -> tuple[Any, Any]:
        a, b = TOKEN.odds(xp, case, trial)
        return a, self.l * b

    def toss(self, xp: Any, case: Case, trial: Trial, heads: Any) -> Trial:
        return TOKEN.toss(xp, case, trial, heads)

    def residual(self, xp: Any, case: Case, trial: Trial) -> Any:
        return TOKEN.residual(xp, case, trial)

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        return judge_by_coins(self, ctx, draft, WarpedRows(logits, ctx.warp))
