"""Medusa's calibrated tree: grown greedily from the accuracies of its heads (Cai et al. 2024, arXiv:2401.10774, §2.3.3)."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from sdjax.trees.acceptance import check_rates
from sdjax.trees.sequoia import best_first, check_budget
from sdjax.trees.tree import Tree


def medusa_tree(size: int, accuracies: ArrayLike) -> Tree:
    """`size` nodes, the anchor included, each the best of the next siblings and first children of those before it.

    accuracies[k, i] is the rate at which head k's i-th choice alone (both from 0) is right; a node's value is the
    product along its path, the heads taken as independent, and the sum of values estimates the accepted length.
    Raises ValueError for bad accuracies or a size that the heads cannot fill.
    """
    accuracies = np.atleast_2d(check_rates(accuracies))
    check_budget(size, accuracies, None)
    return Tree.from_paths(path for path, _ in best_first(size, accuracies))


def exact_choice(top: ArrayLike) -> Float[np.ndarray, "K W"]:
    """From top-i accuracies (top[k, i]: the truth is among head k's first i + 1 choices) to those of each choice alone."""
    top = np.atleast_2d(np.asarray(top, np.float64))
    if (np.diff(top, axis=1) < 0).any():
        raise ValueError("top-i accuracies fall with i; give cumulative ones, or pass single-choice accuracies directly")
    return check_rates(np.diff(top, axis=1, prepend=0))
