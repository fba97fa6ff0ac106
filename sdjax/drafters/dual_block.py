"""D²SD: a second block drafter redrafts behind the places where the first one probably fails (arXiv:2606.04446).

The first draft's own probabilities say where it will be rejected. Behind each of the likeliest places the second block,
which was trained behind prefixes of any length, drafts the rest anew; the target verifies all branches as one tree.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from sdjax.core.cache import Cache
from sdjax.core.types import Committed, Context, Draft, Trace
from sdjax.drafters.block import Block
from sdjax.drafters.block_tree import check_independent, slot_choices
from sdjax.targets.decoder import Decoder, Tap
from sdjax.trees.merge import merge_chains


@dataclass(frozen=True)
class DualBlock:
    """Drafts the chain of `first` and `branches` others, each of which leaves it where it is likely to be rejected.

    `second` has a visible prefix. A branch repeats the first draft up to its boundary; where it drafts the same again,
    its nodes are absent. All tokens are argmaxes at any temperature.
    """

    first: Block
    second: Block
    branches: int = 4
    is_chain: ClassVar[bool] = False

    def __post_init__(self):
        for block in (self.first, self.second):
            check_independent(block)
        if self.second.visible_prefix is None:
            raise ValueError("the second block has no visible_prefix, so it never learnt to draft behind one; give it 0.9")
        for name in ("taps", "length"):
            one, other = getattr(self.first, name), getattr(self.second, name)
            if one != other:
                raise ValueError(f"the first block's {name} is {one}, the second's {other}; both must have the same")
        if not 1 <= self.branches <= self.depth:
            raise ValueError(f"branches is {self.branches}; {self.depth} tokens can be left in 1..{self.depth} places")

    @classmethod
    def d2sd(
        cls, taps: tuple[Tap, ...], mask_token: int | None, length: int = 15, branches: int = 4, **changes: Any
    ) -> "DualBlock":
        """As published: DFlash, and another with prefixes drawn ∝ 0.9^l."""
        first = Block.dflash(taps, mask_token, length, **{**changes, "visible_prefix": None})
        return cls(first, Block.dflash(taps, mask_token, length, **{"visible_prefix": 0.9, **changes}), branches)

    @property
    def taps(self) -> tuple[Tap, ...]:
        return self.first.taps

    @property
    def depth(self) -> int:
        return self.first.length

    @property
    def starts(self) -> tuple[int, ...]:
        """The depth of each chain's first node: boundaries ascend, so that the k-th lies behind at least k - 1 drafts."""
        return (1, *range(1, self.branches + 1))

    @property
    def nodes(self) -> int:
        return 1 + sum(self.depth + 1 - start for start in self.starts)

    @property
    def blocks(self) -> dict[str, Block]:
        return {"first": self.first, "second": self.second}

    def specs(self, target: Decoder) -> dict[str, Any]:
        """{first, second}: what each block has."""
        return {name: block.specs(target) for name, block in self.blocks.items()}

    def initial(
        self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]
    ) -> dict[str, Any]:
        keys = jax.random.split(key)
        return {
            name: block.initial(target, target_params, counts, key)
            for (name, block), key in zip(self.blocks.items(), keys, strict=True)
        }

    def empty(self, target: Decoder, batch: int, capacity: int) -> dict[str, Cache]:
        return {name: block.empty(target, batch, capacity) for name, block in self.blocks.items()}

    def observe(
        self, ctx: Context, params: Any, state: dict[str, Cache], seen: Committed, scratch: Any = None
    ) -> dict[str, Cache]:
        """Each block makes its own keys and values of what was committed."""
        return {name: block.observe(ctx, params[name], state[name], seen) for name, block in self.blocks.items()}

    def propose(self, ctx: Context, params: Any, state: dict[str, Cache]) -> tuple[Draft, None]:
        """The first block's chain, then all branches in one pass of the second."""
        first, second = params["first"], params["second"]
        tokens, logp = best_choices(self.first, ctx, first, self.first.slots(ctx, first, state["first"]))
        boundary = rejection_points(jnp.exp(logp), self.branches)
        path = jnp.concatenate([ctx.anchor[:, None], tokens[:, :-1]], 1)
        prefix = jnp.broadcast_to(path[:, None], (*boundary.shape, self.depth))
        hidden = self.second.branches(ctx, second, state["second"], prefix, boundary)
        again, logp_again = best_choices(self.second, ctx, second, hidden)
        redrafted = jnp.arange(self.depth) >= boundary[..., None]
        whole = lambda one, other: jnp.concatenate([one[:, None], jnp.where(redrafted, other, one[:, None])], 1)
        survival = jnp.exp(jnp.cumsum(whole(logp, logp_again), -1))
        return merge_chains(ctx.anchor, whole(tokens, again), survival, self.starts), None

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The sum of both blocks' losses, which share no weight; the second one's figures are named so."""
        keys = jax.random.split(key)
        loss, metrics = self.first.loss(ctx, params["first"], trace, keys[0])
        second, other = self.second.loss(ctx, params["second"], trace, keys[1])
        return loss + second, metrics | {f"second_{name}": figure for name, figure in other.items()}

    @classmethod
    def tiny(cls, target: Decoder) -> "DualBlock":
        return cls.d2sd((0, target.layers - 1), None, 3, branches=2, layers=1, anchors=8)


def best_choices(
    block: Block, ctx: Context, params: Any, hidden: Float[Array, "... E"]
) -> tuple[Int[Array, "..."], Float[Array, "..."]]:
    """The likeliest token of each slot and its log-probability, which rounding does not make positive."""
    tokens, logp = slot_choices(block, ctx, params, hidden, 1)
    return tokens[..., 0], jnp.minimum(logp[..., 0], 0)


def rejection_points(confidence: Float[Array, "B N"], count: int) -> Int[Array, "B K"]:
    """The `count` likeliest numbers of drafts before the first rejected one, ascending.

    If draft k is accepted with probability c_k, the first i and no more are with r(i) = Π_{k≤i} c_k · (1 - c_{i+1}).
    """
    reached = jnp.cumprod(jnp.pad(confidence[:, :-1], ((0, 0), (1, 0)), constant_values=1), 1)
    return jnp.sort(lax.top_k(reached * (1 - confidence), count)[1], 1)
