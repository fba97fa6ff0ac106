"""EAGLE-3 (Li et al. 2025, arXiv:2503.01840): states of three depths of the target, and training that drafts as decoding does.

Where the paper's text projects [embedding, state] down before the layer, its released code, and every engine that runs
its heads, widens the layer's queries, keys and values instead: as here.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from sdjax.core.cache import KV, Cache, Staged
from sdjax.core.linear import linear
from sdjax.core.spec import Spec, initialise, normal, ones
from sdjax.core.types import Committed, Context, Draft, Law, Trace
from sdjax.drafters.base import check_tapped, check_taps
from sdjax.drafters.eagle_layer import State, add_mlp, against_target, empty_state, extend, layer_for, layer_specs, run_layer
from sdjax.drafters.head import DraftHead
from sdjax.drafters.losses import ROWS, flatten, in_chunks, weighted_mean
from sdjax.drafters.recursion import Cell, check_tree, draft_below
from sdjax.drafters.unrolled import attend_unrolled
from sdjax.targets.decoder import Decoder, Tap, rms_norm
from sdjax.targets.packed import packed_mask
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.tree import Tree


def published_taps(layers: int) -> tuple[Tap, ...]:
    """The states behind layers 1, L/2 - 1 and L - 4: inputs of layers 2, L/2 and L - 3 in the released code's count."""
    taps = (1, layers // 2 - 1, layers - 4)
    if min(taps) < 0 or len(set(taps)) < 3:
        raise ValueError(f"a target of {layers} layers gives the taps {taps}, which collide; name distinct ones in `taps`")
    return taps


@dataclass(frozen=True)
class Eagle3:
    """Drafts a tree from the target's states at several depths, joined by one matrix.

    The four norms are flags of the `speculators` format, all off in the paper's heads.
    """

    taps: tuple[Tap, ...]
    """The target's states that are joined, low to high: behind layer i (from 0), "embed" or "final"."""
    tree: Tree | DynamicTree = DynamicTree(depth=8, nodes=60, width=10)
    """What is drafted: a fixed tree, or one that the likeliest drafts shape."""
    law: Law = Law.WITHOUT_REPLACEMENT
    """How siblings are drawn above temperature 0; rules say which laws they take."""
    head: DraftHead = DraftHead(trained=True)
    """The vocabulary that it drafts in."""
    steps: int = 7
    """Steps of drafting that training unrolls."""
    decay: float = 0.8
    """Step i's loss weighs decay^i, i from 0."""
    norm_before_residual: bool = False
    """Whether the layer adds to the normed state."""
    norm_output: bool = False
    """Whether a row's output is fed back after the final norm."""
    fc_norm: bool = False
    """Whether each tapped state is normed before the matrix, after norm_before_fc."""
    norm_before_fc: bool = False
    """Whether all tapped states are normed before the matrix, as one vector."""
    layer: Decoder | None = None
    """The shape of its layer; None: a Llama layer as wide as the target's."""
    start: Literal["drawn", "target"] = "drawn"
    """Where training begins: weights drawn anew, as published, or the target's last layer behind its deepest tap."""

    def __post_init__(self):
        check_tree(self.tree, self.law, self.head.size)
        if self.start not in ("drawn", "target"):
            raise ValueError(f"start is {self.start!r}; it must be 'drawn' or 'target'")
        check_taps(self.taps)
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; training must unroll at least one")

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
        check_tapped(target, self.taps)
        e, m, dtype = target.width, len(self.taps), target.matrix_dtype
        norms = {name: Spec((e,), dtype, (None,), ones) for name in ("input_norm", "hidden_norm", "norm")}
        norms |= {"joined_norm": Spec((m * e,), dtype, (None,), ones)} if self.norm_before_fc else {}
        norms |= {"fc_norm": Spec((m, e), dtype, ("tap", None), ones)} if self.fc_norm else {}
        return norms | {
            "fc": Spec((e, m * e), dtype, ("embed", None), normal()),
            "layer": layer_specs(layer_for(target, self.layer), 2 * e),
            "head": self.head.specs(target),
        }

    def initial(
        self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]
    ) -> dict[str, Any]:
        """Drawn anew, but for the head, and what `start` takes from the target."""
        params = initialise(self.specs(target), key) | {"head": self.head.initial(target, target_params, counts)}
        return params if self.start == "drawn" else params | self.last_layer(target, target_params, params)

    def last_layer(self, target: Decoder, target_params: Any, params: Any) -> dict[str, Any]:
        """The target's last layer on its deepest tap, passed on as it is; how it reads the token is still as drawn.

        ValueError where the head's layer has another shape.
        """
        e, last = target.width, target_params["layers"][-1]
        if layer_for(target, self.layer) != layer_for(target, None):
            raise ValueError("the head's layer is not shaped as the target's; it cannot start from it: take start='drawn'")
        wide = {name: params["layer"][name].at[:, e:].set(last[name]) for name in ("q", "k", "v")}
        same = {name: jnp.copy(last[name]) for name in params["layer"] if name not in wide}
        fc = jnp.zeros_like(params["fc"]).at[:, -e:].set(jnp.eye(e, dtype=params["fc"].dtype))
        norms = {"hidden_norm": jnp.copy(last["attn_norm"]), "norm": jnp.copy(target_params["norm"])}
        return {"fc": fc, "layer": wide | same} | norms

    def fuse(self, ctx: Context, params: Any, features: Float[Array, "B T M E"]) -> Float[Array, "B T E"]:
        """The tapped states as one, low to high."""
        joined = features.reshape(*features.shape[:2], -1)
        if self.norm_before_fc:
            joined = self.norm(ctx, params["joined_norm"], joined)
        if self.fc_norm:
            joined = self.norm(ctx, params["fc_norm"], joined.reshape(features.shape)).reshape(joined.shape)
        return linear(joined, params["fc"])

    def pair(
        self, ctx: Context, params: Any, tokens: Int[Array, "B T"], hidden: Float[Array, "B T E"]
    ) -> tuple[Float[Array, "B T E"], Float[Array, "B T 2E"]]:
        """`join` of the tokens' embeddings with the states."""
        return self.join(ctx, params, ctx.target.embed(ctx.target_params, tokens), hidden)

    def join(
        self, ctx: Context, params: Any, embedded: Float[Array, "B T E"], hidden: Float[Array, "B T E"]
    ) -> tuple[Float[Array, "B T E"], Float[Array, "B T 2E"]]:
        """What the layer adds to, and what its attention reads: embedding and state, each with a norm of its own."""
        normed = self.norm(ctx, params["hidden_norm"], hidden)
        embedded = self.norm(ctx, params["input_norm"], embedded)
        return normed if self.norm_before_residual else hidden, jnp.concatenate([embedded, normed], -1)

    def output(self, ctx: Context, params: Any, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """What a row feeds to the rows below it."""
        return self.norm(ctx, params["norm"], x) if self.norm_output else x

    def logits(self, ctx: Context, params: Any, hidden: Float[Array, "... E"]) -> Float[Array, "... D"]:
        """Over the draft vocabulary, from a row's output."""
        normed = hidden if self.norm_output else self.norm(ctx, params["norm"], hidden)
        return self.head.logits(ctx, params["head"], normed)

    def norm(self, ctx: Context, weight: Float[Array, "..."], x: Float[Array, "..."]) -> Float[Array, "..."]:
        return rms_norm(x, weight, layer_for(ctx.target, self.layer).norm_eps)

    def cell(self, ctx: Context, params: Any, cache: Cache) -> Cell:
        layer = layer_for(ctx.target, self.layer)

        def run(tokens: Array, hidden: Array, positions: Array, mask: Array, scratch: Staged | None) -> tuple[Array, Staged]:
            residual, x = self.pair(ctx, params, tokens, hidden)
            out, staged = run_layer(layer, params["layer"], residual, x, positions, cache, mask, scratch)
            return self.output(ctx, params, out), staged

        return Cell(run, partial(self.logits, ctx, params), lag=1, ids=params["head"].get("ids"))

    def empty(self, target: Decoder, batch: int, capacity: int) -> State:
        return empty_state(layer_for(target, self.layer), batch, capacity)

    def observe(self, ctx: Context, params: Any, state: State, seen: Committed, scratch: Any = None) -> State:
        """Rows made of the target's states replace all that was drafted from the head's own."""
        return extend(self.cell(ctx, params, state.cache), state, self.fuse(ctx, params, seen.features), seen)

    def propose(self, ctx: Context, params: Any, state: State) -> tuple[Draft, None]:
        draft = draft_below(self.cell(ctx, params, state.cache), ctx, self.tree, self.law, state.root[:, None])
        return draft, None

    def unroll(self, ctx: Context, params: Any, trace: Trace) -> Float[Array, "N B T E"]:
        """Training-time test (§3.1): row r of step i is what drafting i tokens from r makes of tokens r + 1 .. r + 1 + i.

        Those are the text's own; the states, from step 1 on, the head's, with their gradients. One layer is compiled for
        all steps, and only one step's scores are held at a time.
        """
        batch, layer, p = trace.batch, layer_for(ctx.target, self.layer), params["layer"]
        mask = packed_mask(batch)

        @jax.checkpoint
        def step(carry: tuple[Array, KV], now: tuple[Array, Array]) -> tuple[tuple[Array, KV], Array]:
            (hidden, kept), (i, tokens) = carry, now
            residual, x = self.pair(ctx, params, tokens, hidden)
            q, kv = layer.project(p, x, layer.rope.angles(batch.positions + i, layer.head_width))
            kept = jax.tree.map(lambda rows, new: rows.at[i].set(new), kept, kv)
            mixed = attend_unrolled(q, kept, i, mask, layer.head_width**-0.5)
            mixed = linear(mixed.reshape(*mixed.shape[:2], -1), p["o"], p.get("o_bias"))
            hidden = self.output(ctx, params, add_mlp(layer, p, residual + mixed))
            return (hidden, kept), hidden

        rows = jnp.zeros((self.steps, len(mask), layer.kv_heads, mask.shape[1], layer.head_width), jnp.dtype(layer.dtype))
        tokens = jnp.stack([trace.ahead(i + 1)[0] for i in range(self.steps)])
        start = self.fuse(ctx, params, trace.features), KV(rows, rows)
        return lax.scan(step, start, (jnp.arange(self.steps), tokens))[1]

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Σ_i decay^i · cross-entropy of step i with the target's law, cut to the draft vocabulary and renormalised.

        A row is learnt from where the token that it consumes is, and where the target's likeliest token lies in the
        draft vocabulary; each step is averaged over such rows. `tau` is 1 + the run of steps that agree with the target's
        argmax, averaged over the rows that have all steps: the greedy chain's τ on the text's own tokens.
        """
        weight = jnp.stack([trace.ahead(i + 1)[1] for i in range(self.steps)], -1)
        entropy, agrees, inside = self.compare(ctx, params, trace, self.unroll(ctx, params, trace))
        by_step = lambda x, weight: [weighted_mean(x[..., i], weight[..., i]) for i in range(self.steps)]
        loss = jnp.stack(by_step(entropy, weight * inside)) @ self.decay ** jnp.arange(self.steps)
        run = jnp.cumprod(agrees, -1).sum(-1)
        metrics = {f"accuracy_{i}": accuracy for i, accuracy in enumerate(by_step(agrees, weight))}
        metrics |= {"tau": 1 + weighted_mean(run, weight.prod(-1)), "outside": weighted_mean(1 - inside, weight)}
        return loss, metrics

    def compare(self, ctx: Context, params: Any, trace: Trace, outputs: Float[Array, "N B T E"]) -> list[Array]:
        """`against_target` of every row r and step i, [B T N].

        Step i's rows are moved to r + 1 + i, where the target's state that judges them stands: one product with the
        target's head then serves all steps.
        """
        moved = jnp.stack([jnp.roll(x, i + 1, 1) for i, x in enumerate(outputs)], 2)
        ids, judge = params["head"].get("ids"), self.head.teacher_rows(ctx, params["head"])

        def of_rows(rows: Any) -> tuple[Array, ...]:
            mine, theirs = rows
            entropy, agrees, inside = against_target(ctx, ids, judge, self.logits(ctx, params, mine), theirs)
            return entropy, agrees, jnp.broadcast_to(inside[:, None], agrees.shape)

        judging = flatten(trace.batch.loss_mask)
        judged = in_chunks(of_rows, (flatten(moved), flatten(trace.hidden)), judging, max(ROWS // (self.steps + 1), 1))
        shape = moved.shape[:3]
        back = lambda x: jnp.stack([jnp.roll(x.reshape(shape)[..., i], -i - 1, 1) for i in range(self.steps)], -1)
        return [back(x) for x in judged]

    @classmethod
    def tiny(cls, target: Decoder) -> "Eagle3":
        """With a draft vocabulary, and a tree that the drafter shapes."""
        taps = (0, target.layers // 2, target.layers - 1)
        return cls(taps, DynamicTree(depth=3, nodes=8, width=3), head=DraftHead(20, trained=True), steps=3)
