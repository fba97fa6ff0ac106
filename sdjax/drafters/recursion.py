"""Drafting node by node, whatever the drafter: a static tree depth by depth, or EAGLE-2's dynamic tree.

All nodes of one depth run in one pass, each seeing the committed tokens, its ancestors and itself, and bring forth
the next depth. What runs is a `Cell`: an independent model, the target's own first layers, or a recursive head that
is fed its own output.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sdjax.core.cache import Staged
from sdjax.core.types import Context, Draft, Law, rows
from sdjax.drafters.head import in_target
from sdjax.trees.draw import Children, draw_children
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.grow import expand, rerank, start, top_children
from sdjax.trees.tree import Tree

# (tokens [B,T], hidden of their parents [B,T,E], positions [B,T], mask [b,T,R+T], scratch of R rows) -> (hidden, staged)
Run = Callable[[Array, Any, Array, Array, Staged | None], tuple[Array, Staged]]


@dataclass(frozen=True)
class Cell:
    """One step of a drafter: what a node's token and its parent's hidden state become, and the logits of its children.

    `lag` is how far a row stands before the position of its token: 0 for a language model, 1 for heads that pair a
    token with the state before it. `ids` are the target's ids of the drafter's own tokens (None: the same).
    """

    run: Run
    logits: Callable[[Float[Array, "B I E"]], Float[Array, "B I V"]]
    lag: int = 0
    ids: Int[Array, " V"] | None = None


def draft_tree(
    cell: Cell, ctx: Context, tree: Tree, law: Law, root: Float[Array, "B 1 E"] | None = None, leaves: bool = False
) -> tuple[Draft, Staged | None]:
    """Fills `tree` below the anchor with children drawn by `law`; row i of the scratch is that of the i-th node run.

    `root` is the anchor's hidden state, where it is known; else the anchor runs first. Without `leaves`, nodes that
    have no children are not run: the scratch then lacks their rows and is of no use beyond this call.
    """
    level = Children(ctx.anchor[:, None], jnp.ones((len(ctx.p), 1), bool), None)
    levels: list[Children] = [level]
    ran: list[int] = []
    scratch: Staged | None = None
    hidden: Any = root  # of the nodes in `frontier`
    frontier = [0]
    for depth, nodes in enumerate(tree.levels):
        here = [i for i, node in enumerate(nodes) if leaves or tree.children[node]]
        if not here:
            break
        new = [nodes[i] for i in here]
        if depth or root is None:
            tokens = level.tokens[:, np.array(here)]
            above = hidden[:, np.array([frontier.index(tree.parents[node]) for node in new])] if depth else None
            positions = jnp.broadcast_to(ctx.p[:, None] + depth - cell.lag, tokens.shape)
            mask = jnp.asarray(tree.ancestors[new][:, ran + new])[None]
            hidden, staged = cell.run(tokens, above, positions, mask, scratch)
            scratch, ran, frontier = join(scratch, staged), ran + new, new
        inner = [i for i, node in enumerate(new) if tree.children[node]]
        if inner:
            widths = tuple(len(tree.children[new[i]]) for i in inner)
            drawn = draw_children(cell.logits(hidden[:, np.array(inner)]), widths, law, ctx, depth + 1)
            level = in_target(drawn, cell.ids, ctx.target.vocab)
            levels.append(level)
    return draft_of(tree, levels, law), take_rows(scratch, np.argsort(ran))


def draft_dynamic_tree(cell: Cell, ctx: Context, tree: DynamicTree, root: Float[Array, "B 1 E"]) -> Draft:
    """EAGLE-2's tree (Li et al. 2024, §4): the likeliest nodes of each depth are run, then the likeliest of all kept."""
    growth = start(len(ctx.p))
    hidden, scratch = root, None
    for depth in range(tree.depth):
        if depth:
            above = rows(hidden, growth.came_from)
            positions = jnp.broadcast_to(ctx.p[:, None] + depth - cell.lag, growth.frontier.shape)
            hidden, staged = cell.run(growth.frontier_tokens, above, positions, growth.mask, scratch)
            scratch = join(scratch, staged)
        tokens, logp = top_children(cell.logits(hidden), tree.width)
        tokens = tokens if cell.ids is None else cell.ids[tokens]
        growth = expand(growth, tokens, logp, frontier=tree.width)
    return rerank(growth, tree.nodes).draft(ctx.anchor)


def draft_below(cell: Cell, ctx: Context, tree: Tree | DynamicTree, law: Law, root: Float[Array, "B 1 E"]) -> Draft:
    """The draft of either kind of tree below an anchor whose hidden state is `root`; a dynamic tree is never sampled."""
    if isinstance(tree, DynamicTree):
        return draft_dynamic_tree(cell, ctx, tree, root)
    return draft_tree(cell, ctx, tree, law, root)[0]


def draft_of(tree: Tree, levels: list[Children], law: Law) -> Draft:
    """The draft whose nodes, level by level, are the given children: put into the tree's own order."""
    nodes = [node for level in tree.levels for node in level]
    ordered = lambda parts, nodes: jnp.concatenate(parts, 1)[:, np.argsort(nodes)]
    tokens, valid = (ordered([getattr(level, name) for level in levels], nodes) for name in ("tokens", "valid"))
    q = [level.q for level in levels[1:]]
    if q[0] is None:
        return tree.draft(tokens, Law.ONE_HOT, valid=valid)
    return tree.draft(tokens, law, ordered(q, [node for node in nodes if tree.children[node]]), valid)


def join(scratch: Staged | None, new: Staged) -> Staged:
    """The rows of `new` behind those of `scratch`."""
    if scratch is None:
        return new
    layers = jax.tree.map(lambda old, new: jnp.concatenate([old, new], 2), scratch.layers, new.layers)
    return Staged(layers, jnp.concatenate([scratch.positions, new.positions], 1))


def take_rows(scratch: Staged | None, rows: np.ndarray) -> Staged | None:
    """The scratch in another order; untouched where it is in order already."""
    if scratch is None or (np.diff(rows) == 1).all():
        return scratch
    return Staged(jax.tree.map(lambda x: x[:, :, rows], scratch.layers), scratch.positions[:, rows])


def check_tree(tree: Tree | DynamicTree, law: Law, vocab: int | None = None) -> None:
    """Raises ValueError for a tree without drafts, or with more distinct siblings than there are tokens."""
    if tree.depth == 0:
        raise ValueError("the tree holds the anchor alone; give it a node to draft, or decode with NoDraft")
    width = tree.width if isinstance(tree, DynamicTree) else max(map(len, tree.children))
    distinct = isinstance(tree, DynamicTree) or law is not Law.IID
    if vocab is not None and distinct and width > vocab:
        raise ValueError(f"a node of the tree has {width} children, but the vocabulary {vocab} tokens; narrow the tree")
