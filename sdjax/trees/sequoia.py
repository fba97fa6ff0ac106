"""Sequoia: the tree that commits most tokens under positional acceptance (Chen et al. 2024, arXiv:2402.12374).

`size` counts nodes, the anchor included; `depth` counts drafted levels. Where no child is accepted more often than
an earlier sibling, the best tree is simply the `size` highest-scoring nodes: parents and earlier siblings score at
least as high, so a best-first heap finds it. Otherwise the paper's dynamic program does (Alg. 1; App. F.1.1 with
bounded depth), vectorised over sizes.
"""

import heapq
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float, Int
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike

from sdjax.trees.acceptance import check_rates, non_increasing, rates_by_depth
from sdjax.trees.tree import Tree

Path = tuple[int, ...]
Solution = tuple[Float[np.ndarray, " N"], Callable[[int], list[Path]]]


def sequoia_tree(size: int, rates: ArrayLike, depth: int | None = None) -> Tree:
    """The tree of `size` nodes, at most `depth` deep, that commits most tokens a step under `rates`.

    `depth` None: as deep as pays (with rates for each depth: as deep as they go). Raises ValueError for bad rates,
    a budget smaller than the depth, or one larger than depth and width can hold.
    """
    rates, levels = check_budget(size, rates, depth)
    if non_increasing(rates):
        return Tree.from_paths(path for path, _ in best_first(size, rates_by_depth(rates, levels)))
    solve = unbounded if rates.ndim == 1 and depth is None else bounded
    return Tree.from_paths(solve(size, rates, levels)[1](size))


def expected_curve(size: int, rates: ArrayLike, depth: int | None = None) -> Float[np.ndarray, " N"]:
    """Expected tokens of the best trees of 1, 2, .. `size` nodes: one search serves them all."""
    rates, levels = check_budget(size, rates, depth)
    if non_increasing(rates):
        return np.cumsum([1.0, *(score for _, score in best_first(size, rates_by_depth(rates, levels)))])
    solve = unbounded if rates.ndim == 1 and depth is None else bounded
    return solve(size, rates, levels)[0][1:]


def check_budget(size: int, rates: ArrayLike, depth: int | None) -> tuple[np.ndarray, int]:
    """The checked rates and the number of levels to fill."""
    rates = check_rates(rates)
    if size < 1:
        raise ValueError(f"size is {size}; a tree has at least its anchor: give 1 or more nodes")
    if depth is None:
        depth = size - 1 if rates.ndim == 1 else min(size - 1, len(rates))
    if depth < 0 or depth > size - 1:
        raise ValueError(f"a tree of {size} nodes cannot be {depth} deep; give at least {depth + 1} nodes or a smaller depth")
    rates_by_depth(rates, depth)
    room = capacity(rates.shape[-1], depth, size)
    if room < size:
        raise ValueError(
            f"a tree of depth {depth} whose nodes have at most {rates.shape[-1]} children holds {room} nodes, not {size}; "
            "give rates of more children, a larger depth or a smaller size"
        )
    return rates, depth


def capacity(width: int, depth: int, enough: int) -> int:
    """Nodes of the full tree; counting stops once there are `enough`."""
    nodes, level = 1, 1
    for _ in range(depth):
        level *= width
        nodes += level
        if nodes >= enough:
            break
    return nodes


def best_first(size: int, rates: Float[np.ndarray, "D W"]) -> Iterator[tuple[Path, float]]:
    """Drafted nodes in the order in which they join: always the best of the next siblings and first children.

    Yields size - 1 paths with their scores, ties to the shallower, then to the earlier; fewer where none is left.
    """
    depth, width = rates.shape
    heap: list[tuple[float, int, Path, float]] = []  # (-score, depth, path, the parent's score)

    def offer(path: Path, above: float) -> None:
        if len(path) <= depth and path[-1] < width:
            heapq.heappush(heap, (-above * rates[len(path) - 1, path[-1]], len(path), path, above))

    offer((0,), 1.0)
    for _ in range(size - 1):
        if not heap:
            return
        score, _, path, above = heapq.heappop(heap)
        yield path, -score
        offer((*path[:-1], path[-1] + 1), above)
        offer((*path, 0), -score)


def unbounded(size: int, rates: Float[np.ndarray, " W"], levels: int) -> Solution:
    """Alg. 1: the best value of each size [size + 1], and a function from a size to the paths of its best tree.

    value[n, b]: a root with exactly b children and n nodes; its last child's subtree has `split` of them.
    """
    width = len(rates)
    value = np.full((size + 1, width + 1), -np.inf)
    split = np.zeros((size + 1, width + 1), int)
    best = np.full(size + 1, -np.inf)
    value[1, 0] = best[1] = 1.0
    for n in range(2, size + 1):
        options = value[n - 1 : 0 : -1, :-1] + best[1:n, None] * rates
        split[n, 1:] = options.argmax(0) + 1
        value[n, 1:] = options.max(0)
        best[n] = value[n].max()
    children = value.argmax(1)
    return best, lambda n: unfold(n, lambda depth, n: int(children[n]), lambda depth, b, n: int(split[n, b]))


def bounded(size: int, rates: ArrayLike, levels: int) -> Solution:
    """App. F.1.1: as `unbounded`, level by level from the deepest parents up."""
    rates = rates_by_depth(rates, levels)
    width = rates.shape[1]
    alone = np.full(size + 1, -np.inf)
    alone[1] = 1.0
    best = alone
    split = np.zeros((levels, width + 1, size + 1), int)
    children = np.zeros((levels, size + 1), int)
    for depth in reversed(range(levels)):
        value, below = [alone], best
        for rank in range(width):
            gain = np.where(np.isfinite(below), rates[depth, rank], 0) * np.where(np.isfinite(below), below, 0)
            total, split[depth, rank + 1] = max_plus(value[-1], np.where(np.isfinite(below), gain, -np.inf))
            value.append(total)
        best, children[depth] = np.max(value, 0), np.argmax(value, 0)
    return best, lambda n: unfold(n, lambda depth, n: int(children[depth, n]), lambda depth, b, n: int(split[depth, b, n]))


def max_plus(a: Float[np.ndarray, " N"], b: Float[np.ndarray, " N"]) -> tuple[Float[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """max over m of a[n - m] + b[m] for every n, and the m that reaches it."""
    size = len(a)
    padded = np.concatenate([np.full(size - 1, -np.inf), a])
    options = sliding_window_view(padded, size)[:, ::-1] + b  # options[n, m] = a[n - m] + b[m]
    split = options.argmax(1)
    return options[np.arange(size), split], split


def unfold(size: int, children: Callable[[int, int], int], split: Callable[[int, int, int], int]) -> list[Path]:
    """The paths of the tree that the tables describe: children(depth, n) and split(depth, rank, n)."""
    paths: list[Path] = []
    open_nodes: list[tuple[Path, int]] = [((), size)]
    while open_nodes:
        path, n = open_nodes.pop()
        if path:
            paths.append(path)
        for rank in range(children(len(path), n) if n > 1 else 0, 0, -1):
            below = split(len(path), rank, n)
            open_nodes.append(((*path, rank - 1), below))
            n -= below
    return paths
