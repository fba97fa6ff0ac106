"""Sequoia's search against every tree, and against itself."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdjax.trees import sequoia
from sdjax.trees.acceptance import expected_tokens, isotonic, rates_by_depth
from sdjax.trees.sequoia import expected_curve, sequoia_tree
from sdjax.trees.tree import Tree
from tests.trees.enumerate import all_trees

# The first entries of the vector printed in the paper's appendix E, then a tail of its kind.
PAPER = [0.7732, 0.1039, 0.0402, 0.0206, 0.0128, *(0.06 / k**2 for k in range(3, 14))]


def vectors(rows: int | None, width: int):
    """Rates whose rows sum to at most 1; about half of them non-increasing."""
    row = st.lists(st.integers(0, 20), min_size=width, max_size=width).map(lambda x: np.array(x) / max(sum(x), 1))
    row = st.tuples(row, st.floats(0, 1), st.booleans()).map(lambda x: np.sort(x[0] * x[1])[::-1] if x[2] else x[0] * x[1])
    return row if rows is None else st.lists(row, min_size=rows, max_size=rows).map(np.stack)


def test_trees_are_enumerated():
    assert [len(all_trees(n, n, n)) for n in range(1, 7)] == [1, 1, 2, 5, 14, 42]


@settings(max_examples=100)
@given(rates=vectors(None, 3), size=st.integers(1, 8))
def test_unbounded_is_optimal(rates, size):
    best = max(expected_tokens(tree, rates) for tree in all_trees(size, size - 1, 3))
    tree = sequoia_tree(size, rates)
    assert tree.nodes == size
    assert expected_tokens(tree, rates) == pytest.approx(best, abs=1e-12)
    assert expected_curve(size, rates)[-1] == pytest.approx(best, abs=1e-12)


@settings(max_examples=100)
@given(rates=st.one_of(vectors(None, 3), vectors(4, 3)), depth=st.integers(1, 4), more=st.integers(1, 5))
def test_bounded_is_optimal(rates, depth, more):
    size = min(depth + more, 8, sum(3**d for d in range(depth + 1)))
    best = max(expected_tokens(tree, rates) for tree in all_trees(size, depth, 3))
    tree = sequoia_tree(size, rates, depth)
    assert tree.nodes == size and tree.depth <= depth
    assert expected_tokens(tree, rates) == pytest.approx(best, abs=1e-12)
    assert expected_curve(size, rates, depth)[-1] == pytest.approx(best, abs=1e-12)


@settings(max_examples=20)
@given(rates=vectors(6, 5), size=st.integers(12, 40))
def test_heap_and_dynamic_program_agree_where_rates_fall(rates, size):
    rates = -np.sort(-rates, axis=1)
    by_heap, by_table = expected_curve(size, rates, 6), sequoia.bounded(size, rates, 6)[0][1:]
    np.testing.assert_allclose(by_heap, by_table, atol=1e-12)
    np.testing.assert_allclose(expected_curve(size, rates[0]), sequoia.unbounded(size, rates[0], size)[0][1:], atol=1e-12)


def test_the_heap_alone_would_miss_unsorted_rates():
    rates = np.array([0.3, 0.05, 0.65])
    greedy = Tree.from_paths(path for path, _ in sequoia.best_first(4, rates_by_depth(rates, 3)))
    assert expected_tokens(greedy, rates) == pytest.approx(1.44)
    assert expected_tokens(sequoia_tree(4, rates), rates) == pytest.approx(2)


def test_ties_go_to_the_shallower():
    assert sequoia_tree(3, [0.5, 0.25]) == Tree((-1, 0, 0))


def test_figures_of_the_paper():
    """A chain of such a draft model cannot pass 1 / (1 - P1); the tree grows with the logarithm of its size."""
    assert expected_tokens(Tree.chain(200), PAPER) == pytest.approx(1 / (1 - 0.7732), abs=1e-3)
    curve = expected_curve(128, PAPER)
    for size, tokens in [(8, 3.85), (16, 4.54), (32, 5.22), (64, 5.92), (128, 6.61)]:
        assert curve[size - 1] == pytest.approx(tokens, abs=0.06)
    for levels, tokens in [(6, 5.17), (10, 6.32), (18, 6.61)]:  # the paper counts the root's level too
        assert expected_curve(128, PAPER, levels - 1)[-1] == pytest.approx(tokens, abs=0.06)


@pytest.mark.parametrize("rates", [PAPER, PAPER[::-1]], ids=["heap", "dynamic program"])
@pytest.mark.parametrize("depth", [None, 18])
def test_512_nodes_take_less_than_a_second(rates, depth):
    begin = time.perf_counter()
    tree = sequoia_tree(512, rates, depth)
    assert time.perf_counter() - begin < 1
    assert tree.nodes == 512


def test_a_depth_dependent_vector_bounds_the_depth():
    rates = np.array([[0.8, 0.1], [0.6, 0.2], [0.4, 0.2]])
    assert sequoia_tree(12, rates).depth == 3
    assert expected_tokens(Tree.chain(3), rates) == pytest.approx(1 + 0.8 + 0.48 + 0.192)


def test_isotonic_makes_the_heap_serve():
    noisy = np.array([[0.6, 0.1, 0.02, 0.05], [0.3, 0.3, 0.0, 0.1]])
    smooth = isotonic(noisy)
    assert (np.diff(smooth, axis=1) <= 0).all()
    np.testing.assert_allclose(smooth.sum(1), noisy.sum(1))
    np.testing.assert_allclose(smooth[0], [0.6, 0.1, 0.035, 0.035])
    np.testing.assert_array_equal(isotonic(smooth[1]), smooth[1])


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: sequoia_tree(4, [0.5, -0.1]), r"depth 0 are \[0.5, -0.1\]; each must be a finite number"),
        (lambda: sequoia_tree(4, [[0.5, 0.1], [0.9, 0.2]]), "depth 1 sum to 1.1"),
        (lambda: sequoia_tree(4, [float("nan")]), "finite"),
        (lambda: sequoia_tree(4, []), "not empty"),
        (lambda: sequoia_tree(4, [0.5], depth=6), "4 nodes cannot be 6 deep; give at least 7 nodes"),
        (lambda: sequoia_tree(0, [0.5]), "size is 0"),
        (lambda: sequoia_tree(9, [0.5, 0.2], depth=2), "holds 7 nodes, not 9"),
        (lambda: sequoia_tree(9, [[0.5, 0.2]], depth=2), "given for 1 depths"),
    ],
)
def test_errors_name_the_value_and_the_fix(call, says):
    with pytest.raises(ValueError, match=says):
        call()
