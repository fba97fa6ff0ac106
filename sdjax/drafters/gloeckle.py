"""Multi-token prediction with heads on a shared trunk (Gloeckle et al. 2024, arXiv:2404.19737)."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from sdjax.core.cache import Cache, Staged, commit
from sdjax.core.linear import linear
from sdjax.core.spec import Spec, normal
from sdjax.core.types import Committed, Context, Draft, Law, Trace
from sdjax.drafters.head import DraftHead, in_target
from sdjax.drafters.judge import chain_figures, judge_heads
from sdjax.drafters.recursion import check_tree, draft_of
from sdjax.drafters.residual_heads import take_last
from sdjax.targets.decoder import Decoder, Tap, causal_mask, rms_norm
from sdjax.targets.packed import packed_mask
from sdjax.trees.draw import Children, draw_children
from sdjax.trees.tree import Tree


@struct.dataclass
class Heads:
    """Layer k of `cache` is head k's; last[b, k] is its output at row p-1, which predicts token p + k + 1."""

    cache: Cache | None
    last: Float[Array, "B D E"]


@dataclass(frozen=True)
class Gloeckle:
    """`heads` heads beside the target's own last layer; head k (from 0) predicts token t + k + 2 at row t.

    "parallel": each is a layer on the trunk, which is the target without its last layer; "linear": a matrix on it;
    "causal": a layer on the one before it, the first on the target's last. The final norm is the target's, and so is the
    unembedding, unless all share a `head` of their own. `layers` is the number of the target's layers. No head sees what
    was drafted: siblings are a head's likeliest tokens, unless `law` draws them, for every parent anew.
    """

    layers: int
    heads: int = 3
    variant: Literal["parallel", "causal", "linear"] = "parallel"
    tree: Tree = Tree.chain(3)
    law: Law = Law.ONE_HOT
    head: DraftHead = DraftHead()
    objective: Literal["text", "teacher"] = "text"

    def __post_init__(self):
        if self.layers < 2:
            raise ValueError(f"the target has {self.layers} layers; a trunk below its last layer needs at least 2")
        if self.variant not in ("parallel", "causal", "linear"):
            raise ValueError(f"variant is {self.variant!r}; it must be 'parallel', 'causal' or 'linear'")
        check_tree(self.tree, self.law)
        if self.tree.depth > self.heads:
            raise ValueError(f"the tree is {self.tree.depth} deep, but there are {self.heads} heads; cut it or add heads")

    @property
    def taps(self) -> tuple[Tap, ...]:
        return (self.layers - 1 if self.variant == "causal" else self.layers - 2,)

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
        """{heads: [layer]}, or {heads: [{matrix}]} where they are linear; and {head}, where it is not the target's."""
        if target.layers != self.layers:
            raise ValueError(f"made for a target of {self.layers} layers, this one has {target.layers}; set layers to that")
        check_tree(self.tree, self.law, self.head.size or target.vocab)
        square = Spec((target.width, target.width), target.matrix_dtype, ("embed", None), normal())
        head = {"matrix": square} if self.variant == "linear" else one_layer(target).specs()["layers"][0]
        own = self.head.specs(target)
        return {"heads": [head] * self.heads} | ({"head": own} if own else {})

    def initial(self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]) -> Any:
        """Every head starts as the target's last layer, or as the identity."""
        eye = {"matrix": jnp.eye(target.width, dtype=target.matrix_dtype)}
        first = eye if self.variant == "linear" else target_params["layers"][-1]
        own = self.head.initial(target, target_params, counts)
        return {"heads": [jax.tree.map(jnp.copy, first) for _ in range(self.heads)]} | ({"head": own} if own else {})

    def empty(self, target: Decoder, batch: int, capacity: int) -> Heads:
        last = jnp.zeros((batch, self.heads, target.width), jnp.dtype(target.dtype))
        if self.variant == "linear":
            return Heads(None, last)
        return Heads(replace(one_layer(target), layers=self.heads, windows=()).empty_cache(batch, capacity), last)

    def observe(self, ctx: Context, params: Any, state: Heads, seen: Committed, scratch: Any = None) -> Heads:
        """Every head runs on the trunk's states of the committed tokens."""
        width = seen.tokens.shape[1]
        hidden, staged = self.run(ctx, params, seen.features[:, :, 0], seen.positions, state.cache, causal_mask(width))
        last = [take_last(x, seen.count, state.last[:, k]) for k, x in enumerate(hidden)]
        return Heads(append_layers(state.cache, staged, seen.count), jnp.stack(last, 1))

    def propose(self, ctx: Context, params: Any, state: Heads) -> tuple[Draft, None]:
        """Head k fills depth k + 1, whatever the path."""
        own = params.get("head", {})
        logits = self.head.logits(ctx, own, state.last[:, : self.tree.depth])
        levels = [Children(ctx.anchor[:, None], jnp.ones((len(ctx.p), 1), bool), None)]
        for depth, nodes in enumerate(self.tree.levels[:-1]):
            widths = tuple(len(self.tree.children[node]) for node in nodes if self.tree.children[node])
            drawn = same_for_all(logits[:, depth : depth + 1], widths, self.law, ctx, depth + 1)
            levels.append(in_target(drawn, own.get("ids"), ctx.target.vocab))
        return draft_of(self.tree, levels, self.law), None

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Σ_k CE(head k at t, token t + k + 2), unweighted (§2); the target's own next-token loss is not in it."""
        batch = trace.batch
        nothing = replace(one_layer(ctx.target), layers=self.heads, windows=()).empty_cache(len(batch.tokens), 1)
        hidden, _ = self.run(ctx, params, trace.features[:, :, 0], batch.positions, nothing, packed_mask(batch))
        losses, ranks, seen = judge_heads(ctx, self.head, [params.get("head", {})], hidden, trace, **{self.objective: 1.0})
        return losses.sum(), chain_figures(ranks, seen)

    def run(
        self,
        ctx: Context,
        params: Any,
        trunk: Float[Array, "B T E"],
        positions: Int[Array, "B T"],
        cache: Cache | None,
        mask: Bool[Array, "b T T"],
    ) -> tuple[list[Float[Array, "B T E"]], list[Staged]]:
        """Every head's output under the target's final norm, and its new keys and values."""
        norm, layer = ctx.target_params["norm"], one_layer(ctx.target)
        if self.variant == "linear" or cache is None:
            return [rms_norm(linear(trunk, head["matrix"]), norm, layer.norm_eps) for head in params["heads"]], []
        hidden, staged = [], []
        for k, head in enumerate(params["heads"]):
            before = cache.replace(layers=[cache.layers[k]])
            out = layer.forward({"layers": [head], "norm": norm}, trunk, positions, before, mask, taps=(0,))
            hidden.append(out.hidden)
            staged.append(out.staged)
            trunk = out.features[:, :, 0] if self.variant == "causal" else trunk
        return hidden, staged

    @classmethod
    def tiny(cls, target: Decoder) -> "Gloeckle":
        return cls(layers=target.layers, heads=3, variant="causal", tree=Tree((-1, 0, 1, 0, 1, 2)))


def one_layer(target: Decoder) -> Decoder:
    """The shape of a head: the target's last layer."""
    return replace(target, layers=1, windows=target.windows[-1:])


def append_layers(cache: Cache | None, staged: list[Staged], count: Int[Array, " B"]) -> Cache | None:
    """Commits the first count[b] rows of every head."""
    if cache is None:
        return None
    path = jnp.broadcast_to(jnp.arange(staged[0].positions.shape[1]), staged[0].positions.shape)
    one = lambda kept, new: commit(cache.replace(layers=[kept]), new, path, count).layers[0]
    return cache.replace(layers=list(map(one, cache.layers, staged)), length=cache.length + count)


def same_for_all(logits: Float[Array, "B 1 V"], widths: tuple[int, ...], law: Law, ctx: Context, depth: int) -> Children:
    """Children of nodes that share their logits: one ranking for all of them, or for each its own draws."""
    if ctx.warp.greedy or law is Law.ONE_HOT:
        best = draw_children(logits, (max(widths),), law, ctx, depth)
        ranks = np.concatenate([np.arange(width) for width in widths])
        return best.replace(tokens=best.tokens[:, ranks], valid=best.valid[:, ranks])
    shared = jnp.broadcast_to(logits, (logits.shape[0], len(widths), logits.shape[2]))
    return draw_children(shared, widths, law, ctx, depth)
