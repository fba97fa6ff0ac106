"""Medusa: extra heads on the target's last state, each guessing one token further (Cai et al. 2024, arXiv:2401.10774).

With a frozen target this is Medusa-1; trained jointly with the target, Medusa-2.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from sdjax.core.sampling import top_k
from sdjax.core.spec import initialise
from sdjax.core.types import Committed, Context, Draft, Law, Trace
from sdjax.drafters.head import DraftHead
from sdjax.drafters.judge import chain_figures, judge_heads
from sdjax.drafters.recursion import check_tree
from sdjax.drafters.residual_heads import (
    block_specs,
    check_heads,
    initial_matrices,
    matrix_specs,
    residual_block,
    take_last,
)
from sdjax.targets.decoder import Decoder, Tap
from sdjax.trees.tree import Tree


@dataclass(frozen=True)
class Medusa:
    """Drafts a tree with a head for each of its depths: residual blocks, each with its own weights, and a vocabulary matrix."""

    tree: Tree
    """What is drafted; each node says its parent, the anchor is the first."""
    heads: int | None = None
    """Heads that are trained, of which drafting uses the first; None: as many as the tree is deep."""
    layers: int = 1
    """Residual blocks of a head."""
    head: DraftHead = DraftHead()
    """The vocabulary that heads draft in."""
    own_heads: bool = False
    """Whether each head has a vocabulary matrix of its own, as in the paper, or all have one."""
    objective: Literal["text", "teacher"] = "text"
    """What is learnt: the texts, or the target's law behind them."""
    decay: float = 0.8
    """Head k's loss weighs decay^k."""
    taps: ClassVar[tuple[Tap, ...]] = ("final",)

    def __post_init__(self):
        check_tree(self.tree, Law.ONE_HOT)
        check_heads(self.tree, self.heads, self.layers, self.head, self.own_heads)

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
        """{heads: K lists of {w, b}, head: the vocabulary matrices}."""
        check_tree(self.tree, Law.ONE_HOT, self.head.size or target.vocab)
        heads = self.heads or self.tree.depth
        return {
            "heads": [block_specs(target, self.layers) for _ in range(heads)],
            "head": matrix_specs(self.head, target, heads, self.own_heads),
        }

    def initial(self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]) -> Any:
        """Every head starts as the target's own: W is zero and the vocabulary matrix copied (§2.1.1)."""
        params = initialise(self.specs(target), key)
        return params | {"head": initial_matrices(self.head, target, target_params, counts, params["head"])}

    def empty(self, target: Decoder, batch: int, capacity: int) -> Float[Array, "B E"]:
        return jnp.zeros((batch, target.width), target.dtype)

    def observe(
        self, ctx: Context, params: Any, state: Float[Array, "B E"], seen: Committed, scratch: Any = None
    ) -> Float[Array, "B E"]:
        """Keeps the state of the last committed position."""
        return take_last(seen.features[:, :, 0], seen.count, state)

    def states(self, params: Any, hidden: Float[Array, "... E"]) -> list[Float[Array, "... E"]]:
        """What each head makes of the target's state, before its vocabulary matrix."""
        return [reduce(lambda x, block: residual_block(block, x), blocks, hidden) for blocks in params["heads"]]

    def propose(self, ctx: Context, params: Any, state: Float[Array, "B E"]) -> tuple[Draft, None]:
        """The first choices of head k fill depth k of the tree, whatever the path (§2.1.2)."""
        hidden = jnp.stack(self.states(params, state)[: self.depth], 1)
        matrices = params["head"][: self.depth]
        parts = zip(matrices, jnp.split(hidden, len(matrices), 1), strict=True)  # a shared matrix is read once
        logits = jnp.concatenate([self.head.logits(ctx, matrix, part) for matrix, part in parts], 1)
        best = top_k(logits, max(map(len, self.tree.children)))[1]
        if "ids" in matrices[0]:
            best = matrices[0]["ids"][best]
        drafted = best[:, np.array(self.tree.depths[1:]) - 1, np.array(self.tree.ranks[1:])]
        return self.tree.draft(jnp.concatenate([ctx.anchor[:, None], drafted], 1), Law.ONE_HOT), None

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Σ_k 0.8^k · CE(head k at t, token t + k + 1) over the tokens that are learnt from (§2.2.1)."""
        states = self.states(params, trace.hidden)
        losses, ranks, weights = judge_heads(ctx, self.head, params["head"], states, trace, **{self.objective: 1.0})
        return (self.decay ** jnp.arange(1, len(losses) + 1) * losses).sum(), chain_figures(ranks, weights)

    def ranks(self, ctx: Context, params: Any, trace: Trace) -> tuple[Int[Array, "K B T"], Float[Array, "K B T"]]:
        """Which choice of every head the true token was (0: the first), and the weights: what a tree is calibrated from."""
        return judge_heads(ctx, self.head, params["head"], self.states(params, trace.hidden), trace)[1:]

    @classmethod
    def tiny(cls, target: Decoder) -> "Medusa":
        """Sparse, with its nodes out of level order, one head more than is used, and matrices of few tokens."""
        return cls(Tree((-1, 0, 1, 0, 1)), heads=3, layers=2, head=DraftHead(target.vocab // 2, trained=True), own_heads=True)
