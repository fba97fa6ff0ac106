"""Medusa's calibrated tree: grown greedily from the accuracies of its heads (Cai et al. 2024, arXiv:2401.10774, §2.3.3)."""

import numpy as np
from jaxtyping import Float, Int
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


def rank_accuracies(ranks: Int[np.ndarray, "K n"], weights: Float[np.ndarray, "K n"], width: int) -> Float[np.ndarray, "K W"]:
    """The rate at which head k's i-th choice alone is right, from the ranks that it gave to the true tokens (0: the first).

    The trainable families' `ranks` gives both on the target's own texts, along the texts; a position without weight
    does not count. Raises ValueError where a head was never tried.
    """
    ranks, weights = (np.asarray(x).reshape(len(x), -1) for x in (ranks, weights))
    tried = weights.sum(1, dtype=np.float64)
    if not tried.all():
        raise ValueError(f"heads {np.flatnonzero(tried == 0).tolist()} were never tried; give longer texts or learn from more")
    hits = (ranks[:, :, None] == np.arange(width)) * weights[:, :, None]
    return hits.sum(1, dtype=np.float64) / tried[:, None]
