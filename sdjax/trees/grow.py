"""Dynamic trees in static shapes: grown level by level from draft probabilities, then cut to the best nodes.

EAGLE-2's expansion and rerank (Li et al. 2024, arXiv:2406.16858, §4), DDTree's best-first tree over per-slot
marginals (arXiv:2604.12989) and OPT-Tree's maximisation (arXiv:2406.17276) are one search: a node's score is the
log-probability of its path, and a tree's worth Σ exp(score). Scores fall along a path, so the best nodes of a pool
always form a tree. Children are taken by rank, not drawn: the law of such drafts is one-hot.

    growth = start(batch)                              # the frontier is the anchor
    growth = expand(growth, tokens, logp, frontier=K)  # once a level: the frontier's children join the pool
    draft = rerank(growth, nodes).draft(anchor)        # the best nodes, parents before children

Scratch rows of a drafter that runs its frontiers (the anchor's apart) stand in the order in which the frontiers
came: `growth.mask` says which of them each frontier node sees.

B batch, F frontier nodes, F' of the next one, W children of each, P candidates in the pool, N nodes incl. the anchor.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.sampling import top_k
from sdjax.core.types import Draft, Law, rows


@struct.dataclass
class Growth:
    """The pool of candidates in level order, and which of them are expanded next.

    `parent` is a place in the pool, -1 for the anchor; `sizes` (static) are the pool's entries per level.
    `came_from` is the place of a frontier node's parent in the frontier before; `mask` marks, among the rows of all
    frontiers so far, a frontier node's ancestors and itself (the anchor has no row).
    """

    tokens: Int[Array, "B P"]
    score: Float[Array, "B P"]
    parent: Int[Array, "B P"]
    frontier: Int[Array, "B F"]
    frontier_score: Float[Array, "B F"]
    came_from: Int[Array, "B F"]
    mask: Bool[Array, "B F R"]
    sizes: tuple[int, ...] = struct.field(pytree_node=False, default=())

    @property
    def frontier_tokens(self) -> Int[Array, "B F"]:
        """What the drafter runs next, once a first level is there."""
        return rows(self.tokens, self.frontier)

    @property
    def frontier_depth(self) -> int:
        return len(self.sizes)


@struct.dataclass
class Grown:
    """A tree of N nodes a sequence: what rerank keeps. `source` is a node's place in the pool, -1 for the anchor."""

    tokens: Int[Array, "B N"]
    parent: Int[Array, "B N"]
    depth: Int[Array, "B N"]
    valid: Bool[Array, "B N"]
    score: Float[Array, "B N"]
    source: Int[Array, "B N"]
    max_depth: int = struct.field(pytree_node=False)
    is_chain: bool = struct.field(pytree_node=False)

    def draft(self, anchor: Int[Array, " B"]) -> Draft:
        """As a draft below `anchor`; a path's probability is the drafter's estimate that it survives."""
        return Draft(
            tokens=self.tokens.at[:, 0].set(anchor),
            parent=self.parent,
            depth=self.depth,
            valid=self.valid,
            survival=jnp.exp(self.score),
            law=Law.ONE_HOT,
            max_depth=self.max_depth,
            is_chain=self.is_chain,
        )


def start(batch: int) -> Growth:
    """An empty pool; the frontier is the anchor."""
    empty = jnp.zeros((batch, 0), jnp.int32)
    anchor = jnp.full((batch, 1), -1, jnp.int32)
    score = jnp.zeros((batch, 1), jnp.float32)
    return Growth(empty, score[:, :0], empty, anchor, score, anchor, jnp.zeros((batch, 1, 0), bool))


def top_children(logits: Float[Array, "... V"], width: int) -> tuple[Int[Array, "... W"], Float[Array, "... W"]]:
    """The `width` likeliest tokens and their log-probabilities, best first; ties to the lower id."""
    if width > logits.shape[-1]:
        raise ValueError(f"{width} children are asked for, but the vocabulary has {logits.shape[-1]} tokens; take fewer")
    logits = logits.astype(jnp.float32)
    best, tokens = top_k(logits, width)
    return tokens, best - jax.nn.logsumexp(logits, -1, keepdims=True)


def expand(
    growth: Growth,
    tokens: Int[Array, "B F W"],
    logp: Float[Array, "B F W"],
    frontier: int,
    pooled: int | None = None,
) -> Growth:
    """Adds the frontier's children (best first) to the pool; the best `frontier` of them are expanded next.

    All F·W join, or the best `pooled` alone. A child with log-probability -inf is absent. In EAGLE-2, W = frontier = K.
    """
    batch, parents, width = tokens.shape
    # An increment above 0 (rounding, biased scores) would let a child outrank its parent; a NaN, everything.
    step = jnp.where(jnp.isnan(logp), -jnp.inf, jnp.minimum(logp.astype(jnp.float32), 0))
    score = (growth.frontier_score[:, :, None] + step).reshape(batch, -1)
    tokens = tokens.reshape(batch, -1).astype(jnp.int32)
    group = jnp.broadcast_to(jnp.arange(parents * width) // width, score.shape)
    if pooled is not None and pooled < parents * width:
        score, kept = lax.top_k(score, pooled)
        tokens, group = rows(tokens, kept), rows(group, kept)
    best, place = lax.top_k(score, min(frontier, score.shape[1]))
    came_from = rows(group, place)
    itself = jnp.broadcast_to(jnp.eye(place.shape[1], dtype=bool), (batch, place.shape[1], place.shape[1]))
    # The anchor has no row; every later frontier's rows are its own last columns of `mask`.
    above = rows(growth.mask, came_from)
    return Growth(
        tokens=jnp.concatenate([growth.tokens, tokens], 1),
        score=jnp.concatenate([growth.score, score], 1),
        parent=jnp.concatenate([growth.parent, rows(growth.frontier, group)], 1),
        frontier=sum(growth.sizes) + place,
        frontier_score=best,
        came_from=came_from,
        mask=jnp.concatenate([above, itself], 2),
        sizes=(*growth.sizes, score.shape[1]),
    )


def rerank(growth: Growth, nodes: int, least: float = 0.0) -> Grown:
    """The anchor and the best `nodes` - 1 candidates, in pool order: parents before children, siblings best first.

    Ties go to the shallower, since `top_k` prefers the lower place. Nodes of probability ≤ `least` are absent: with
    rank-taken children any pruning is lossless.
    """
    keep = kept_of(growth, nodes)
    kept = jnp.sort(lax.top_k(growth.score, keep)[1], axis=1).astype(jnp.int32)
    source = jnp.pad(kept, ((0, 0), (1, 0)), constant_values=-1)
    above = rows(growth.parent, kept)
    parent = 1 + jax.vmap(jnp.searchsorted)(kept, above).astype(jnp.int32)
    score = rows(growth.score, kept)
    level = jnp.asarray(np.repeat(np.arange(1, len(growth.sizes) + 1), growth.sizes), jnp.int32)
    front = lambda x, value: jnp.pad(x, ((0, 0), (1, 0)), constant_values=value)
    return Grown(
        tokens=front(rows(growth.tokens, kept), 0),
        parent=front(jnp.where(above < 0, 0, parent), -1),
        depth=front(level[kept], 0),
        valid=front(jnp.exp(score) > least, True),
        score=front(score, 0),
        source=source,
        max_depth=len(growth.sizes),
        is_chain=max(growth.sizes, default=1) == 1,
    )


def worth(growth: Growth, nodes: int) -> Float[Array, " B"]:
    """Expected tokens of the tree that `rerank` would keep, if the drafter's probabilities were true: bonus included.

    OPT-Tree grows while a level raises it by more than a threshold; -inf as `logp` stops single sequences of a batch.
    """
    return 1 + jnp.exp(lax.top_k(growth.score, kept_of(growth, nodes))[0]).sum(-1)


def kept_of(growth: Growth, nodes: int) -> int:
    """How many candidates a tree of `nodes` keeps; ValueError where the pool has fewer."""
    if nodes < 1 or nodes - 1 > sum(growth.sizes):
        raise ValueError(
            f"a tree of {nodes} nodes needs {nodes - 1} candidates besides the anchor, but {len(growth.sizes)} levels "
            f"brought {sum(growth.sizes)}; lower the nodes, or raise width, frontier or depth"
        )
    return nodes - 1


def slot_tree(tokens: Int[Array, "B D W"], logp: Float[Array, "B D W"], nodes: int, least: float = 0.0) -> Grown:
    """DDTree: the best tree of `nodes` under the product of independent laws, one for each depth (slot).

    `tokens` are each slot's likeliest, best first: the children of every node at that depth are the same. A node of
    the best tree has all its ancestors in it, so at each level its best `nodes` - 1 candidates suffice: the result is
    the best-first heap's.
    """
    batch, depth, width = tokens.shape
    if depth > nodes - 1:
        raise ValueError(f"a tree of {nodes} nodes cannot use {depth} slots; give at least {depth + 1} nodes or fewer slots")
    growth = start(batch)
    for slot in range(depth):
        shape = (batch, growth.frontier.shape[1], width)
        spread = lambda x, slot=slot, shape=shape: jnp.broadcast_to(x[:, slot, None], shape)
        growth = expand(growth, spread(tokens), spread(logp), frontier=nodes - 1, pooled=nodes - 1)
    return rerank(growth, nodes, least)
