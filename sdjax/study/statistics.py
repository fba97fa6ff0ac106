"""Is a sample drawn from the law that it should be? Goodness of fit on joint n-grams, and how much it can see.

A lossless loop must be tested on the joint law of several tokens over several rounds: first tokens alone are blind to
an unscaled residual and to noise that rounds share. Choose the sample size by `samples_needed` before drawing, and
correct over all the tests of a matrix with `holm`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats
from scipy.optimize import brentq

LEAST_EXPECTED = 5.0  # cells below are merged: the χ² approximation is poor there


@dataclass(frozen=True)
class Fit:
    """A test of counts against a law: the statistic, its degrees of freedom and the probability of a larger one."""

    statistic: float
    freedom: int
    p_value: float
    samples: int

    def detects(self, alpha: float, power: float = 0.99) -> float:
        """The total variation from which on this test, at this level, fails with probability ≥ power."""
        return detectable_tv(self.samples, self.freedom + 1, alpha, power)


def ngram_counts(tokens: Int[np.ndarray, "S T"], length: int, vocab: int) -> Int[np.ndarray, "..."]:
    """How often each joint value of the first `length` tokens of a stream occurs: [V] * length.

    One n-gram a stream: overlapping ones are dependent, and χ² does not hold for them. Raises ValueError where a
    stream is shorter, or a token is no token.
    """
    tokens = np.asarray(tokens)
    if tokens.ndim != 2 or tokens.shape[1] < length:
        raise ValueError(f"n-grams of {length} tokens need streams [S, T ≥ {length}]; these have shape {tokens.shape}")
    first = tokens[:, :length]
    if first.size and not (first.min() >= 0 and first.max() < vocab):
        raise ValueError(f"tokens run from {first.min()} to {first.max()}; the vocabulary is 0..{vocab - 1}")
    flat = np.ravel_multi_index(tuple(first.T), (vocab,) * length)
    return np.bincount(flat, minlength=vocab**length).reshape((vocab,) * length)


def pooled(observed: np.ndarray, expected: np.ndarray) -> tuple[Float[np.ndarray, " C"], Float[np.ndarray, " C"]]:
    """Observed and expected counts with the smallest cells merged until every expected count is at least 5.

    Which cells are merged depends on the expected counts alone. A sample on impossible cells stays visible: they are
    merged like any other, unless nothing is small enough to take them in, when they stand alone (and the test fails).
    """
    order = np.argsort(expected.ravel(), kind="stable")
    observed, expected = observed.ravel()[order].astype(np.float64), expected.ravel()[order].astype(np.float64)
    small = int(np.searchsorted(expected, LEAST_EXPECTED))
    while 0 < small < len(expected) and expected[:small].sum() < LEAST_EXPECTED:
        small += 1
    if not small:
        return observed, expected
    merge = lambda counts: np.concatenate([[counts[:small].sum()], counts[small:]])
    return merge(observed), merge(expected)


def chi_square(observed: Int[np.ndarray, "..."], law: Float[np.ndarray, "..."]) -> Fit:
    """Pearson's Σ (O - E)²/E. A count on a token sequence of probability zero fails at once."""
    return fit(observed, law, lambda o, e: float(np.sum((o - e) ** 2 / e)))


def g_test(observed: Int[np.ndarray, "..."], law: Float[np.ndarray, "..."]) -> Fit:
    """The likelihood ratio 2 Σ O log(O/E). A count on a token sequence of probability zero fails at once."""
    return fit(observed, law, lambda o, e: float(2 * np.sum(np.where(o > 0, o * np.log(np.where(o > 0, o, 1) / e), 0))))


def fit(observed: np.ndarray, law: np.ndarray, statistic) -> Fit:
    observed, law = np.asarray(observed), np.asarray(law, np.float64)
    if observed.shape != law.shape:
        raise ValueError(f"counts have shape {observed.shape}, but the law has {law.shape}")
    if not math.isclose(law.sum(), 1, abs_tol=1e-6) or law.min() < 0:
        raise ValueError(f"the law sums to {law.sum():.6g}; its entries must be ≥ 0 and sum to 1")
    samples = int(observed.sum())
    if not samples:
        raise ValueError("there are no samples to test")
    if observed[law == 0].any():
        return Fit(math.inf, int(np.count_nonzero(law)), 0.0, samples)
    o, e = pooled(observed[law > 0], samples * law[law > 0])
    freedom = len(e) - 1
    if not freedom:
        return Fit(0.0, 0, 1.0, samples)
    value = statistic(o, e)
    return Fit(value, freedom, float(stats.chi2.sf(value, freedom)), samples)


def holm(p_values: Sequence[float], alpha: float) -> Bool[np.ndarray, " K"]:
    """Which hypotheses are rejected, with the chance of any false rejection at most alpha (Holm 1979)."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    passes = p[order] <= alpha / (len(p) - np.arange(len(p)))
    rejected = np.zeros(len(p), bool)
    rejected[order[: len(p) if passes.all() else int(np.argmin(passes))]] = True
    return rejected


def effect(law: Float[np.ndarray, "..."], target: Float[np.ndarray, "..."]) -> float:
    """Σ (law - target)²/target: what one sample adds to χ²'s non-centrality. At least 4·TV² (Cauchy-Schwarz)."""
    if np.any(law[target == 0] > 0):
        return math.inf
    where = target > 0
    return float(np.sum((law[where] - target[where]) ** 2 / target[where]))


def noncentrality(cells: int, alpha: float, power: float) -> float:
    """How far off centre χ² must be for a test of this level to have this power."""
    if not 0 < alpha < power < 1:
        raise ValueError(f"alpha {alpha} and power {power} must satisfy 0 < alpha < power < 1")
    if cells < 2:
        raise ValueError(f"a test of {cells} cells sees nothing; it needs at least 2")
    critical = stats.chi2.isf(alpha, cells - 1)
    misses = lambda off: stats.ncx2.sf(critical, cells - 1, off) - power
    high = critical
    while misses(high) < 0:
        high *= 2
    return float(brentq(misses, 1e-9, high))


def samples_needed(effect: float, cells: int, alpha: float = 1e-6, power: float = 0.99) -> int:
    """How many samples make a fault of this effect fail the test with this power."""
    if not effect > 0:
        raise ValueError(f"the effect is {effect}; a law that equals the target cannot be detected")
    return max(1, math.ceil(noncentrality(cells, alpha, power) / effect))


def detectable_tv(samples: int, cells: int, alpha: float = 1e-6, power: float = 0.99) -> float:
    """The total variation that this many samples detect whatever its shape: from 4·TV² ≤ effect."""
    if samples < 1:
        raise ValueError(f"{samples} samples detect nothing")
    return math.sqrt(noncentrality(cells, alpha, power) / samples) / 2
