"""Medusa's greedy tree, and the published ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdjax.trees.acceptance import expected_tokens
from sdjax.trees.medusa import exact_choice, medusa_tree
from sdjax.trees.published import PUBLISHED, named_tree
from sdjax.trees.sequoia import sequoia_tree
from sdjax.trees.tree import Tree


def greedy(size, accuracies):
    """The paper's words: again and again, the best node that is a next sibling or a first child."""
    value = lambda path: np.prod([accuracies[k, i] for k, i in enumerate(path)])
    heads, width = accuracies.shape
    paths = []
    while len(paths) < size - 1:
        open_paths = [
            path
            for path in [(0,), *((*p[:-1], p[-1] + 1) for p in paths), *((*p, 0) for p in paths)]
            if path not in paths and len(path) <= heads and path[-1] < width
        ]
        paths.append(min(set(open_paths), key=lambda path: (-value(path), len(path), path)))
    return Tree.from_paths(paths)


@settings(max_examples=30)
@given(st.lists(st.lists(st.floats(0, 0.25), min_size=4, max_size=4), min_size=3, max_size=3), st.integers(1, 20))
def test_greedy_tree(rows, size):
    accuracies = np.array(rows)
    assert expected_tokens(medusa_tree(size, accuracies), accuracies) == pytest.approx(
        expected_tokens(greedy(size, accuracies), accuracies), abs=1e-12
    )
    falling = -np.sort(-accuracies, axis=1)
    assert medusa_tree(size, falling) == sequoia_tree(size, falling)


def test_top_i_accuracies_become_those_of_single_choices():
    np.testing.assert_allclose(exact_choice([[0.5, 0.7, 0.75]]), [[0.5, 0.2, 0.05]])
    with pytest.raises(ValueError, match="fall with i"):
        exact_choice([[0.5, 0.4]])


def test_heads_that_cannot_fill_the_tree_are_refused():
    with pytest.raises(ValueError, match="holds 7 nodes, not 64"):
        medusa_tree(64, [[0.5, 0.1], [0.3, 0.1]])


@pytest.mark.parametrize(
    "name, per_depth",
    [
        ("mc_sim_7b_63", [10, 28, 23, 2]),
        ("vicuna_7b_stage2", [10, 23, 23, 7]),
        ("vicuna_13b_stage2", [10, 19, 25, 9]),
        ("vicuna_33b_stage2", [10, 24, 24, 5]),
        ("zephyr_stage2", [10, 27, 23, 3]),
        ("eagle_1", [4, 8, 8, 3, 2]),
    ],
)
def test_published_trees_have_the_published_levels(name, per_depth):
    tree = named_tree(name)
    assert [len(level) for level in tree.levels[1:]] == per_depth
    assert tree.parents == tuple(sorted(tree.parents))


def test_mc_sim_7b_63_is_the_published_one():
    """Facts about it that papers and code state: 42 leaves, four heads, these children."""
    tree = named_tree("mc_sim_7b_63")
    assert tree.nodes == 64 and tree.depth == 4
    assert sum(not children for children in tree.children) == 42
    first = tree.children[0]
    assert [len(tree.children[node]) for node in first] == [10, 7, 3, 2, 1, 1, 1, 1, 1, 1]
    below_best = tree.children[first[0]]
    assert [len(tree.children[node]) for node in below_best[:8]] == [10, 3, 2, 1, 1, 1, 1, 1]


def test_shapes_by_name():
    assert named_tree("chain3") == Tree.chain(3)
    assert named_tree("3x2") == Tree.branching(3, 2)
    assert set(PUBLISHED) >= {"mc_sim_7b_63", "eagle_1"}
    with pytest.raises(ValueError, match="did you mean mc_sim_7b_63"):
        named_tree("mc_sim_7b")
    with pytest.raises(ValueError, match="chain5 or 4x2x1"):
        named_tree("?")
