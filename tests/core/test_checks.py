"""Settings of a wrong type are named where they are given, not where they are used."""

from functools import partial

import numpy as np
import pytest

from sdjax.core.sampling import Warp
from sdjax.decode.schedule import Delayed, Fixed, Threshold
from sdjax.decode.state import Loop
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.hardware import CostCurve
from sdjax.verify.walk import Walk
from tests.decode.confident import linear_costs
from tests.tiny import TARGET

loop = partial(Loop, TARGET, NoDraft(), Walk())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Warp(1.0, top_k=2.0), r"top_k is 2\.0; it must be an integer"),
        (lambda: Warp(None), "temperature is None; it must be a number"),
        (lambda: Warp("0.7"), "temperature is '0.7'; it must be a number"),
        (lambda: Warp(1.0, top_p=None), "top_p is None; it must be a number"),
        (lambda: Warp(1.0, min_p="0"), "min_p is '0'; it must be a number"),
        (lambda: loop(stop=2), "stop is 2; it must be a sequence of integers"),
        (lambda: loop(pack=4), "pack is 4; it must be a sequence of integers"),
        (lambda: loop(chunk=8.0), r"chunk is 8\.0; it must be an integer"),
        (lambda: Fixed(1.5), r"length is 1\.5; it must be an integer"),
        (lambda: Delayed(linear_costs(8), 1.5), r"delay is 1\.5; it must be an integer"),
        (lambda: DynamicTree(3.0, 8, 2), r"depth is 3\.0; it must be an integer"),
        (lambda: DynamicTree(3, 8.0, 2), r"nodes is 8\.0; it must be an integer"),
        (lambda: DynamicTree(3, 8, 2.0), r"width is 2\.0; it must be an integer"),
        (lambda: NGram(4.0), r"length is 4\.0; it must be an integer"),
        (lambda: NGram(longest=2.5), r"longest is 2\.5; it must be an integer"),
        (lambda: NGram(window=2.5), r"window is 2\.5; it must be an integer"),
        (lambda: Threshold(None), "least is None; it must be a number"),
        (lambda: CostCurve((1,), (1.0,), 0.0, groups=1.5), r"groups is 1\.5; it must be an integer"),
    ],
)
def test_wrong_types_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_numpys_numbers_are_as_good():
    assert Warp(np.float32(0.5), np.int64(3)) == Warp(0.5, 3)
    assert loop(stop=np.array([3, 2])) == loop(stop=(2, 3))
