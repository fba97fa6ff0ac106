"""A tree's topology as hashable data, and its masks on the device."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from sdjax.core.types import Draft, Law


@dataclass(frozen=True)
class Tree:
    """A static topology: parents[i] < i is node i's parent, node 0 is the anchor with parent -1.

    Siblings are ranked by their order of appearance.
    """

    parents: tuple[int, ...]
    """Each node's parent, -1 for the anchor: -1 0 1 2 is a chain of three drafts."""

    def __post_init__(self):
        if not self.parents or self.parents[0] != -1:
            raise ValueError(f"a tree's first node is the anchor, with parent -1; got parents {self.parents}")
        for node, parent in enumerate(self.parents[1:], 1):
            if not 0 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; a parent must come before its children")

    @classmethod
    def chain(cls, length: int) -> "Tree":
        """`length` drafts, one after the other; 0 is the anchor alone."""
        return cls(tuple(range(-1, length)))

    @classmethod
    def branching(cls, *widths: int) -> "Tree":
        """Every node at depth d has widths[d] children: branching(2, 2) has 1 + 2 + 4 nodes."""
        parents, level = [-1], [0]
        for width in widths:
            start = len(parents)
            parents += [node for node in level for _ in range(width)]
            level = list(range(start, len(parents)))
        return cls(tuple(parents))

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> "Tree":
        """From paths of child ranks, such as [0], [1], [0, 0]: nodes sorted by length, then lexicographically.

        Raises ValueError where a path's parent or an earlier sibling is missing, or a path comes twice.
        """
        given = [tuple(path) for path in paths]
        place = {path: i for i, path in enumerate(sorted({(), *given}, key=lambda path: (len(path), path)))}
        if len(place) != len({*given, ()}) or len(given) != len(set(given)):
            raise ValueError("a path of the tree is given twice")
        for path in place:
            needed = [path[:-1]] if path else []
            needed += [(*path[:-1], path[-1] - 1)] if path and path[-1] > 0 else []
            for before in needed:
                if before not in place:
                    raise ValueError(f"path {list(path)} needs path {list(before)}, which the tree lacks")
        return cls((-1, *(place[path[:-1]] for path in place if path)))

    @property
    def nodes(self) -> int:
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        return max(self.depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of every node, in rank order."""
        return tuple(tuple(i for i, p in enumerate(self.parents) if p == node) for node in range(self.nodes))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Every node's place among its siblings (0 for the anchor)."""
        return (0, *(self.children[p].index(i) for i, p in enumerate(self.parents) if p >= 0))

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """The nodes that have children."""
        return tuple(node for node in range(self.nodes) if self.children[node])

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of every depth from 0: children stand parent by parent, in rank order."""
        levels: list[tuple[int, ...]] = [(0,)]
        while below := tuple(child for node in levels[-1] for child in self.children[node]):
            levels.append(below)
        return tuple(levels)

    @cached_property
    def ancestors(self) -> np.ndarray:
        """bool[N, N]: row i marks node i and the path above it."""
        seen = np.eye(self.nodes, dtype=bool)
        for node, parent in enumerate(self.parents[1:], 1):
            seen[node] |= seen[parent]
        return seen

    def paths(self) -> list[tuple[int, ...]]:
        """Every drafted node's path of child ranks: the inverse of `from_paths` up to node order."""
        paths: list[tuple[int, ...]] = [()]
        for node, parent in enumerate(self.parents[1:], 1):
            paths.append((*paths[parent], self.ranks[node]))
        return paths[1:]

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def draft(self, tokens: Int[Array, "B N"], law: Law, q: Array | None = None, valid: Array | None = None) -> Draft:
        """A draft of this shape. `q` has a row for each inner node, in node order; `valid` defaults to all."""
        row = {node: i for i, node in enumerate(self.inner)}
        spread = lambda values: jnp.broadcast_to(jnp.asarray(values, jnp.int32), tokens.shape)
        return Draft(
            tokens=tokens,
            parent=spread(self.parents),
            depth=spread(self.depths),
            valid=jnp.ones(tokens.shape, bool) if valid is None else valid,
            q=q,
            q_row=None if q is None else spread([row.get(node, -1) for node in range(self.nodes)]),
            law=law,
            max_depth=self.depth,
            is_chain=self.is_chain,
        )


def ancestor_mask(parent: Int[Array, "B N"], max_depth: int) -> Bool[Array, "B N N"]:
    """Row i marks node i and every node above it, for trees that are at most `max_depth` deep."""
    nodes = jnp.arange(parent.shape[1])
    above = jnp.broadcast_to(nodes, parent.shape)
    seen = above[:, :, None] == nodes
    for _ in range(max_depth):
        up = jnp.take_along_axis(parent, jnp.maximum(above, 0), axis=1)
        above = jnp.where(above < 0, -1, up)
        seen |= above[:, :, None] == nodes
    return seen


def present(draft: Draft, ancestors: Bool[Array, "B N N"]) -> Bool[Array, "B N"]:
    """Nodes that are valid and whose ancestors all are."""
    return ~jnp.any(ancestors & ~draft.valid[:, None], -1)
