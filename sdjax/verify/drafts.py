"""Every draft that a tree and a law can produce on a small vocabulary, with its probability."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from math import perm, prod

import numpy as np
from jaxtyping import Float

from sdjax.core.types import Law
from sdjax.trees.tree import Tree
from sdjax.verify.base import Case
from sdjax.verify.tables import Tables

# How many children stand below a node, given its path of child ranks and of tokens: a tree that grows as it is drawn.
Builder = Callable[[tuple[int, ...], tuple[int, ...]], int]
# Ordered tuples of k children with their weights [...], from a row of q [V, ...].
Draw = Callable[[np.ndarray, int], Iterator[tuple[tuple[int, ...], np.ndarray]]]

LIMIT = 200_000


@dataclass(frozen=True)
class Outcome:
    """One draft: what the rule reads, its probability [...], and the tokens on the way to each node."""

    case: Case
    weight: Float[np.ndarray, "..."]
    paths: tuple[tuple[int, ...], ...]


class Rows:
    """rows[node] and rows[node, token] of laws that stay where they are: no copy is made for each draft."""

    def __init__(self, rows: Sequence[np.ndarray]):
        self.rows = rows

    def __getitem__(self, index):
        if isinstance(index, tuple):
            return self.rows[index[0]][index[1]]
        return self.rows[index]


def static(tree: Tree) -> Builder:
    """A fixed tree as a builder: tokens make no difference."""
    counts: dict[tuple[int, ...], int] = {(): len(tree.children[0])}
    counts |= {path: len(tree.children[node]) for node, path in enumerate(tree.paths(), 1)}
    return lambda ranks, tokens: counts[ranks]


def outcomes(tables: Tables, tree: Tree | Builder, law: Law, draw: Draw | None = None) -> Iterator[Outcome]:
    """Every draft of positive probability. Nodes stand level by level, siblings in draw order.

    `draw` replaces how the law draws siblings (for studying faults); the rule is still told `law`.
    """
    builder = static(tree) if isinstance(tree, Tree) else tree
    draw = draw or DRAWS[law]
    blank = np.ones(tables.models)

    def grow(nodes: list[tuple], parents: list[int], at: int, weight: np.ndarray) -> Iterator[tuple]:
        """Extends the tree at node `at`; yields (nodes, parents, weight) once no node is left to extend."""
        if at == len(nodes):
            yield nodes, parents, weight
            return
        ranks, tokens = nodes[at]
        width = builder(ranks, tokens)
        if not width:
            yield from grow(nodes, parents, at + 1, weight)
            return
        for children, chance in draw(tables.q[len(tokens)][tokens], width):
            more = weight * chance
            if np.any(more > 0):
                born = [((*ranks, rank), (*tokens, token)) for rank, token in enumerate(children)]
                yield from grow(nodes + born, parents + [at] * len(born), at + 1, more)

    for nodes, parents, weight in grow([((), ())], [-1], 0, blank):
        yield outcome(tables, law, [tokens for _, tokens in nodes], parents, weight)


def outcome(tables: Tables, law: Law, paths: list[tuple[int, ...]], parents: list[int], weight: np.ndarray) -> Outcome:
    inner = sorted(set(parents) - {-1}) or [0]  # rules read a row even where no child stands
    row = {node: i for i, node in enumerate(inner)}
    q_of = lambda node: tables.q[len(paths[node])][paths[node]]
    told = (lambda node: mixed_law(q_of(node), parents.count(node))) if law is Law.MIXED else q_of
    case = Case(
        tokens=np.array([path[-1] if path else 0 for path in paths], np.int32),
        parent=np.array(parents, np.int32),
        depth=np.array([len(path) for path in paths], np.int32),
        valid=np.ones(len(paths), bool),
        p=Rows([tables.p[len(path)][path] for path in paths]),
        q=None if law is Law.ONE_HOT else Rows([told(node) for node in inner]),
        q_row=np.array([row.get(node, -1) for node in range(len(paths))], np.int32),
        law=law,
        max_depth=max(map(len, paths)),
    )
    return Outcome(case, weight, tuple(paths))


def draw_iid(q: np.ndarray, k: int) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    for children in product(range(len(q)), repeat=k):
        yield children, prod((q[token] for token in children), start=np.ones(q.shape[1:]))


def draw_without_replacement(q: np.ndarray, k: int) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Successive draws; where the support is exhausted, uniform over what was not drawn (Sequoia's Algorithm 2)."""
    for children in permutations(range(len(q)), k):
        rest, weight = q.copy(), np.ones(q.shape[1:])
        for drawn, token in enumerate(children):
            total = rest.sum(0)
            weight = weight * np.where(total > 0, rest[token] / np.where(total > 0, total, 1), 1 / (len(q) - drawn))
            rest[token] = 0
        yield children, weight


def draw_top(q: np.ndarray, k: int) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """The k likeliest tokens, ties to the lower id: one outcome a model."""
    top = np.argsort(-q, axis=0, kind="stable")[:k]
    for children in permutations(range(len(q)), k):
        yield children, np.all([top[i] == token for i, token in enumerate(children)], axis=0).astype(np.float64)


def draw_mixed(q: np.ndarray, k: int) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """One token drawn from q without its k - 1 likeliest, which stand behind it; see `mixed_law`."""
    law = mixed_law(q, k)
    for fixed, chance in draw_top(q, k - 1):
        for token in range(len(q)):
            if token not in fixed:
                yield (token, *fixed), chance * law[token]


def mixed_law(q: np.ndarray, k: int) -> np.ndarray:
    """q without its k - 1 likeliest tokens, renormalised: uniform over the rest where nothing is left."""
    rank = np.argsort(np.argsort(-q, axis=0, kind="stable"), axis=0)
    left = np.where(rank >= k - 1, q, 0)
    left = np.where(left.sum(0) > 0, left, rank >= k - 1)
    return left / left.sum(0)


DRAWS: dict[Law, Draw] = {
    Law.IID: draw_iid,
    Law.WITHOUT_REPLACEMENT: draw_without_replacement,
    Law.ONE_HOT: draw_top,
    Law.MIXED: draw_mixed,
}


def count_outcomes(vocab: int, tree: Tree | Builder, law: Law) -> int:
    """How many drafts there can be: sibling subtrees multiply, tokens add."""
    builder = static(tree) if isinstance(tree, Tree) else tree
    ways = (lambda k: vocab**k) if law is Law.IID else (lambda k: perm(vocab, k))

    @cache
    def below(ranks: tuple[int, ...], tokens: tuple[int, ...]) -> int:
        width = builder(ranks, tokens)
        if isinstance(tree, Tree):  # every token leads to the same shape
            return ways(width) * prod(below((*ranks, i), (*tokens, 0)) for i in range(width))
        tuples = product(range(vocab), repeat=width) if law is Law.IID else permutations(range(vocab), width)
        return sum(prod(below((*ranks, i), (*tokens, token)) for i, token in enumerate(children)) for children in tuples)

    return below((), ())


def refuse_size(vocab: int, tree: Tree | Builder, law: Law, limit: int = LIMIT) -> None:
    """Raises ValueError where the drafts are too many to go through, or none exists."""
    count = count_outcomes(vocab, tree, law)
    if count > limit:
        raise ValueError(
            f"{count:.4g} drafts are too many to enumerate (the limit is {limit:,}); take a smaller vocabulary than "
            f"{vocab}, or a tree with fewer or shallower nodes"
        )
    if not count:
        raise ValueError(f"a vocabulary of {vocab} has too few tokens for the distinct siblings of this tree")
