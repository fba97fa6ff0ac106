"""The one definition of every number: from records of verify steps to τ.

For request r and step s: drafted nodes l, drafts accepted a, tokens committed e (= a + 1 unless a stop token
or the cap cuts it), nodes n that the target ran, absent ones included. The token sampled by prefill is in no e. A row
with e = 0 is no step.
"""

from dataclasses import asdict, dataclass

import numpy as np

from sdjax.core.types import Records


@dataclass(frozen=True)
class Steps:
    """The steps of one request, as plain arrays of equal length: what results files hold."""

    proposed: np.ndarray
    reach: np.ndarray
    accepted: np.ndarray
    committed: np.ndarray
    verified: np.ndarray

    @classmethod
    def of(cls, records: Records, row: int) -> "Steps":
        """The steps that sequence `row` of a batch took part in."""
        took_part = np.asarray(records.committed[row]) > 0
        return cls(**{name: np.asarray(getattr(records, name)[row])[took_part] for name in cls.__annotations__})


@dataclass(frozen=True)
class Acceptance:
    """Every acceptance figure of a set of requests (l, a, e, n: see the module)."""

    steps: int
    tau: float  # Σe / steps, pooled over requests: the headline; plain decoding is 1
    tau_macro: float  # mean over requests of their own Σe / steps
    accepted_per_step: float  # Σa / steps: no bonus, no cut
    draft_acceptance: float  # Σa / Σl
    verify_utilisation: float  # Σe / Σn
    survival: tuple[float, ...]  # P(a ≥ i), i = 1..: all steps in the denominator
    conditional: tuple[float, ...]  # P(a ≥ i | a ≥ i-1 and the draft reached depth i)

    def to_json(self) -> dict:
        return asdict(self)


def ratio(top: float, bottom: float) -> float:
    """top / bottom; NaN where nothing was counted."""
    return float(top) / float(bottom) if bottom else float("nan")


def acceptance(requests: list[Steps], depth: int) -> Acceptance:
    """Pools the steps of `requests`; `depth` is the longest path a draft can hold."""
    pooled = {
        name: np.concatenate([getattr(r, name) for r in requests] or [np.zeros(0, int)]) for name in Steps.__annotations__
    }
    a, e = pooled["accepted"], pooled["committed"]
    at_least = [a >= i for i in range(depth + 1)]
    return Acceptance(
        steps=len(e),
        tau=ratio(e.sum(), len(e)),
        tau_macro=float(
            np.mean([ratio(r.committed.sum(), len(r.committed)) for r in requests if len(r.committed)] or [np.nan])
        ),
        accepted_per_step=ratio(a.sum(), len(a)),
        draft_acceptance=ratio(a.sum(), pooled["proposed"].sum()),
        verify_utilisation=ratio(e.sum(), pooled["verified"].sum()),
        survival=tuple(ratio(at_least[i].sum(), len(a)) for i in range(1, depth + 1)),
        conditional=tuple(
            ratio(at_least[i].sum(), (at_least[i - 1] & (pooled["reach"] >= i)).sum()) for i in range(1, depth + 1)
        ),
    )


def predicted_speedup(tau: float, draft: float, verify: float, overhead: float) -> float:
    """What τ and the costs of one step (in plain decoding steps) predict: τ / (draft + verify + overhead)."""
    return tau / (draft + verify + overhead)
