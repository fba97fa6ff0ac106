"""Acceptance rates from decoding records."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdjax.trees.acceptance import count_accepted, expected_tokens, scores
from sdjax.trees.tree import Tree

TREE = Tree((-1, 0, 0, 1, 1, 1, 2, 3))


def test_scores_are_products_along_the_path():
    np.testing.assert_allclose(scores(TREE, [0.5, 0.2]), [1, 0.5, 0.2, 0.25, 0.1, 0, 0.1, 0.125])
    np.testing.assert_allclose(scores(TREE, [[0.5, 0.2], [0.4, 0.3]]), [1, 0.5, 0.2, 0.2, 0.15, 0, 0.08, 0])
    assert expected_tokens(Tree.chain(0), [0.9]) == 1


@settings(max_examples=30)
@given(ends=st.lists(st.tuples(st.integers(0, TREE.nodes - 1), st.booleans()), min_size=1, max_size=20))
def test_counts_follow_every_step(ends):
    """Steps that end at given nodes, some of which took no part, against a loop that walks each path."""
    node = np.full((1, len(ends), TREE.depth), -1)
    hits, trials = np.zeros((2, 3, 3), int)
    for step, (end, active) in enumerate(ends):
        path = [i for i in range(TREE.nodes) if TREE.ancestors[end, i]]
        node[0, step, : len(path) - 1] = path[1:]
        for depth, at in enumerate(path if active else []):
            if TREE.children[at]:
                trials[depth, : len(TREE.children[at])] += 1
            if depth + 1 < len(path):
                hits[depth, TREE.ranks[path[depth + 1]]] += 1
    counts = count_accepted(TREE, node, np.array([[int(active) for _, active in ends]]))
    np.testing.assert_array_equal(counts.hits, hits)
    np.testing.assert_array_equal(counts.trials, trials)
    assert counts.rates().shape == (3, 3) and (counts.rates().sum(1) <= 1 + 1e-12).all()


def test_rates_are_shares_of_the_steps_that_reached_the_parent():
    node = np.array([[[1, 3, 7], [1, 3, -1], [1, -1, -1], [2, 6, -1], [-1, -1, -1]]])
    counts = count_accepted(TREE, node, np.ones((1, 5), int))
    np.testing.assert_allclose(counts.rates(), [[3 / 5, 1 / 5, 0], [3 / 4, 0, 0], [1 / 2, 0, 0]])
    np.testing.assert_allclose(counts.pooled(), [7 / 11, 1 / 8, 0])


def test_records_of_another_tree_are_refused():
    with pytest.raises(ValueError, match="paths of 2 nodes, but the tree is 3 deep"):
        count_accepted(TREE, np.zeros((1, 1, 2), int), np.ones((1, 1), int))
    with pytest.raises(ValueError, match="no drafts"):
        count_accepted(Tree.chain(0), np.zeros((1, 1, 0), int), np.ones((1, 1), int))
