"""The tests of fit themselves, and the compiled loop under them: several rounds of `generate` on tiny random targets.

Sample sizes are chosen by power: with COUNT streams of NEW tokens, a joint χ² at level ALPHA (Holm over the matrix) sees
every total variation from `detectable_tv` on, whatever its shape; see `test_power`.
"""

import math

import numpy as np
import pytest
from scipy import stats

from sdjax.core.types import Law
from sdjax.study.statistics import (
    chi_square,
    detectable_tv,
    effect,
    g_test,
    holm,
    ngram_counts,
    noncentrality,
    pooled,
    samples_needed,
)
from sdjax.verify.block import BlockVerification
from sdjax.verify.kseq import KSequential
from sdjax.verify.multipath import BestPath
from sdjax.verify.recursive import Recursive
from sdjax.verify.token import TokenRejection
from sdjax.verify.traversal import Traversal
from sdjax.verify.walk import Walk
from tests.properties.table_loop import VOCAB, TableDrafter, law_of_streams, streams

# The first token comes from prefill; four more take at least two rounds of a draft two deep.
COUNT, NEW, ALPHA = 40_000, 5, 1e-6
TABLES = tuple(np.random.default_rng(17).normal(0, 1.2, size=(2, VOCAB, VOCAB)).astype(np.float32))
IID, WITHOUT, ONE_HOT, MIXED = Law.IID, Law.WITHOUT_REPLACEMENT, Law.ONE_HOT, Law.MIXED
MATRIX = [
    (BlockVerification(), (1, 1), IID),
    (Recursive(), (2, 1), WITHOUT),
    (Recursive(), (2, 1), MIXED),
    (Traversal(), (2, 1), WITHOUT),
]
REST = [
    (TokenRejection(), (1, 1), IID),
    (Recursive(), (2, 1), IID),
    (KSequential(), (2, 1), IID),
    (Traversal(), (2, 1), IID),
    (BestPath(), (2, 1), IID),
    (Walk(), (2, 1), WITHOUT),
    (Walk(), (2, 1), ONE_HOT),
]


@pytest.mark.parametrize("matrix", [MATRIX, pytest.param(REST, marks=pytest.mark.law)], ids=["default", "rest"])
def test_the_loop_samples_the_target(matrix):
    """χ² and G on the joint law of NEW tokens, for every rule of the matrix, corrected over all of them."""
    law, p_values = law_of_streams(TABLES[0], NEW), {}
    for rule, widths, drawn in matrix:
        counts = ngram_counts(streams(rule, TableDrafter(widths, drawn), TABLES, COUNT, NEW), NEW, VOCAB)
        for test in (chi_square, g_test):
            p_values[f"{type(rule).__name__} {drawn} {test.__name__}"] = test(counts, law).p_value
    rejected = holm(list(p_values.values()), ALPHA)
    assert not rejected.any(), p_values


def test_the_loop_that_reuses_draft_noise_fails():
    """The negative control, X19: one round's marginals are right, and the joint law of several rounds is not."""
    tokens = streams(TokenRejection(), TableDrafter((1, 1), IID, reuse_noise=True), TABLES, COUNT, NEW)
    assert chi_square(ngram_counts(tokens, NEW, VOCAB), law_of_streams(TABLES[0], NEW)).p_value < ALPHA / len(MATRIX)
    # First round alone: the token from prefill and the next.
    assert chi_square(ngram_counts(tokens, 2, VOCAB), law_of_streams(TABLES[0], 2)).p_value > ALPHA


def test_the_loop_on_a_draft_that_is_not_what_it_says_fails():
    """Drawn without replacement, judged as i.i.d. (X1)."""

    class Lying(TableDrafter):
        def propose(self, ctx, params, state):
            draft, scratch = super().propose(ctx, params, state)
            return draft.replace(law=IID), scratch

    tokens = streams(Recursive(), Lying((2, 1), WITHOUT), TABLES, COUNT, NEW)
    assert chi_square(ngram_counts(tokens, NEW, VOCAB), law_of_streams(TABLES[0], NEW)).p_value < ALPHA / len(MATRIX)


def test_power():
    """40,000 streams of five tokens see a total variation of 3.7 % of any shape, and smaller ones of most shapes."""
    assert detectable_tv(COUNT, VOCAB**NEW, ALPHA / (2 * len(MATRIX))) < 0.037
    assert detectable_tv(15_000, 27) < 0.04 and detectable_tv(100_000, 27) < 0.0153


def test_level_and_power_are_what_they_say():
    """On a known law, the test fails as often as alpha without a fault and as often as the power with one."""
    rng = np.random.default_rng(0)
    target = rng.dirichlet(np.full(27, 20.0))
    fault = target * (1 + 0.2 * np.sign(rng.normal(size=27)))
    fault /= fault.sum()
    alpha, power = 0.05, 0.8
    n = samples_needed(effect(fault, target), 27, alpha, power)
    rate = lambda law: np.mean([chi_square(rng.multinomial(n, law), target).p_value < alpha for _ in range(1500)])
    assert abs(rate(target) - alpha) < 0.03
    assert abs(rate(fault) - power) < 0.05


def test_small_cells_are_pooled():
    observed, expected = pooled(np.array([1, 0, 2, 60, 37]), np.array([1.0, 0.5, 2.0, 60.0, 36.5]))
    assert expected.tolist() == [40.0, 60.0] and observed.tolist() == [40, 60]  # 3.5 do not make 5: the next joins
    observed, expected = pooled(np.array([3, 4, 5]), np.array([3.0, 3.0, 6.0]))
    assert expected.tolist() == [6.0, 6.0] and observed.tolist() == [7, 5]


def test_statistics_agree_with_scipy():
    rng = np.random.default_rng(1)
    law = rng.dirichlet(np.full(9, 5.0))
    counts = rng.multinomial(2000, law)
    assert chi_square(counts, law).p_value == pytest.approx(stats.chisquare(counts, 2000 * law).pvalue)
    assert g_test(counts, law).p_value == pytest.approx(
        stats.power_divergence(counts, 2000 * law, lambda_="log-likelihood").pvalue
    )


def test_an_impossible_token_fails_at_once():
    assert chi_square(np.array([5, 5, 1]), np.array([0.5, 0.5, 0.0])).p_value == 0
    assert g_test(np.array([5, 6, 0]), np.array([0.5, 0.5, 0.0])).p_value > 0.1
    assert math.isinf(effect(np.array([0.9, 0.1]), np.array([1.0, 0.0])))


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05).tolist() == [True, False, False, True]
    assert holm([0.001, 0.001], 0.05).tolist() == [True, True]
    assert holm([], 0.05).tolist() == []


def test_effect_is_at_least_four_tv_squared():
    rng = np.random.default_rng(2)
    for _ in range(50):
        law, target = rng.dirichlet(np.ones(8), size=2)
        assert effect(law, target) >= 4 * (np.abs(law - target).sum() / 2) ** 2 - 1e-12
    fit = chi_square(np.array([30, 70]), np.array([0.5, 0.5]))
    assert fit.detects(1e-3) == detectable_tv(100, 2, 1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ngram_counts(np.zeros((4, 2), int), 3, 3), "streams"),
        (lambda: ngram_counts(np.full((4, 2), 7), 2, 3), "vocabulary"),
        (lambda: chi_square(np.array([1, 2]), np.array([0.5, 0.25, 0.25])), "shape"),
        (lambda: chi_square(np.array([1, 2]), np.array([0.5, 0.6])), "sum to 1"),
        (lambda: chi_square(np.array([0, 0]), np.array([0.5, 0.5])), "no samples"),
        (lambda: samples_needed(0.0, 27), "cannot be detected"),
        (lambda: noncentrality(1, 1e-3, 0.9), "at least 2"),
        (lambda: noncentrality(5, 0.9, 0.5), "alpha"),
        (lambda: detectable_tv(0, 5), "samples"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
