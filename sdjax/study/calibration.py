"""Is a drafter's survival true? Calibration error and ranking on held-out drafts, and temperatures that mend it.

The figures are of survival itself, P(slot and all before it accepted), since that is what a scheduler reads. Sequential
temperature scaling is DSpark's (arXiv:2607.05147, §3); its grid and bins are those of SGLang's fitter. Acceptance depends
on the serving temperature and the rule: measure drafts as they will be served.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

GRID = np.logspace(-1, 1, 41)
BINS = 15
FOLDS = 5
LEAST = 1e-7  # survival is float32: what is nearer to 0 or 1 is not told apart

Figure = Callable[[np.ndarray, np.ndarray, np.ndarray], float]  # (predicted, observed, weight), each [n]


@dataclass(frozen=True)
class Drafts:
    """n held-out drafts of D slots: the confidence's logits, how many drafts were accepted, and the request of each."""

    logits: Float[np.ndarray, "n D"]
    accepted: Int[np.ndarray, " n"]
    request: Int[np.ndarray, " n"]

    def __post_init__(self):
        n, depth = self.logits.shape
        if not n or self.accepted.shape != (n,) or self.request.shape != (n,):
            raise ValueError(
                f"logits have shape {self.logits.shape}, accepted {self.accepted.shape}, request {self.request.shape}; "
                "give a row for each of at least one draft"
            )
        if self.accepted.min() < 0 or self.accepted.max() > depth:
            raise ValueError(f"accepted runs from {self.accepted.min()} to {self.accepted.max()}; drafts have {depth} slots")

    @classmethod
    def of(
        cls, survival: Float[np.ndarray, "n N"], accepted: Int[np.ndarray, " n"], request: Int[np.ndarray, " n"]
    ) -> "Drafts":
        """From the survival of chains, anchor first, as drafters give it: it is taken apart into logits."""
        survival = np.asarray(survival, np.float64)
        given = np.clip(survival[:, 1:] / np.maximum(survival[:, :-1], np.finfo(np.float32).tiny), LEAST, 1 - LEAST)
        return cls(np.log(given) - np.log1p(-given), np.asarray(accepted), np.asarray(request))

    @property
    def survived(self) -> Bool[np.ndarray, "n D"]:
        return np.arange(self.logits.shape[1]) < self.accepted[:, None]

    def survival(
        self, temperatures: Float[np.ndarray, " D"] | Float[np.ndarray, "n D"] | float = 1.0
    ) -> Float[np.ndarray, "n D"]:
        """P(slot survives), the slots' logits divided by their temperatures."""
        return np.cumprod(sigmoid(self.logits / temperatures), 1)


def fit_temperatures(drafts: Drafts, grid: Float[np.ndarray, " G"] = GRID) -> Float[np.ndarray, " D"]:
    """For each slot in order, the temperature with the least ECE of the survival up to it, those before it kept.

    Of equal ones the nearest to 1. Slots must be fitted so: a slot's survival is a product, and errors of earlier
    factors would be mended in the wrong place.
    """
    before, weight, found = np.ones(len(drafts.logits)), np.ones(len(drafts.logits)), []
    by_distance = sorted(grid, key=lambda t: abs(np.log(t)))
    for logit, survived in zip(drafts.logits.T, drafts.survived.T, strict=True):
        best = min(by_distance, key=lambda t: calibration_error(before * sigmoid(logit / t), survived, weight))
        before = before * sigmoid(logit / best)
        found.append(best)
    return np.array(found)


def cross_fitted(drafts: Drafts, folds: int = FOLDS) -> Float[np.ndarray, "n D"]:
    """For each draft, the temperatures that fit the drafts of other requests: those of all folds but its own.

    So all drafts can judge, none by temperatures that it helped to fit. ValueError where there is one request alone.
    """
    requests, place = np.unique(drafts.request, return_inverse=True)
    if len(requests) < 2:
        raise ValueError("drafts of one request alone cannot be fitted and judged apart; decode more prompts")
    fold = place % min(folds, len(requests))
    of = lambda kept: Drafts(drafts.logits[kept], drafts.accepted[kept], drafts.request[kept])
    return np.stack([fit_temperatures(of(fold != own)) for own in range(fold.max() + 1)])[fold]


@dataclass(frozen=True)
class Reliability:
    """Bins of predicted probability: how much lies in each, its mean prediction, and how often it came true."""

    count: Float[np.ndarray, " K"]
    predicted: Float[np.ndarray, " K"]
    observed: Float[np.ndarray, " K"]


def reliability(
    predicted: Float[np.ndarray, " n"], observed: Bool[np.ndarray, " n"], weight: Float[np.ndarray, " n"], bins: int = BINS
) -> Reliability:
    """Equally wide bins on [0, 1]; the means of an empty one are 0."""
    place = np.minimum((predicted * bins).astype(int), bins - 1)
    sums = [np.bincount(place, weight * value, bins) for value in (1.0, predicted, observed)]
    return Reliability(sums[0], *(total / np.where(sums[0] > 0, sums[0], 1) for total in sums[1:]))


def calibration_error(predicted: np.ndarray, observed: np.ndarray, weight: np.ndarray, bins: int = BINS) -> float:
    """ECE: the mean over bins of |mean prediction - share that came true|, weighted by what lies in them."""
    found = reliability(predicted, observed, weight, bins)
    return float((found.count * np.abs(found.predicted - found.observed)).sum() / found.count.sum())


def ranking(predicted: np.ndarray, observed: np.ndarray, weight: np.ndarray) -> float:
    """AUC: how likely a draft that came true is ranked above one that did not, ties half. NaN where all or none did."""
    _, place = np.unique(predicted, return_inverse=True)
    right, wrong = (np.bincount(place, weight * which) for which in (observed, ~observed))
    pairs = right.sum() * wrong.sum()
    return float((right * (np.cumsum(wrong) - wrong / 2)).sum() / pairs) if pairs else float("nan")


def interval(
    figure: Figure,
    predicted: np.ndarray,
    observed: np.ndarray,
    request: Int[np.ndarray, " n"],
    level: float = 0.95,
    samples: int = 500,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile bootstrap interval of a figure. Whole requests are drawn: drafts of one text are alike.

    Drawing anew adds noise, which lifts an ECE: its interval errs upward.
    """
    random, (_, place) = np.random.default_rng(seed), np.unique(request, return_inverse=True)
    count = place.max() + 1
    draws = (np.bincount(random.integers(0, count, count), minlength=count)[place].astype(float) for _ in range(samples))
    found = [figure(predicted, observed, weight) for weight in draws]
    low, high = np.nanquantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class SlotFigures:
    """One slot's survival: how often it survived, what was predicted, and how good that is, with 95 % intervals."""

    observed: float
    predicted: float
    ece: float
    ece_interval: tuple[float, float]
    auc: float
    auc_interval: tuple[float, float]


def figures(
    drafts: Drafts, temperatures: Float[np.ndarray, " D"] | Float[np.ndarray, "n D"] | float = 1.0
) -> list[SlotFigures]:
    """Of each slot, with given temperatures; fit these on other drafts than those that judge them."""
    weight, found = np.ones(len(drafts.logits)), []
    for predicted, survived in zip(drafts.survival(temperatures).T, drafts.survived.T, strict=True):
        of = lambda figure, p=predicted, s=survived: (figure(p, s, weight), interval(figure, p, s, drafts.request))
        found.append(SlotFigures(survived.mean(), predicted.mean(), *of(calibration_error), *of(ranking)))
    return found


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
