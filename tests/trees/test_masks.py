"""A tree's topology and its masks on the device, against walks along parents."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdjax.core.types import Law
from sdjax.trees.tree import Tree, ancestor_mask, present

NODES = 9
parents = st.tuples(*[st.integers(0, i) for i in range(NODES - 1)]).map(lambda above: (-1, *above))


def above(parent, node):
    """The node and all above it."""
    path = []
    while node >= 0:
        path.append(node)
        node = parent[node]
    return path


@settings(max_examples=60)
@given(st.lists(parents, min_size=3, max_size=3), st.lists(st.booleans(), min_size=3 * NODES, max_size=3 * NODES))
def test_masks_of_a_batch_of_different_trees(parents, valid):
    trees = [Tree(p) for p in parents]
    valid = np.array(valid).reshape(3, NODES) | (np.arange(NODES) == 0)
    seen = mask(np.array(parents, np.int32))
    kept = who_is_present(trees[0].draft(np.zeros((3, NODES), np.int32), Law.ONE_HOT, valid=valid), seen)
    for row, tree in enumerate(trees):
        paths = [above(tree.parents, i) for i in range(NODES)]
        wanted = np.array([[j in path for j in range(NODES)] for path in paths])
        np.testing.assert_array_equal(seen[row], wanted)
        np.testing.assert_array_equal(tree.ancestors, wanted)
        np.testing.assert_array_equal(kept[row], [all(valid[row, j] for j in path) for path in paths])
        assert tree.depths == tuple(len(path) - 1 for path in paths)


mask = jax.jit(lambda parent: ancestor_mask(parent, NODES - 1))
who_is_present = jax.jit(present)


@settings(max_examples=60)
@given(parents)
def test_paths_levels_and_children_describe_the_same_tree(parents):
    tree = Tree(parents)
    assert Tree.from_paths(tree.paths()).paths() == sorted(tree.paths(), key=lambda path: (len(path), path))
    assert sorted(node for level in tree.levels for node in level) == list(range(NODES))
    for depth, level in enumerate(tree.levels):
        assert all(tree.depths[node] == depth for node in level)
    for node, children in enumerate(tree.children):
        assert [tree.ranks[child] for child in children] == list(range(len(children)))
        assert all(parents[child] == node for child in children)
    assert tree.inner == tuple(sorted(set(parents) - {-1}))
    # Sorted by level, siblings side by side, a tree is its own breadth-first order.
    ordered = Tree.from_paths(tree.paths())
    assert [node for level in ordered.levels for node in level] == list(range(NODES))


@pytest.mark.parametrize("parents", [(), (0,), (-1, 1), (-1, 0, 3, 1), (-1, -1)])
def test_what_is_no_tree_is_refused(parents):
    with pytest.raises(ValueError):
        Tree(parents)


@pytest.mark.parametrize(
    "paths, says", [([[1]], r"path \[1\] needs path \[0\]"), ([[0, 0]], "needs"), ([[0], [0]], "given twice")]
)
def test_paths_that_are_no_tree_are_refused(paths, says):
    with pytest.raises(ValueError, match=says):
        Tree.from_paths(paths)
