"""Calibration finds what was planted: temperatures, errors of known size, and rankings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sdjax.study.calibration import (
    BINS,
    GRID,
    Drafts,
    calibration_error,
    cross_fitted,
    figures,
    fit_temperatures,
    interval,
    ranking,
    reliability,
    sigmoid,
)

PLANTED = GRID[[24, 30, 14]]  # 1.58, 3.16, 0.50


def planted(n, temperatures, seed=0, requests=200):
    """Drafts whose slots are accepted with σ(logit / temperature)."""
    random = np.random.default_rng(seed)
    logits = random.normal(1.0, 3.0, (n, len(temperatures)))
    accepted = np.cumprod(random.random(logits.shape) < sigmoid(logits / temperatures), 1).sum(1)
    return Drafts(logits, accepted, np.arange(n) % requests)


def test_planted_temperatures_are_found():
    """In order and to the grid's neighbours, although every slot is seen through the product of all."""
    found = fit_temperatures(planted(60_000, PLANTED))
    steps = np.abs(np.log(found / PLANTED)) / np.log(GRID[1] / GRID[0])
    assert (steps < 2.5).all(), found


def test_fitting_mends_what_was_planted_on_other_drafts():
    fitted = fit_temperatures(planted(20_000, PLANTED))
    held_out = planted(20_000, PLANTED, seed=1)
    before, after = figures(held_out), figures(held_out, fitted)
    assert all(slot.ece > 0.04 for slot in before) and all(slot.ece < 0.02 for slot in after)
    for slot in after:
        assert slot.ece_interval[0] <= slot.ece_interval[1] < 0.03
        assert slot.auc_interval[0] < slot.auc < slot.auc_interval[1]
        assert abs(slot.predicted - slot.observed) < 0.02


def test_no_draft_is_judged_by_what_it_helped_to_fit():
    """Had one request gone otherwise, others' temperatures may change, its fold's do not."""
    drafts = planted(4000, PLANTED, requests=20)
    mine = drafts.request == 7
    other = Drafts(drafts.logits, np.where(mine, 0, drafts.accepted), drafts.request)
    before, after = cross_fitted(drafts), cross_fitted(other)
    fold = drafts.request % 5 == 7 % 5
    np.testing.assert_array_equal(before[fold], after[fold])
    assert (before[~fold] != after[~fold]).any()
    alone = Drafts(drafts.logits[~fold], drafts.accepted[~fold], drafts.request[~fold])
    np.testing.assert_array_equal(before[mine][0], fit_temperatures(alone))
    assert all(slot.ece < 0.04 for slot in figures(drafts, before))


def test_drafts_of_one_request_cannot_judge():
    with pytest.raises(ValueError, match="cannot be fitted and judged apart"):
        cross_fitted(Drafts(np.zeros((2, 3)), np.array([0, 1]), np.zeros(2, int)))


def test_fitting_slot_by_slot_is_not_fitting_each_alone():
    """Fitted against its own acceptance alone, slot 1 would be mended for slot 0's fault: the planted error shows."""
    drafts = planted(60_000, np.array([GRID[34], 1.0]))
    assert abs(np.log(fit_temperatures(drafts)[1])) < 0.3
    unmended = min(
        GRID, key=lambda t: calibration_error(drafts.survival(np.array([1.0, t]))[:, 1], drafts.survived[:, 1], np.ones(60_000))
    )
    assert abs(np.log(unmended)) > 0.3


probabilities = arrays(np.float64, 40, elements=st.floats(0, 1))
outcomes = arrays(np.bool_, 40)


@given(probabilities, outcomes)
@settings(max_examples=60, deadline=None)
def test_ece_is_its_definition(predicted, observed):
    expected = 0.0
    for i in range(BINS):
        inside = (predicted * BINS >= i) & ((predicted * BINS < i + 1) | (i == BINS - 1))
        if inside.any():
            expected += inside.mean() * abs(predicted[inside].mean() - observed[inside].mean())
    ones = np.ones(40)
    np.testing.assert_allclose(calibration_error(predicted, observed, ones), expected, atol=1e-12)
    found = reliability(predicted, observed, ones)
    assert found.count.sum() == 40
    np.testing.assert_allclose((found.count * found.observed).sum(), observed.sum())
    assert calibration_error(observed.astype(float), observed, ones) == 0


@given(probabilities, outcomes, st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_auc_is_its_definition(predicted, observed, digits):
    """Over all pairs, ties half; unmoved by any rising map; weights are repetitions."""
    predicted, ones = predicted.round(digits), np.ones(40)
    right, wrong = predicted[observed][:, None], predicted[~observed]
    found = ranking(predicted, observed, ones)
    if not right.size or not wrong.size:
        assert np.isnan(found)
        return
    np.testing.assert_allclose(found, ((right > wrong) + (right == wrong) / 2).mean())
    np.testing.assert_allclose(found, ranking(predicted**3, observed, ones))
    twice = np.r_[np.arange(40), np.arange(20)]
    weight = np.r_[np.full(20, 2.0), np.ones(20)]
    np.testing.assert_allclose(ranking(predicted[twice], observed[twice], np.ones(60)), ranking(predicted, observed, weight))


def test_requests_are_drawn_whole():
    """Drafts of one text that are all alike tell no more than one of them: the interval does not shrink with copies."""
    random = np.random.default_rng(0)
    predicted, observed = random.random(50), random.random(50) < 0.5
    once = interval(calibration_error, predicted, observed, np.arange(50))
    many = interval(calibration_error, predicted.repeat(30), observed.repeat(30), np.arange(50).repeat(30))
    np.testing.assert_allclose(once, many)
    apart = interval(calibration_error, predicted.repeat(30), observed.repeat(30), np.arange(1500))
    assert np.ptp(apart) < np.ptp(many) / 2


@given(arrays(np.float64, (5, 3), elements=st.floats(-12, 12)))
@settings(max_examples=40, deadline=None)
def test_survival_is_taken_apart_into_its_logits(logits):
    survival = np.concatenate([np.ones((5, 1)), np.cumprod(sigmoid(logits), 1)], 1)
    np.testing.assert_allclose(Drafts.of(survival, np.zeros(5, int), np.arange(5)).logits, logits, atol=1e-4)


def test_what_is_no_draft_is_named():
    with pytest.raises(ValueError, match="accepted runs from 0 to 4; drafts have 3 slots"):
        Drafts(np.zeros((2, 3)), np.array([0, 4]), np.arange(2))
    with pytest.raises(ValueError, match="at least one draft"):
        Drafts(np.zeros((0, 3)), np.zeros(0, int), np.zeros(0, int))
