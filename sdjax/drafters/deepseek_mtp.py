"""Multi-token prediction modules: one decoder layer a further token, each fed with the states of the one before it.

DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437, §2.2); one module unrolled on its own output: FastMTP (arXiv:2509.18362).
Modules are counted from 0. Module m's row i pairs state i of module m - 1 (the target's for m = 0) with token i + m + 1,
and its output predicts token i + m + 2.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from sdjax.core.cache import KV, Cache, Staged, commit
from sdjax.core.linear import linear
from sdjax.core.spec import Spec, initialise, normal, ones
from sdjax.core.types import Committed, Context, Draft, Law, Trace
from sdjax.drafters.head import DraftHead
from sdjax.drafters.judge import chain_figures, judge_heads
from sdjax.drafters.recursion import Cell, check_tree, draft_below
from sdjax.drafters.residual_heads import take_last
from sdjax.drafters.unrolled import attend_unrolled
from sdjax.targets.decoder import Decoder, Tap, causal_mask, rms_norm, swiglu
from sdjax.targets.packed import packed_mask
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.tree import Tree


@struct.dataclass
class Modules:
    """Layer m of `cache` holds module m's rows 0..p-1-m, all that committed tokens make; last[b, m] is its newest output.

    The cache's length is p. Each newest output has consumed the anchor; it is zero where p ≤ m.
    """

    cache: Cache
    last: Float[Array, "B D E"]


@dataclass(frozen=True)
class DeepSeekMTP:
    """Drafts `tree` with D `modules`; below depth D they take turns, fed with their own normed output.

    `tap` is the state that module 0 takes: "final", or the last layer's raw one (its index). Training unrolls `steps`
    steps on the texts' own tokens, towards the text or the target's law; step k (from 0) weighs `weight` · decay^k / Σ decay^k.
    DeepSeek-V3: steps = modules, decay 1, weight λ = 0.3, then 0.1; FastMTP: one module, steps 3, decay 0.6.
    """

    modules: int = 1
    tree: Tree | DynamicTree = Tree.chain(3)
    law: Law = Law.IID
    head: DraftHead = DraftHead()
    tap: Tap = "final"
    steps: int = 3
    decay: float = 0.6
    weight: float = 1.0
    objective: Literal["text", "teacher"] = "text"

    def __post_init__(self):
        if not 1 <= self.modules <= self.steps:
            raise ValueError(
                f"{self.modules} modules with {self.steps} training steps; there must be a module, and a step for each of them"
            )
        if self.decay <= 0 or self.weight <= 0:
            raise ValueError(f"decay ({self.decay}) and weight ({self.weight}) must be positive, or steps are not learnt")
        check_tree(self.tree, self.law)

    @property
    def taps(self) -> tuple[Tap, ...]:
        return (self.tap,)

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
        """{modules: [{embed_norm, hidden_norm, fuse, layer, norm}], head}; embedding and, by default, head are the target's."""
        if self.tap not in ("final", target.layers - 1):
            raise ValueError(f"tap is {self.tap!r}; the target's last state is 'final', or {target.layers - 1} before its norm")
        check_tree(self.tree, self.law, self.head.size or target.vocab)
        e, dtype, whole = target.width, target.matrix_dtype, one_layer(target).specs()
        norm = Spec((e,), dtype, ("embed",), ones)
        fuse = Spec((e, 2 * e), dtype, ("embed", None), normal())
        module = {"embed_norm": norm, "hidden_norm": norm, "fuse": fuse, "layer": whole["layers"][0], "norm": whole["norm"]}
        return {"modules": [module] * self.modules, "head": self.head.specs(target)}

    def initial(self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]) -> Any:
        """Each layer and its norm start as the target's last ones, the projection at random."""
        params = initialise(self.specs(target), key)
        own = lambda: jax.tree.map(jnp.copy, {"layer": target_params["layers"][-1], "norm": target_params["norm"]})
        modules = [module | own() for module in params["modules"]]
        return {"modules": modules, "head": self.head.initial(target, target_params, counts)}

    def empty(self, target: Decoder, batch: int, capacity: int) -> Modules:
        cache = replace(target, layers=self.modules, windows=()).empty_cache(batch, capacity)
        return Modules(cache, jnp.zeros((batch, self.modules, target.width), jnp.dtype(target.dtype)))

    def observe(self, ctx: Context, params: Any, state: Modules, seen: Committed, scratch: Any = None) -> Modules:
        """Runs every module on the committed tokens: module m's rows stand m places before those of module 0."""
        cache, above = state.cache, seen.features[:, :, 0]
        causal = causal_mask(above.shape[1])
        layers, last = [], []
        for m, module in enumerate(params["modules"]):
            positions = seen.positions - m
            exists = positions >= 0
            before = layer_cache(cache, m, jnp.maximum(cache.length - m, 0))
            out, staged = run_module(ctx, module, seen.next_tokens, above, positions, before, causal & exists[:, None])
            layers += append_from(before, staged, jnp.maximum(m - cache.length, 0), seen.count).layers
            out = jnp.where(exists[..., None], out, 0)
            last.append(take_last(out, seen.count, state.last[:, m]))
            above = jnp.concatenate([state.last[:, m : m + 1], out[:, :-1]], 1)
        return Modules(cache.replace(layers=layers, length=cache.length + seen.count), jnp.stack(last, 1))

    def propose(self, ctx: Context, params: Any, state: Modules) -> tuple[Draft, None]:
        """Depth k's children come from module k mod D; a node's row runs in every module that a deeper one builds on."""
        logits = lambda hidden: self.head.logits(ctx, params["head"], hidden[..., 0, :])
        cell = Cell(self.node_runner(ctx, params, state.cache), logits, lag=1, ids=params["head"].get("ids"))
        return draft_below(cell, ctx, self.tree, self.law, state.last[:, None]), None

    def node_runner(self, ctx: Context, params: Any, cache: Cache) -> Any:
        """The cell's step. A node's hidden state [D', E] holds the outputs of `modules_at` its depth, in their order."""
        depths = run_depths(self.tree)

        def run(tokens: Array, above: Array, positions: Array, mask: Array, scratch: Staged | None) -> tuple[Array, Staged]:
            before = 0 if scratch is None else scratch.positions.shape[1]
            block = positions if scratch is None else jnp.concatenate([scratch.positions, positions], 1)
            here = self.modules_at(depths[before])
            ran = [self.modules_at(depth) for depth in depths[: block.shape[1]]]
            outs: list[Array] = []
            layers: list[KV] = []
            for m, module in enumerate(params["modules"]):
                if m not in here:
                    layers.append(no_rows(cache.layers[m], tokens.shape[1]))
                    continue
                seen = mask & np.array([m in modules for modules in ran]) & (block >= m)[:, None]
                committed = layer_cache(cache, m, jnp.maximum(ctx.p - m, 0))
                staged = None if scratch is None else Staged([scratch.layers[m]], scratch.positions)
                out, new = run_module(ctx, module, tokens, above[:, :, len(outs)], positions - m, committed, seen, staged)
                outs.append(out)
                layers += new.layers
            return jnp.stack(outs, 2), Staged(layers, positions)

        return run

    def modules_at(self, depth: int) -> range:
        """The modules that run at a node: the one that predicts its children, and in the first round those of deeper ones."""
        first = depth % self.modules
        return range(first, min(self.modules, self.tree.depth) if depth < self.modules else first + 1)

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """λ Σ_k w_k · loss of step k on token i + k + 2 (Eq. 24-25; a mean over the terms there are, not over T)."""
        states = self.unroll(ctx, params, trace)
        losses, ranks, seen = judge_heads(ctx, self.head, [params["head"]], states, trace, **{self.objective: 1.0})
        share = self.decay ** jnp.arange(self.steps)
        return self.weight * (share * losses).sum() / share.sum(), chain_figures(ranks, seen)

    def unroll(self, ctx: Context, params: Any, trace: Trace) -> list[Float[Array, "B T E"]]:
        """Each step's outputs: row i is what drafting behind token i + 1 would see, had it drawn the text's own tokens.

        A module's first rows are those that observing makes: its later steps see them up to their own place, and of
        later steps only the ones behind the same prefix.
        """
        batch, hidden = trace.batch, trace.features[:, :, 0]
        mask = packed_mask(batch)
        kept: list[list[KV]] = [[] for _ in range(self.modules)]
        outputs = []
        for step in range(self.steps):
            m = step % self.modules
            tokens, _ = trace.ahead(step + 1)
            positions = batch.positions + step - m
            hidden, kv = unroll_module(ctx, params["modules"][m], tokens, hidden, positions, kept[m], mask)
            kept[m].append(kv)
            outputs.append(hidden)
        return outputs

    @classmethod
    def tiny(cls, target: Decoder) -> "DeepSeekMTP":
        """Deeper than its modules, and sparse."""
        return cls(modules=2, tree=Tree((-1, 0, 1, 0, 1, 2, 5)), law=Law.WITHOUT_REPLACEMENT)


def one_layer(target: Decoder) -> Decoder:
    """The shape of a module's layer: the target's, attending to all positions."""
    return replace(target, layers=1, windows=())


def run_module(
    ctx: Context,
    module: Any,
    tokens: Int[Array, "B T"],
    above: Float[Array, "B T E"],
    positions: Int[Array, "B T"],
    cache: Cache,
    mask: Bool[Array, "b T U"],
    scratch: Staged | None = None,
) -> tuple[Float[Array, "B T E"], Staged]:
    """The module's normed output, which predicts and is passed on."""
    weights = {"layers": [module["layer"]], "norm": module["norm"]}
    fused = fuse(ctx, module, tokens, above)
    out = one_layer(ctx.target).forward(weights, fused, positions, cache, mask, scratch=scratch)
    return out.hidden, out.staged


def unroll_module(
    ctx: Context,
    module: Any,
    tokens: Int[Array, "B T"],
    above: Float[Array, "B T E"],
    positions: Int[Array, "B T"],
    kept: list[KV],
    mask: Bool[Array, "B T T"],
) -> tuple[Float[Array, "B T E"], KV]:
    """`run_module` along whole texts, behind every prefix at once; `kept` are the module's rows of its earlier steps."""
    layer, eps = one_layer(ctx.target), ctx.target.norm_eps

    @jax.checkpoint
    def run(module: Any, above: Array, kept: list[KV]) -> tuple[Array, KV]:
        p, x = module["layer"], fuse(ctx, module, tokens, above)
        q, kv = layer.project(p, rms_norm(x, p["attn_norm"], eps), layer.rope.angles(positions, layer.head_width))
        rows = jax.tree.map(lambda *steps: jnp.stack(steps), *kept, kv)
        mixed = attend_unrolled(q, rows, len(kept), mask, layer.head_width**-0.5)
        x = x + linear(mixed.reshape(*mixed.shape[:2], -1), p["o"], p.get("o_bias"))
        return rms_norm(x + swiglu(p, rms_norm(x, p["mlp_norm"], eps)), module["norm"], eps), kv

    return run(module, above, kept)


def fuse(ctx: Context, module: Any, tokens: Int[Array, "B T"], above: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
    """M [norm_e(Emb(token)); norm_h(state above)]: embedding first, as the released weights have it."""
    embedded = rms_norm(ctx.target.embed(ctx.target_params, tokens), module["embed_norm"], ctx.target.norm_eps)
    above = rms_norm(above, module["hidden_norm"], ctx.target.norm_eps)
    return linear(jnp.concatenate([embedded, above], -1), module["fuse"])


def layer_cache(cache: Cache, layer: int, length: Int[Array, " B"]) -> Cache:
    """One layer of a cache as a cache, `length` of its rows committed."""
    return Cache([cache.layers[layer]], length)


def append_from(cache: Cache, staged: Staged, first: Int[Array, " B"], count: Int[Array, " B"]) -> Cache:
    """Commits rows first[b] .. count[b] - 1 of `staged`: those before them do not exist."""
    width = staged.positions.shape[1]
    path = jnp.minimum(jnp.arange(width) + first[:, None], width - 1)
    return commit(cache, Staged(staged.layers, staged.positions + first[:, None]), path, jnp.maximum(count - first, 0))


def run_depths(tree: Tree | DynamicTree) -> list[int]:
    """The depth of every node that drafting runs, in its order: level by level, without the anchor and the leaves."""
    if isinstance(tree, DynamicTree):
        return [depth for depth in range(1, tree.depth) for _ in range(tree.width)]
    return [depth for depth, level in enumerate(tree.levels[1:], 1) for node in level if tree.children[node]]


def no_rows(kv: KV, width: int) -> KV:
    """Zeros in the place of `width` rows that do not run: no mask lets them be seen."""
    return jax.tree.map(lambda x: jnp.zeros((*x.shape[:2], width, x.shape[3]), x.dtype), kv)
