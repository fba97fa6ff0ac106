"""A language model drafts a static tree, such as Sequoia's (Chen et al. 2024, arXiv:2402.12374; SpecInfer before it).

Depth by depth: all nodes of one depth run in one forward pass, each seeing the committed tokens, its ancestors and
itself, and bring forth the next depth. `TreeDraftModel` is an independent model; `TreeSelfDraft` the target's own
first layers.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sdjax.core.cache import Cache, Staged
from sdjax.core.types import Committed, Context, Draft, Law
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.self_draft import SelfDraft
from sdjax.targets.decoder import Decoder, Tap, truncate_params
from sdjax.trees.draw import Children, draw_children
from sdjax.trees.tree import Tree


def draft_tree(
    model: Decoder, params: Any, cache: Cache, ctx: Context, tree: Tree, law: Law, leaves: bool
) -> tuple[Draft, Staged | None]:
    """Fills `tree` below the anchor with children drawn by `law`; row i of the scratch is node i's.

    With `leaves` False, nodes without children are not run: the scratch then lacks their rows and is of no use
    beyond this call.
    """
    level = Children(ctx.anchor[:, None], jnp.ones((len(ctx.p), 1), bool), None)
    levels: list[Children] = [level]
    run: list[int] = []
    scratch: Staged | None = None
    for depth, nodes in enumerate(tree.levels):
        here = [i for i, node in enumerate(nodes) if leaves or tree.children[node]]
        if not here:
            break
        new = [nodes[i] for i in here]
        mask = jnp.asarray(tree.ancestors[new][:, run + new])[None]
        x = model.embed(params, level.tokens[:, np.array(here)])
        positions = jnp.broadcast_to(ctx.p[:, None] + depth, x.shape[:2])
        out = model.forward(params, x, positions, cache, mask, scratch=scratch)
        scratch, run = join(scratch, out.staged), run + new
        inner = [i for i, node in enumerate(new) if tree.children[node]]
        if inner:
            logits = model.unembed(params, out.hidden[:, np.array(inner)])
            level = draw_children(logits, tuple(len(tree.children[new[i]]) for i in inner), law, ctx, depth + 1)
            levels.append(level)
    return draft_of(tree, levels, law), take_rows(scratch, np.argsort(run))


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


def check_tree(tree: Tree, law: Law, vocab: int | None = None) -> None:
    """Raises ValueError for a tree without drafts, or with more distinct siblings than there are tokens."""
    if tree.depth == 0:
        raise ValueError("the tree holds the anchor alone; give it a node to draft, or decode with NoDraft")
    width = max(map(len, tree.children))
    if vocab is not None and law is not Law.IID and width > vocab:
        raise ValueError(f"a node of the tree has {width} children, but the vocabulary {vocab} tokens; narrow the tree")


@dataclass(frozen=True)
class TreeDraftModel:
    """Drafts `tree` with an independent `model`; children drawn by `law` from its warped logits (greedy: the likeliest).

    Its keys and values depend on tokens alone, so the accepted rows of its scratch are committed, as DraftModel does.
    """

    model: Decoder
    tree: Tree
    law: Law = Law.WITHOUT_REPLACEMENT
    taps: ClassVar[tuple[Tap, ...]] = ()

    def __post_init__(self):
        check_tree(self.tree, self.law, self.model.vocab)

    @property
    def depth(self) -> int:
        return self.tree.depth

    @property
    def nodes(self) -> int:
        return self.tree.nodes

    def specs(self, target: Decoder) -> Any:
        return DraftModel(self.model).specs(target)

    def empty(self, target: Decoder, batch: int, capacity: int) -> Cache:
        return self.model.empty_cache(batch, capacity)

    def observe(self, ctx: Context, params: Any, state: Cache, seen: Committed, scratch: Staged | None = None) -> Cache:
        return DraftModel(self.model).observe(ctx, params, state, seen, scratch)

    def propose(self, ctx: Context, params: Any, state: Cache) -> tuple[Draft, Staged | None]:
        """Runs the leaves too: should one be accepted, its row is needed."""
        return draft_tree(self.model, params, state, ctx, self.tree, self.law, leaves=True)

    @classmethod
    def tiny(cls, target: Decoder) -> "TreeDraftModel":
        """Sparse, with its nodes out of level order."""
        return cls(replace(target, layers=1, windows=target.windows[:1]), Tree((-1, 0, 1, 0, 1)))


@dataclass(frozen=True)
class TreeSelfDraft:
    """Drafts `tree` with the target's first `layers` layers, its final norm and its head: no parameters, no state."""

    layers: int
    tree: Tree = field(default_factory=lambda: Tree.branching(4, 2, 1))
    law: Law = Law.WITHOUT_REPLACEMENT
    taps: ClassVar[tuple[Tap, ...]] = ()

    def __post_init__(self):
        check_tree(self.tree, self.law)

    @property
    def depth(self) -> int:
        return self.tree.depth

    @property
    def nodes(self) -> int:
        return self.tree.nodes

    def specs(self, target: Decoder) -> dict[str, Any]:
        check_tree(self.tree, self.law, target.vocab)
        return SelfDraft(self.layers).specs(target)

    def empty(self, target: Decoder, batch: int, capacity: int) -> None:
        return None

    def observe(self, ctx: Context, params: Any, state: None, seen: Committed, scratch: Any = None) -> None:
        return None

    def propose(self, ctx: Context, params: Any, state: None) -> tuple[Draft, None]:
        """Leaves are not run: the target's own pass makes every row that is committed."""
        model = ctx.target.truncate(self.layers)
        cache = ctx.cache.replace(layers=ctx.cache.layers[: self.layers])
        params = truncate_params(ctx.target_params, self.layers)
        return draft_tree(model, params, cache, ctx, self.tree, self.law, leaves=False)[0], None

    @classmethod
    def tiny(cls, target: Decoder) -> "TreeSelfDraft":
        return cls(layers=1, tree=Tree.branching(2, 2), law=Law.IID)
