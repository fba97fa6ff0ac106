"""Hydra: Medusa's heads, each also told the tokens that were drafted before (Ankner et al. 2024, arXiv:2402.05109).

Head k reads u = [h_t ; E(x_{t+1}) ; … ; E(x_{t+k})], E the target's embedding, and guesses x_{t+k+1}. `HydraPlus` puts
a transformer layer's state in the place of h_t.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, Key

from sdjax.core.cache import Cache, commit
from sdjax.core.linear import linear
from sdjax.core.spec import Spec, initialise, normal, zeros
from sdjax.core.types import Committed, Context, Draft, Law, Trace
from sdjax.drafters.head import DraftHead, in_target
from sdjax.drafters.judge import chain_figures, judge_heads
from sdjax.drafters.recursion import check_tree, draft_of
from sdjax.drafters.residual_heads import (
    block_specs,
    check_heads,
    initial_matrices,
    matrix_of,
    matrix_specs,
    residual_block,
    take_last,
)
from sdjax.targets.decoder import Decoder, Tap, causal_mask
from sdjax.targets.packed import packed_mask
from sdjax.trees.draw import Children, draw_children
from sdjax.trees.tree import Tree

Drop = Callable[[Array, int], Array]  # (what a block is fed, its place in the head) -> the same, thinned out


@dataclass(frozen=True)
class Hydra:
    """Drafts `tree`, node by node of every depth, with one of `heads` (None: the tree's depth) for each depth.

    A head is a first block on the whole path and `layers` - 1 residual blocks, each with weights of its own (the
    released code ties those of one head), and a vocabulary matrix, for all or each its own (`own_heads`; the released
    ones have a bias: `DraftHead.bias`). Children are drawn by `law`. The loss weighs the `text` and the `teacher`, the
    target's law.
    """

    tree: Tree
    heads: int | None = None
    layers: int = 1
    head: DraftHead = DraftHead()
    own_heads: bool = False
    law: Law = Law.WITHOUT_REPLACEMENT
    text: float = 1.0
    teacher: float = 0.0
    dropout: float = 0.0
    taps: ClassVar[tuple[Tap, ...]] = ("final",)

    def __post_init__(self):
        check_tree(self.tree, self.law)
        check_heads(self.tree, self.heads, self.layers, self.head, self.own_heads)
        if min(self.text, self.teacher) < 0 or self.text + self.teacher <= 0:
            raise ValueError(f"text ({self.text}) and teacher ({self.teacher}) are weights: none negative, one positive")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must lie in [0, 1) (0 switches it off)")

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
        """{heads: K of {first: {r, r_bias, a, a_bias}, blocks: [{w, b}]}, head: the vocabulary matrices}."""
        check_tree(self.tree, self.law, self.head.size or target.vocab)
        heads = self.heads or self.tree.depth
        return {
            "heads": [
                {"first": first_specs(target, k + 1), "blocks": block_specs(target, self.layers - 1)}
                for k in range(1, heads + 1)
            ],
            "head": matrix_specs(self.head, target, heads, self.own_heads),
        }

    def initial(self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]) -> Any:
        """The vocabulary matrices are the target's; the first blocks are random, the others do nothing."""
        params = initialise(self.specs(target), key)
        return params | {"head": initial_matrices(self.head, target, target_params, counts, params["head"])}

    def empty(self, target: Decoder, batch: int, capacity: int) -> Float[Array, "B E"]:
        return jnp.zeros((batch, target.width), target.dtype)

    def observe(
        self, ctx: Context, params: Any, state: Float[Array, "B E"], seen: Committed, scratch: Any = None
    ) -> Float[Array, "B E"]:
        """Keeps the state of the last committed position."""
        return take_last(seen.features[:, :, 0], seen.count, state)

    def propose(self, ctx: Context, params: Any, state: Float[Array, "B E"]) -> tuple[Draft, None]:
        """Head k runs on the nodes of depth k - 1 that have children, each with the tokens of its own path."""
        tree, parts = self.tree, [state[:, None]]
        levels = [Children(ctx.anchor[:, None], jnp.ones((len(ctx.p), 1), bool), None)]
        inner = [[node for node in level if tree.children[node]] for level in tree.levels[:-1]]
        for depth, nodes in enumerate(inner):
            head, matrix = params["heads"][depth], matrix_of(params["head"], depth)
            tokens = levels[depth].tokens[:, np.array([tree.levels[depth].index(node) for node in nodes])]
            parts.append(ctx.target.embed(ctx.target_params, tokens))
            above = [tree.ancestors[np.ix_(nodes, inner[d])].argmax(1) for d in range(depth + 1)]
            hidden = run_head(head, parts, [slice(None), *above])
            widths = tuple(len(tree.children[node]) for node in nodes)
            drawn = draw_children(self.head.logits(ctx, matrix, hidden), widths, self.law, ctx, depth + 1)
            levels.append(in_target(drawn, matrix.get("ids"), ctx.target.vocab))
        return draft_of(tree, levels, self.law), None

    def states(
        self, ctx: Context, params: Any, context: Float[Array, "B T E"], trace: Trace, key: Key[Array, ""] | None = None
    ) -> list[Float[Array, "B T E"]]:
        """What each head makes of the states `context` and the text behind them; a key switches dropout on."""
        ahead = [trace.ahead(by)[0] for by in range(1, len(params["heads"]) + 1)]
        parts = [context, *(ctx.target.embed(ctx.target_params, tokens) for tokens in ahead)]
        drops = [
            keep if key is None else dropout(self.dropout, jax.random.fold_in(key, k)) for k in range(len(params["heads"]))
        ]
        return [
            run_head(head, parts[: k + 2], [slice(None)] * (k + 2), drop)
            for k, (head, drop) in enumerate(zip(params["heads"], drops, strict=True))
        ]

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Σ_k CE(head k at t, token t + k + 1 or the target's law of it), all heads alike, along the text itself."""
        return self.loss_on(trace.hidden, ctx, params, trace, key)

    def loss_on(
        self, context: Float[Array, "B T E"], ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The loss with `context` in the place of h."""
        states = self.states(ctx, params, context, trace, key)
        losses, ranks, weights = judge_heads(
            ctx, self.head, params["head"], states, trace, text=self.text, teacher=self.teacher
        )
        return losses.sum(), chain_figures(ranks, weights)

    def ranks(self, ctx: Context, params: Any, trace: Trace) -> tuple[Int[Array, "K B T"], Float[Array, "K B T"]]:
        """Which choice of every head the true token was (0: the first), and the weights: what a tree is calibrated from."""
        return self.ranks_on(trace.hidden, ctx, params, trace)

    def ranks_on(
        self, context: Float[Array, "B T E"], ctx: Context, params: Any, trace: Trace
    ) -> tuple[Int[Array, "K B T"], Float[Array, "K B T"]]:
        """The ranks with `context` in the place of h."""
        states = self.states(ctx, params, context, trace)
        return judge_heads(ctx, self.head, params["head"], states, trace)[1:]

    @classmethod
    def tiny(cls, target: Decoder) -> "Hydra":
        """Sparse, with its nodes out of level order, one head more than is used, and matrices of few tokens."""
        return cls(Tree((-1, 0, 1, 0, 1)), heads=3, layers=2, head=DraftHead(target.vocab // 2, trained=True), own_heads=True)


@struct.dataclass
class PrefixState:
    """The prefix layer's keys and values, and its output at the last committed position."""

    cache: Cache
    last: Float[Array, "B E"]


@dataclass(frozen=True)
class HydraPlus:
    """Hydra++: `heads` read a layer's summary of h_1 … h_t instead of h_t; the layer runs once a step.

    The layer is shaped like the target's, with a final norm, and attends to all committed positions. As published, the
    heads are Hydra(tree, layers=4, text=0, teacher=1, dropout=0.2).
    """

    heads: Hydra
    taps: ClassVar[tuple[Tap, ...]] = ("final",)

    @property
    def depth(self) -> int:
        return self.heads.depth

    @property
    def nodes(self) -> int:
        return self.heads.nodes

    @property
    def is_chain(self) -> bool:
        return self.heads.is_chain

    def specs(self, target: Decoder) -> dict[str, Any]:
        """Those of the heads, and prefix: {layers: [layer], norm}."""
        layer = prefix_model(target).specs()
        return self.heads.specs(target) | {"prefix": {"layers": layer["layers"], "norm": layer["norm"]}}

    def initial(self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]) -> Any:
        """The prefix layer is drawn anew, the heads start as Hydra's."""
        here, below = jax.random.split(key)
        heads = self.heads.initial(target, target_params, counts, below)
        return heads | {"prefix": initialise(self.specs(target)["prefix"], here)}

    def empty(self, target: Decoder, batch: int, capacity: int) -> PrefixState:
        return PrefixState(prefix_model(target).empty_cache(batch, capacity), self.heads.empty(target, batch, capacity))

    def observe(self, ctx: Context, params: Any, state: PrefixState, seen: Committed, scratch: Any = None) -> PrefixState:
        """Runs the prefix layer on the target's states of all that was committed."""
        width = seen.tokens.shape[1]
        model, states = prefix_model(ctx.target), seen.features[:, :, 0]
        out = model.forward(params["prefix"], states, seen.positions, state.cache, causal_mask(width))
        rows = jnp.broadcast_to(jnp.arange(width), seen.tokens.shape)
        last = take_last(out.hidden, seen.count, state.last)
        return PrefixState(commit(state.cache, out.staged, rows, seen.count), last)

    def propose(self, ctx: Context, params: Any, state: PrefixState) -> tuple[Draft, None]:
        return self.heads.propose(ctx, params, state.last)

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Hydra's, with the prefix layer's states of the packed texts."""
        return self.heads.loss_on(prefix_states(ctx.target, params, trace), ctx, params, trace, key)

    def ranks(self, ctx: Context, params: Any, trace: Trace) -> tuple[Int[Array, "K B T"], Float[Array, "K B T"]]:
        """Which choice of every head the true token was (0: the first), and the weights."""
        return self.heads.ranks_on(prefix_states(ctx.target, params, trace), ctx, params, trace)

    @classmethod
    def tiny(cls, target: Decoder) -> "HydraPlus":
        return cls(Hydra(Tree.branching(2, 2, 1), layers=2, law=Law.IID, text=0.0, teacher=1.0, dropout=0.2))


def first_specs(target: Decoder, parts: int) -> dict[str, Any]:
    """The first block on `parts` vectors: R and A are kept apart by part; A starts at zero, R is random."""
    e, dtype = target.width, target.matrix_dtype
    matrices = lambda init: [Spec((e, e), dtype, (None, "embed"), init) for _ in range(parts)]
    bias = Spec((e,), dtype, (None,), zeros)
    return {"r": matrices(normal((3 * parts * e) ** -0.5)), "r_bias": bias, "a": matrices(zeros), "a_bias": bias}


def first_block(first: dict[str, Any], parts: Sequence[Float[Array, "B n E"]], rows: Sequence[Any]) -> Float[Array, "B I E"]:
    """R u + SiLU(A u), u = the parts side by side, row rows[j] of part j: what rows share is computed once."""

    def mix(matrices: Sequence[Array], bias: Array) -> Array:
        return sum((linear(part, w)[:, row] for part, w, row in zip(parts, matrices, rows, strict=True)), bias)

    return mix(first["r"], first["r_bias"]) + jax.nn.silu(mix(first["a"], first["a_bias"]))


def keep(x: Array, place: int) -> Array:
    """No dropout."""
    return x


def dropout(rate: float, key: Key[Array, ""]) -> Drop:
    """Drops entries at `rate`, each place of the head by its own key, and scales up the others."""

    def drop(x: Array, place: int) -> Array:
        kept = jax.random.bernoulli(jax.random.fold_in(key, place), 1 - rate, x.shape)
        return jnp.where(kept, x / (1 - rate), 0)

    return drop if rate else keep


def run_head(
    head: dict[str, Any], parts: Sequence[Float[Array, "B n E"]], rows: Sequence[Any], drop: Drop = keep
) -> Float[Array, "B I E"]:
    """A head up to its vocabulary matrix; dropout stands before every block and before the matrix."""
    n = len(parts)
    x = first_block(head["first"], [drop(part, place) for place, part in enumerate(parts)], rows)
    for place, block in enumerate(head["blocks"], n):
        x = residual_block(block, drop(x, place))
    return drop(x, n + len(head["blocks"]))


def prefix_model(target: Decoder) -> Decoder:
    """One layer of the target's shape, without sliding window."""
    return replace(target, layers=1, windows=())


def prefix_states(target: Decoder, params: Any, trace: Trace) -> Float[Array, "B T E"]:
    """The prefix layer's output at every position of packed texts."""
    model, batch = prefix_model(target), trace.batch
    nothing = model.empty_cache(batch.tokens.shape[0], 1)
    return model.forward(params["prefix"], trace.hidden, batch.positions, nothing, packed_mask(batch)).hidden
