"""Positional acceptance: the k-th child of an accepted node is accepted at a rate that depends on k (and depth) alone.

Sequoia's model (Chen et al. 2024, arXiv:2402.12374, §3). `rates` is either [W], the same at every depth, or [D, W],
whose row d belongs to the children of nodes at depth d. rates[..., k] is the share of steps, among those that
accepted the parent, in which child k was the accepted one: a row is non-negative and sums to at most 1.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression

from sdjax.trees.tree import Tree

ROUNDING = 1e-6  # rates read from a file with a few digits may sum to a little more than 1


def check_rates(rates: ArrayLike) -> Float[np.ndarray, "..."]:
    """The rates as float64 [W] or [D, W]; ValueError where they are no rates, naming the row and its value."""
    rates = np.asarray(rates, np.float64)
    if rates.ndim not in (1, 2) or rates.size == 0:
        raise ValueError(f"acceptance rates have shape {rates.shape}; give [children] or [depth, children], not empty")
    for depth, row in enumerate(np.atleast_2d(rates)):
        if not np.isfinite(row).all() or (row < 0).any():
            raise ValueError(f"acceptance rates of depth {depth} are {row.tolist()}; each must be a finite number ≥ 0")
        if row.sum() > 1 + ROUNDING:
            raise ValueError(
                f"acceptance rates of depth {depth} sum to {row.sum():.6g}; at most one child is accepted, so they sum to "
                "at most 1: give the share of steps in which each child was the accepted one, not top-k accuracies"
            )
    return rates


def rates_by_depth(rates: ArrayLike, depth: int) -> Float[np.ndarray, "D W"]:
    """One row for each of the `depth` levels of parents; ValueError where fewer were measured."""
    rates = check_rates(rates)
    if rates.ndim == 1:
        return np.broadcast_to(rates, (depth, len(rates)))
    if depth > len(rates):
        raise ValueError(f"the tree is {depth} deep, but acceptance rates are given for {len(rates)} depths; measure deeper")
    return rates[:depth]


def non_increasing(rates: ArrayLike) -> bool:
    """Whether no child is accepted more often than an earlier sibling."""
    return bool((np.diff(np.asarray(rates, np.float64), axis=-1) <= 0).all())


def isotonic(rates: ArrayLike) -> Float[np.ndarray, "..."]:
    """The closest non-increasing rates (least squares, row by row): irons the noise out of a measured tail.

    The sum of a row stays. For non-increasing rates the best tree is its highest-scoring nodes, found by a heap.
    """
    smooth = lambda row: np.asarray(isotonic_regression(row, increasing=False).x)
    # Pooled means that are equal may differ by an ulp: the running minimum makes the order exact.
    return np.minimum.accumulate(np.apply_along_axis(smooth, -1, check_rates(rates)), -1)


def scores(tree: Tree, rates: ArrayLike) -> Float[np.ndarray, " N"]:
    """P(node accepted) of every node: the product of the rates on its path; 0 where none was measured."""
    rates = check_rates(rates)
    by_depth = rates_by_depth(rates, tree.depth if rates.ndim == 1 else min(tree.depth, len(rates)))
    score = np.ones(tree.nodes)
    for node, parent in enumerate(tree.parents[1:], 1):
        at, rank = tree.depths[parent], tree.ranks[node]
        known = at < len(by_depth) and rank < by_depth.shape[1]
        score[node] = score[parent] * by_depth[at, rank] if known else 0
    return score


def expected_tokens(tree: Tree, rates: ArrayLike) -> float:
    """Tokens a step commits on average, bonus included: the sum of all scores (Prop. 3.4)."""
    return float(scores(tree, rates).sum())


@dataclass(frozen=True)
class Counts:
    """How often child `rank` of an accepted node at depth `d` was accepted: hits[d, rank] of trials[d, rank]."""

    hits: Int[np.ndarray, "D W"]
    trials: Int[np.ndarray, "D W"]

    def rates(self) -> Float[np.ndarray, "D W"]:
        """Row d: rates of the children of nodes at depth d; 0 where nothing was tried."""
        return ratio(self.hits, self.trials)

    def pooled(self) -> Float[np.ndarray, " W"]:
        """One vector for every depth: the paper's."""
        return ratio(self.hits.sum(0), self.trials.sum(0))


def ratio(hits: Int[np.ndarray, "... W"], trials: Int[np.ndarray, "... W"]) -> Float[np.ndarray, "... W"]:
    """hits / trials, 0 where nothing was tried; a row whose ranks were tried unequally often is cut to a sum of 1."""
    rates = hits / np.maximum(trials, 1)
    return rates / np.maximum(rates.sum(-1, keepdims=True), 1)


def count_accepted(tree: Tree, node: Int[np.ndarray, "B R D"], committed: Int[np.ndarray, "B R"]) -> Counts:
    """From decoding records of a static tree (`Records.node`, `Records.committed`) to counts.

    A child that the tree has but the draft lacked (too few tokens had mass) counts as tried and not accepted.
    """
    width = max(map(len, tree.children))
    if width == 0:
        raise ValueError("the tree has no drafts, so nothing can be accepted; measure with a wider tree")
    if node.shape[-1] != tree.depth:
        raise ValueError(f"records hold paths of {node.shape[-1]} nodes, but the tree is {tree.depth} deep")
    took_part = np.asarray(committed).ravel() > 0
    child = np.asarray(node).reshape(-1, tree.depth)[took_part]
    parent = np.concatenate([np.zeros((len(child), 1), int), child[:, :-1]], 1)
    tried = (parent >= 0)[..., None] & (np.array(list(map(len, tree.children)))[parent][..., None] > np.arange(width))
    accepted = (child >= 0)[..., None] & (np.array(tree.ranks)[child][..., None] == np.arange(width))
    return Counts(accepted.sum(0), tried.sum(0))
