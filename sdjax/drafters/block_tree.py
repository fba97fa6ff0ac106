"""Trees from a block's slots: DDTree (arXiv:2604.12989) and JetSpec (arXiv:2606.18394).

A slot's law does not know which tokens the slots before it became, so the children of all nodes of one depth are the
same tokens, and a path's score is the sum of its slots' log-probabilities. No weights but the block's are needed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int, Key

from sdjax.core.cache import Cache
from sdjax.core.types import Committed, Context, Draft, Trace
from sdjax.drafters.block import Block
from sdjax.targets.decoder import Decoder, Tap
from sdjax.trees.grow import slot_tree, top_children


@dataclass(frozen=True)
class BlockTree:
    """Drafts the likeliest tree of `nodes`, the anchor included, under the laws of the slots of `block`.

    Of each slot the `width` likeliest tokens are considered (None: as many as any such tree can hold). The tree is
    exactly the best; JetSpec's released code spends the same budget a little worse, on all children of the best leaf at
    once. Nothing is sampled, whatever the block says of itself: the law of a draft is one-hot.
    """

    block: Block
    nodes: int = 64
    width: int | None = None

    def __post_init__(self):
        check_independent(self.block)
        length = self.block.length
        if self.width is not None and self.width < 1:
            raise ValueError(f"width is {self.width}; a slot must bring at least one token")
        if self.nodes <= length:
            raise ValueError(
                f"a tree of {self.nodes} nodes cannot use {length} slots; give {length + 1} nodes, or a shorter block"
            )
        if self.width is not None and sum(self.width**depth for depth in range(length + 1)) < self.nodes:
            raise ValueError(
                f"{length} slots of {self.width} tokens have fewer than {self.nodes} nodes; lower the nodes or raise the width"
            )

    @classmethod
    def dd_tree(
        cls, taps: tuple[Tap, ...], mask_token: int | None, length: int = 15, nodes: int = 64, **changes: Any
    ) -> "BlockTree":
        """DDTree: DFlash, trained as ever; published with 16 to 1024 nodes besides the anchor."""
        return cls(Block.dflash(taps, mask_token, length, **changes), nodes)

    @classmethod
    def jetspec(
        cls, taps: tuple[Tap, ...], mask_token: int | None, length: int = 15, nodes: int = 128, width: int = 7, **changes: Any
    ) -> "BlockTree":
        """JetSpec: `Block.jetspec`, drafted as a tree."""
        return cls(Block.jetspec(taps, mask_token, length, **changes), nodes, width)

    @property
    def taps(self) -> tuple[Tap, ...]:
        return self.block.taps

    @property
    def depth(self) -> int:
        return self.block.length

    @property
    def is_chain(self) -> bool:
        return self.width == 1

    def specs(self, target: Decoder) -> dict[str, Any]:
        """The block's."""
        vocab = self.block.head.size or target.vocab
        if self.width is not None and self.width > vocab:
            raise ValueError(f"width is {self.width}, but the drafter's vocabulary has {vocab} tokens; lower it")
        return self.block.specs(target)

    def initial(
        self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]
    ) -> dict[str, Any]:
        return self.block.initial(target, target_params, counts, key)

    def empty(self, target: Decoder, batch: int, capacity: int) -> Cache:
        return self.block.empty(target, batch, capacity)

    def observe(self, ctx: Context, params: Any, state: Cache, seen: Committed, scratch: Any = None) -> Cache:
        return self.block.observe(ctx, params, state, seen, scratch)

    def propose(self, ctx: Context, params: Any, state: Cache) -> tuple[Draft, None]:
        """One pass of the block, then DDTree's search over its slots."""
        hidden = self.block.slots(ctx, params, state)
        width = self.width or min(self.nodes - 1, self.block.head.size or ctx.target.vocab)
        return slot_tree(*slot_choices(self.block, ctx, params, hidden, width), self.nodes).draft(ctx.anchor), None

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The block's: τ and accuracies are those of its chain."""
        return self.block.loss(ctx, params, trace, key)

    @classmethod
    def tiny(cls, target: Decoder) -> "BlockTree":
        """JetSpec's, narrow."""
        return cls.jetspec((0, target.layers - 1), None, 3, nodes=9, width=3, layers=1, anchors=8)


def slot_choices(
    block: Block, ctx: Context, params: Any, hidden: Float[Array, "... E"], width: int
) -> tuple[Int[Array, "... W"], Float[Array, "... W"]]:
    """The `width` likeliest tokens of slots that end as `hidden`, best first, and their log-probabilities."""
    head = params["head"]
    tokens, logp = top_children(block.head.logits(ctx, head, hidden), width)
    return (head["ids"][tokens] if "ids" in head else tokens), logp


def check_independent(block: Block) -> None:
    """Raises ValueError for a block whose slots are corrected one by one: each path would have laws of its own."""
    if block.markov != "none":
        raise ValueError(
            f"markov is {block.markov!r}, which makes a slot's law depend on the path; trees of slots need markov 'none'"
        )
