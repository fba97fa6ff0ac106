"""The definitions, on records small enough to count by hand."""

import numpy as np

from sdjax.core.metrics import Steps, acceptance, predicted_speedup
from sdjax.core.types import Records


def steps(**fields):
    return Steps(**{name: np.array(values) for name, values in fields.items()})


FIRST = steps(proposed=[3, 3, 3], reach=[3, 3, 3], accepted=[3, 0, 2], committed=[4, 1, 2], verified=[4, 4, 4])
SECOND = steps(proposed=[0, 1], reach=[0, 1], accepted=[0, 1], committed=[1, 2], verified=[1, 2])


def test_every_figure_by_hand():
    figures = acceptance([FIRST, SECOND], 3)
    assert figures.steps == 5
    assert figures.tau == 10 / 5
    assert figures.tau_macro == (7 / 3 + 3 / 2) / 2
    assert figures.accepted_per_step == 6 / 5
    assert figures.draft_acceptance == 6 / 10
    assert figures.verify_utilisation == 10 / 15
    assert figures.survival == (3 / 5, 2 / 5, 1 / 5)
    assert figures.conditional == (3 / 4, 2 / 2, 1 / 2)


def test_nothing_counted_is_not_a_number_and_no_error():
    figures = acceptance([], 2)
    assert figures.steps == 0 and np.isnan(figures.tau) and np.isnan(figures.tau_macro)


def test_rows_that_took_no_part_are_no_steps():
    one = lambda *values: np.array([values])
    records = Records(one(3, 0), one(3, 0), one(1, 0), one(2, 0), one(4, 0), np.full((1, 2, 3), -1))
    assert len(Steps.of(records, 0).committed) == 1


def test_prediction_is_tau_over_cost():
    assert predicted_speedup(3.0, 0.2, 1.2, 0.1) == 3.0 / 1.5
