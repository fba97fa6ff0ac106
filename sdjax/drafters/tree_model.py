"""A language model drafts a static tree, such as Sequoia's (Chen et al. 2024, arXiv:2402.12374; SpecInfer before it).

`TreeDraftModel` is an independent model; `TreeSelfDraft` the target's own first layers.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sdjax.core.cache import Cache, Staged
from sdjax.core.types import Committed, Context, Draft, Law
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.head import DraftHead
from sdjax.drafters.recursion import Cell, check_tree, draft_tree
from sdjax.drafters.self_draft import SelfDraft
from sdjax.targets.decoder import Decoder, Tap, truncate_params
from sdjax.trees.tree import Tree


def model_cell(model: Decoder, params: Any, cache: Cache) -> Cell:
    """A language model as a cell: a token's row depends on the tokens before it, on no hidden state."""

    def run(tokens: Any, hidden: Any, positions: Any, mask: Any, scratch: Staged | None) -> tuple[Any, Staged]:
        out = model.forward(params, model.embed(params, tokens), positions, cache, mask, scratch=scratch)
        return out.hidden, out.staged

    return Cell(run, lambda hidden: model.unembed(params, hidden))


@dataclass(frozen=True)
class TreeDraftModel:
    """Drafts `tree` with an independent `model`; children drawn by `law` from its warped logits (greedy: the likeliest).

    Its keys and values depend on tokens alone, so the accepted rows of its scratch are committed, as DraftModel does.
    """

    model: Decoder
    tree: Tree
    law: Law = Law.WITHOUT_REPLACEMENT
    head: DraftHead = DraftHead()
    taps: ClassVar[tuple[Tap, ...]] = ()

    def __post_init__(self):
        check_tree(self.tree, self.law, self.head.size or self.model.vocab)

    @property
    def depth(self) -> int:
        return self.tree.depth

    @property
    def nodes(self) -> int:
        return self.tree.nodes

    @property
    def is_chain(self) -> bool:
        return self.tree.is_chain

    @property
    def chain(self) -> DraftModel:
        """The same model, drafting a chain: what it is trained as."""
        return DraftModel(self.model, head=self.head)

    def specs(self, target: Decoder) -> Any:
        return self.chain.specs(target)

    def empty(self, target: Decoder, batch: int, capacity: int) -> Cache:
        return self.model.empty_cache(batch, capacity)

    def observe(self, ctx: Context, params: Any, state: Cache, seen: Committed, scratch: Staged | None = None) -> Cache:
        return self.chain.observe(ctx, params, state, seen, scratch)

    def propose(self, ctx: Context, params: Any, state: Cache) -> tuple[Draft, Staged | None]:
        """Runs the leaves too: should one be accepted, its row is needed."""
        logits = lambda hidden: self.chain.logits(ctx, params, hidden)
        cell = replace(model_cell(self.model, params, state), logits=logits, ids=self.chain.ids(params))
        return draft_tree(cell, ctx, self.tree, self.law, leaves=True)

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

    @property
    def is_chain(self) -> bool:
        return self.tree.is_chain

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
        return draft_tree(model_cell(model, params, cache), ctx, self.tree, self.law)[0], None

    @classmethod
    def tiny(cls, target: Decoder) -> "TreeSelfDraft":
        return cls(layers=1, tree=Tree.branching(2, 2), law=Law.IID)
