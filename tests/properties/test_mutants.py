"""Mutation check: every wrong rule and every wrong drafter is caught by its exact law. A survivor fails the test."""

import numpy as np
import pytest

from sdjax.verify.law import exact_law
from sdjax.verify.recursive import Recursive
from sdjax.verify.tables import random_tables, read_tables
from sdjax.verify.token import TokenRejection
from tests.properties.faults import FAULTS, PUBLISHED, SLIPS
from tests.properties.models import FIXTURE, reused_coins, zero_accepts

TOLERANCE = 1e-9  # a correct rule stays below 1e-12


@pytest.fixture(scope="module")
def models():
    """The fixture, which was searched for so that every published fault shows, and one deeper random model."""
    return [read_tables(FIXTURE), random_tables(np.random.default_rng(5), 3, 3)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_caught(fault, models):
    deep_enough = [model for model in models if model.depth >= fault.tree.depth]
    worst = max(float(exact_law(fault.rule, model, fault.tree, fault.law, fault.draw).tv) for model in deep_enough)
    assert worst > TOLERANCE, f"the fault survives: {fault.name}"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_what_the_fault_was_made_from_is_clean(fault, models):
    """A control: the nearest rule of the library, told the truth about the same tree, is exact."""
    rule = next(kind for kind in type(fault.rule).__mro__ if kind.__module__.startswith("sdjax."))()
    rule = TokenRejection() if not rule.lossless else rule
    model = models[1] if fault.tree.depth > models[0].depth else models[0]
    assert exact_law(rule, model, fault.tree, fault.law).tv <= 1e-12


def test_there_are_enough_of_them():
    assert len(PUBLISHED) == 18 and len(FAULTS) >= 20 and len({fault.name for fault in FAULTS}) == len(PUBLISHED) + len(SLIPS)


class SameCoin(Recursive):
    """Every sibling at a depth is given the coin of the first: invisible to a law that tosses coins afresh."""

    def at(self, xp, case, node, depth):
        return Shadow(super().at(xp, case, node, depth))

    def odds(self, xp, case, trial):
        return super().odds(xp, case, trial.inner)

    def toss(self, xp, case, trial, heads):
        if heads:
            return self.at(xp, case, trial.inner.child, trial.inner.depth + 1)
        return Shadow(super().refused(xp, case, trial.inner))

    def residual(self, xp, case, trial):
        return trial.inner.r


class Shadow:
    """A trial whose coin does not tell siblings apart."""

    def __init__(self, inner):
        self.inner, self.done, self.node, self.coin = inner, inner.done, inner.node, (inner.depth + 1, 0)


def test_a_coin_used_twice_is_caught():
    assert reused_coins(SameCoin(), seed=0) and not reused_coins(Recursive(), seed=0)


def test_less_or_equal_at_zero_is_caught():
    """With the coin at 0, `u·b <= a` accepts what the target never says; `<` never does."""
    loose, strict = (lambda u, a, b: u * b <= a), (lambda u, a, b: u * b < a)
    assert zero_accepts(TokenRejection(), loose) and not zero_accepts(TokenRejection(), strict)
