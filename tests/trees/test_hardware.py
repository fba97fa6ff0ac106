"""The choice of size and depth."""

import json

import pytest

from sdjax.trees.acceptance import expected_tokens
from sdjax.trees.hardware import Choice, CostCurve, choices, choose_tree
from sdjax.trees.sequoia import sequoia_tree

RATES = [0.7, 0.12, 0.05, 0.02]


def test_the_choice_is_the_best_of_all():
    costs = CostCurve(tokens=(1, 2, 4, 8, 16, 32), verify=(1.0, 1.1, 1.2, 1.5, 2.3, 4.0), draft=0.1)
    best, tree = choose_tree(RATES, costs, depths=range(1, 9))
    by_hand = {}
    for size in (2, 4, 8, 16, 32):
        for depth in range(1, min(size, 9)):
            if size <= sum(4**d for d in range(depth + 1)):
                tokens = expected_tokens(sequoia_tree(size, RATES, depth), RATES)
                by_hand[size, depth] = tokens / (costs.verify_time(size) + 0.1 * depth)
    assert (best.size, best.depth) == max(by_hand, key=by_hand.get)
    assert best.speedup == pytest.approx(max(by_hand.values()))
    assert (tree.nodes, expected_tokens(tree, RATES)) == (best.size, pytest.approx(best.expected))
    assert tree.depth <= best.depth


def test_cheap_verification_takes_large_trees_and_dear_drafts_shallow_ones():
    free, dear = (choices(RATES, CostCurve.modelled(knee, draft=0.05, most=64))[0] for knee in (64, 4))
    assert free.size == 64 and dear.size < 16
    assert choices(RATES, CostCurve.modelled(64, draft=0.5, most=64))[0].depth < free.depth


def test_where_nothing_pays_plain_decoding_is_chosen():
    costs = CostCurve(tokens=(1, 8), verify=(1.0, 8.0), draft=1.0)
    assert choices([0.2], costs)[0] == Choice(1, 0, 1.0, 1.0)
    assert choose_tree([0.2], costs)[1].nodes == 1


def test_curve_is_interpolated_and_read(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"tokens": [1, 4], "verify": [1.0, 2.5], "draft": 0.2}))
    assert CostCurve.read(path).verify_time(2) == pytest.approx(1.5) and CostCurve.read(path).groups == 1
    with pytest.raises(ValueError, match="covers 1 to 4 tokens, not 5"):
        CostCurve.read(path).verify_time(5)
    path.write_text("{}")
    with pytest.raises(ValueError, match="lacks"):
        CostCurve.read(path)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (((1, 2), (1.0,), 0.1), "2 widths and 1 times"),
        (((2, 1), (1.0, 1.0), 0.1), "increase"),
        (((1, 2), (1.0, -1.0), 0.1), "positive"),
        (((1, 2), (1.0, 1.5), 0.1, 0), "groups is 0"),
    ],
)
def test_a_bad_curve_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        CostCurve(*arguments)
