"""Block drafters: a small decoder that drafts a whole block in one pass, with the target's states in its attention.

DFlash (arXiv:2602.06036) fills masks in behind the anchor; DSpark (arXiv:2607.05147) lets the anchor itself predict, and
corrects the slots from left to right. Each layer's attention sees the committed tokens as keys and values made of the
target's tapped states, and the block's own rows; those keys and values depend on a token and a layer alone.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from sdjax.core.cache import Cache, Staged, commit
from sdjax.core.linear import linear, product
from sdjax.core.spec import Spec, initialise, normal
from sdjax.core.types import Committed, Context, Draft, Trace, rows
from sdjax.drafters.base import check_length, check_tapped, check_taps
from sdjax.drafters.block_attention import attend_blocks
from sdjax.drafters.chain import chain_of, choose_greedy, choose_sampled
from sdjax.drafters.eagle_layer import add_mlp, layer_for
from sdjax.drafters.head import DraftHead, own_tokens
from sdjax.drafters.losses import cross_entropy, flatten, in_chunks, soft_cross_entropy, total_variation, weighted_mean
from sdjax.drafters.markov import Markov, markov_bias, markov_specs
from sdjax.drafters.residual_heads import chain_figures, rank_of
from sdjax.targets.decoder import Decoder, Tap, causal_mask, rms_norm


def spread_taps(layers: int, count: int = 5) -> tuple[Tap, ...]:
    """The states behind `count` layers, evenly from the second to the third last: DFlash's choice."""
    taps = tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count)) if count > 1 else (layers // 2,)
    if min(taps) < 0 or len(set(taps)) < count:
        raise ValueError(f"a target of {layers} layers gives the taps {taps}, which collide; name distinct ones in `taps`")
    return taps


@dataclass(frozen=True)
class Block:
    """Drafts a chain of `length` tokens with `layers` layers in one pass behind the target's states at `taps`.

    The block is the anchor and mask slots behind it, at positions p, p + 1, ... Under "fill_in" the slot at position i
    predicts the token at i, so `length` masks follow the anchor, whose own slot is idle; under "anchor_first" it predicts
    the token at i + 1, and one mask fewer is needed. `block_mask` is what slots see of each other. A `markov` head of
    `rank` adds to each slot's logits what follows the token drafted before it. Where not `sampled`, drafts are argmaxes at
    any temperature. No parameter depends on `length`: what was trained on long blocks drafts shorter ones.

    `mask_token` names the row of the target's embedding that masks read; it is kept with the weights, and never learnt
    (None: a learnt vector). `shape` is that of the layers (None: as the target's, without biases, with norms of queries
    and keys). Training draws `anchors` in each row; slot j's loss weighs exp(-j / decay), and is `text` · CE(token) +
    `soft` · CE(target's law) + `l1` · Σ|p - q|. The `soft` loss is taken with both laws at `temperature`, times its square.

    With `visible_prefix` β training also shows each block its first l < `length` tokens, l drawn ∝ β^l, and learns the
    others, the first of them with weight 1: D²SD's variable-prefix drafter, which redrafts what stands behind a prefix.
    """

    taps: tuple[Tap, ...]
    length: int = 7
    layers: int = 5
    layout: Literal["fill_in", "anchor_first"] = "fill_in"
    block_mask: Literal["full", "causal"] = "full"
    markov: Markov = "none"
    rank: int = 256
    sampled: bool = False
    head: DraftHead = DraftHead()
    mask_token: int | None = None
    shape: Decoder | None = None
    anchors: int = 512
    decay: float = 4.0
    text: float = 1.0
    soft: float = 0.0
    l1: float = 0.0
    temperature: float = 1.0
    visible_prefix: float | None = None

    def __post_init__(self):
        check_length(self.length)
        check_taps(self.taps)
        for name, known in (
            ("layout", ("fill_in", "anchor_first")),
            ("block_mask", ("full", "causal")),
            ("markov", ("none", "vanilla", "gated")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")
        for name in ("layers", "rank", "anchors"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.decay <= 0 or min(self.text, self.soft, self.l1) < 0 or self.text + self.soft + self.l1 == 0:
            raise ValueError("decay must be positive, and of the weights text, soft and l1 none negative and one positive")
        if self.temperature <= 0:
            raise ValueError(f"temperature is {self.temperature}; the laws of a loss are compared at a positive one")
        if self.visible_prefix is not None and not (0 < self.visible_prefix <= 1 and self.length > 1):
            raise ValueError(
                f"visible_prefix is {self.visible_prefix} for blocks of {self.length}; it must lie in (0, 1] (1: all prefixes "
                "are as likely, None: no token is shown), and a block of one token has no prefix"
            )

    @classmethod
    def dflash(cls, taps: tuple[Tap, ...], mask_token: int | None, length: int = 15, **changes: Any) -> "Block":
        """DFlash as published: masks filled in, all slots see all, argmax, the text's own tokens; γ by the block's length."""
        decay = {15: 7.0, 9: 5.0}.get(length, 4.0)
        return cls(taps, length, mask_token=mask_token, **{"decay": decay, **changes})

    @classmethod
    def dspark(cls, taps: tuple[Tap, ...], mask_token: int | None, length: int = 7, **changes: Any) -> "Block":
        """DSpark as released, but for its confidence: anchor first, drawn behind a Markov head, 0.1 CE + 0.9 L1."""
        published = {"layout": "anchor_first", "markov": "vanilla", "sampled": True, "text": 0.1, "l1": 0.9}
        return cls(taps, length, mask_token=mask_token, **{**published, **changes})

    @property
    def depth(self) -> int:
        return self.length

    @property
    def nodes(self) -> int:
        return self.length + 1

    @property
    def width(self) -> int:
        """Slots of a block, the anchor's included: the last `length` of them predict."""
        return self.length + 1 if self.layout == "fill_in" else self.length

    def model(self, target: Decoder) -> Decoder:
        """The shape of the layers."""
        plain = replace(target, qkv_bias=False, o_bias=False, mlp_bias=False, qk_norm=True)
        return replace(layer_for(target, self.shape or plain), layers=self.layers)

    def specs(self, target: Decoder) -> dict[str, Any]:
        """{fc, hidden_norm, layers, norm, mask, head}, and {markov} where there is one."""
        check_tapped(target, self.taps)
        if self.mask_token is not None and not 0 <= self.mask_token < target.vocab:
            raise ValueError(f"mask_token is {self.mask_token}; the target's vocabulary has the ids 0..{target.vocab - 1}")
        e, whole = target.width, self.model(target).specs()
        vector = whole["norm"]
        specs = {
            "fc": Spec((e, len(self.taps) * e), target.matrix_dtype, ("embed", None), normal()),
            "hidden_norm": vector,
            "layers": whole["layers"],
            "norm": vector,
            "mask": replace(vector, init=normal(), trainable=self.mask_token is None),
            "head": self.head.specs(target),
        }
        if self.markov != "none":
            specs["markov"] = markov_specs(target, self.markov, self.rank, self.head.size or target.vocab)
        return specs

    def initial(
        self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]
    ) -> dict[str, Any]:
        """Drawn anew, but for the head and the mask's row, which are the target's."""
        params = initialise(self.specs(target), key) | {"head": self.head.initial(target, target_params, counts)}
        if self.mask_token is None:
            return params
        return params | {"mask": target.embed(target_params, jnp.array([[self.mask_token]]))[0, 0]}

    def fuse(self, ctx: Context, params: Any, features: Float[Array, "B T M E"]) -> Float[Array, "B T E"]:
        """The tapped states as one, normed: what every layer's keys and values of the text are made of."""
        joined = linear(features.reshape(*features.shape[:2], -1), params["fc"]).astype(features.dtype)
        return rms_norm(joined, params["hidden_norm"], self.model(ctx.target).norm_eps)

    def inputs(
        self, ctx: Context, params: Any, tokens: Int[Array, "B A P"], visible: Int[Array, "B A"]
    ) -> Float[Array, "B A R E"]:
        """Blocks of the anchors tokens[..., 0], the `visible` tokens behind each, then masks."""
        given = ctx.target.embed(ctx.target_params, tokens)
        shown = (jnp.arange(tokens.shape[2]) <= visible[..., None])[..., None]
        masks = jnp.broadcast_to(params["mask"].astype(given.dtype), (*tokens.shape[:2], self.width, given.shape[-1]))
        return jnp.concatenate([jnp.where(shown, given, masks[:, :, : tokens.shape[2]]), masks[:, :, tokens.shape[2] :]], 2)

    def slots_seen(self) -> Bool[Array, "1 R R"]:
        """Which slots of the block each slot sees."""
        return causal_mask(self.width) if self.block_mask == "causal" else jnp.ones((1, self.width, self.width), bool)

    def corrected(
        self, params: Any, logits: Float[Array, "... D"], hidden: Float[Array, "... E"], previous: Int[Array, "..."]
    ) -> Float[Array, "... D"]:
        """Of slots whose last token is `previous`: what the head makes of them, and what the Markov head adds."""
        return logits if self.markov == "none" else logits + markov_bias(params["markov"], previous, hidden)

    def empty(self, target: Decoder, batch: int, capacity: int) -> Cache:
        return self.model(target).empty_cache(batch, capacity)

    def observe(self, ctx: Context, params: Any, state: Cache, seen: Committed, scratch: Any = None) -> Cache:
        """Every layer's keys and values of what was committed; the block's own are kept nowhere."""
        model, context = self.model(ctx.target), self.fuse(ctx, params, seen.features)
        angles = model.rope.angles(seen.positions, model.head_width)
        layers = [model.keys_and_values(p, context, angles) for p in params["layers"]]
        path = jnp.broadcast_to(jnp.arange(seen.tokens.shape[1]), seen.tokens.shape)
        return commit(state, Staged(layers, seen.positions), path, seen.count)

    def propose(self, ctx: Context, params: Any, state: Cache) -> tuple[Draft, None]:
        """One pass for all slots; with a Markov head, then a short step for each."""
        ids, hidden = params["head"].get("ids"), self.slots(ctx, params, state)
        choose = choose_sampled if self.sampled and not ctx.warp.greedy else choose_greedy
        slots = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (self.head.logits(ctx, params["head"], hidden), hidden))

        def one(previous: Array, slot: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array | None]]:
            logits, hidden, depth = slot
            place, q = choose(self.corrected(params, logits, hidden, previous), ctx, depth)
            return place if ids is None else ids[place], (place, q)

        depths = jnp.arange(self.length) + 1
        if self.markov == "none":
            places, q = jax.vmap(lambda *slot: one(ctx.anchor, slot)[1])(*slots, depths)
        else:
            places, q = lax.scan(one, ctx.anchor, (*slots, depths))[1]
        return chain_of(ctx, places, q, ids), None

    def slots(self, ctx: Context, params: Any, state: Cache) -> Float[Array, "B N E"]:
        """The final states of the slots that predict, behind the anchor."""
        anchor = ctx.anchor[:, None]
        return self.branches(ctx, params, state, anchor[..., None], jnp.zeros_like(anchor))[:, 0]

    def branches(
        self, ctx: Context, params: Any, state: Cache, tokens: Int[Array, "B A P"], visible: Int[Array, "B A"]
    ) -> Float[Array, "B A N E"]:
        """`slots` of A blocks behind the anchor, each with its own `inputs`: one pass, in which none sees another."""
        x = self.inputs(ctx, params, tokens, visible)
        (b, a, r, e), seen = x.shape, self.slots_seen()[0]
        positions = jnp.tile(ctx.p[:, None] + jnp.arange(r), (1, a))
        apart = (jnp.eye(a, dtype=bool)[:, None, :, None] & seen[None, :, None]).reshape(1, a * r, a * r)
        out = self.model(ctx.target).forward(params, x.reshape(b, a * r, e), positions, state, apart)
        return out.hidden.reshape(b, a, r, e)[:, :, -self.length :]

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Blocks behind random anchors, drawn anew by `key`: Σ w · loss / Σ w over their slots, w = exp(-j / decay).

        j counts from the first token that is not shown. A block is learnt up to its first token that is not learnt from. The
        target's law is cut to the draft vocabulary and renormalised; tokens outside are not learnt as text.
        τ is that of blocks that are shown none.
        """
        place, drawn = self.draw_anchors(trace, key)
        visible = self.draw_prefixes(place.shape, jax.random.fold_in(key, 1))
        labels, weight = self.labels(trace, place, drawn)
        behind = jnp.arange(self.length) - visible[..., None]
        weight *= behind >= 0
        hidden = self.run_blocks(ctx, params, trace, place, visible)
        out, inside = self.judge(ctx, params, trace, place, hidden, labels, weight)
        decayed = weight * jnp.exp(-jnp.maximum(behind, 0) / self.decay)
        loss = jnp.float32(0)
        for name, scale in self.objectives.items():
            loss += scale * weighted_mean(out[name], decayed * inside if name == "text" else decayed)
        ranks = jnp.where(inside, out["rank"], ctx.target.vocab)
        return loss, chain_figures(jnp.moveaxis(ranks, -1, 0), jnp.moveaxis(weight, -1, 0))

    @property
    def objectives(self) -> dict[str, float]:
        """What is minimised, each with its weight."""
        weights = {"text": self.text, "soft": self.soft, "l1": self.l1}
        return {name: weight for name, weight in weights.items() if weight}

    def draw_anchors(self, trace: Trace, key: Key[Array, ""]) -> tuple[Int[Array, "B A"], Float[Array, "B A"]]:
        """Different places of each row, and which are anchors: learnt from themselves, as is the token behind them.

        A row with fewer such tokens has other places in the end, which are none.
        """
        able = trace.batch.loss_mask & (trace.ahead(1)[1] > 0)
        score = jnp.where(able, jax.random.uniform(key, able.shape), -1)
        best, place = lax.top_k(score, min(self.anchors, score.shape[1]))
        return place, (best >= 0).astype(jnp.float32)

    def draw_prefixes(self, shape: tuple[int, ...], key: Key[Array, ""]) -> Int[Array, "B A"]:
        """How many tokens behind its anchor each block is shown: l < `length` with a probability ∝ β^l."""
        if self.visible_prefix is None:
            return jnp.zeros(shape, jnp.int32)
        return jax.random.categorical(key, jnp.arange(self.length) * math.log(self.visible_prefix), shape=shape)

    def labels(
        self, trace: Trace, place: Int[Array, "B A"], drawn: Float[Array, "B A"]
    ) -> tuple[Int[Array, "B A N"], Float[Array, "B A N"]]:
        """The tokens behind each anchor, and whether they are learnt from."""
        ahead = zip(*(trace.ahead(j + 1) for j in range(self.length)), strict=True)
        labels, weight = (rows(jnp.stack(x, -1), place) for x in ahead)
        return labels, jnp.cumprod(weight, -1) * drawn[..., None]

    def run_blocks(
        self, ctx: Context, params: Any, trace: Trace, place: Int[Array, "B A"], visible: Int[Array, "B A"] | None = None
    ) -> Float[Array, "B A N E"]:
        """`slots` of the block behind each anchor, which sees its document before it: all blocks in one pass."""
        batch, model, context = trace.batch, self.model(ctx.target), self.fuse(ctx, params, trace.features)
        at = lambda x: jnp.take_along_axis(x, place, 1)
        visible = jnp.zeros_like(place) if visible is None else visible
        behind = jnp.arange(1 if self.visible_prefix is None else self.length)
        text = rows(batch.tokens, jnp.minimum(place[..., None] + behind, batch.tokens.shape[1] - 1))
        x = self.inputs(ctx, params, text, visible)
        shape, (b, a, r, e) = (model.heads, model.head_width), x.shape
        positions = at(batch.positions)[:, :, None] + jnp.arange(r)
        angles = model.rope.angles(batch.positions, model.head_width)
        own_angles = model.rope.angles(positions.reshape(b, a * r), model.head_width)

        @jax.checkpoint
        def layer(x: Array, p: dict[str, Array]) -> Array:
            q, own = model.project(p, rms_norm(x, p["attn_norm"], model.norm_eps), own_angles)
            given, scale = model.keys_and_values(p, context, angles), model.head_width**-0.5
            q = q.reshape(b, a, r, *shape)
            mixed = attend_blocks(q, given, own, batch.segments, place, self.slots_seen()[0], scale)
            return add_mlp(model, p, x + linear(mixed.reshape(b, a * r, -1), p["o"], p.get("o_bias")))

        x = x.reshape(b, a * r, e)
        for p in params["layers"]:
            x = layer(x, p)
        return rms_norm(x, params["norm"], model.norm_eps).reshape(b, a, r, e)[:, :, -self.length :]

    def judge(
        self,
        ctx: Context,
        params: Any,
        trace: Trace,
        place: Int[Array, "B A"],
        hidden: Float[Array, "B A N E"],
        labels: Int[Array, "B A N"],
        weight: Float[Array, "B A N"],
    ) -> tuple[dict[str, Float[Array, "B A N"]], Bool[Array, "B A N"]]:
        """Each objective and the label's rank, slot by slot, behind the text's own tokens; and which labels can be drafted."""
        head, text = params["head"], rows(trace.batch.tokens, place)[..., None]
        tokens, inside = own_tokens(head.get("ids"), labels)
        previous = jnp.concatenate([text, labels[..., :-1]], -1)
        judge = lax.stop_gradient(self.head.teacher_rows(ctx, head)) if self.soft or self.l1 else None
        theirs = None if judge is None else self.teachers(trace, place)

        def of_rows(part: Any) -> dict[str, Array]:
            mine, theirs, tokens, previous = part
            logits = self.corrected(params, self.head.logits(ctx, head, mine), mine, previous)
            out = {"rank": rank_of(lax.stop_gradient(logits), tokens)}
            if self.text:
                out["text"] = cross_entropy(logits, tokens)
            if judge is not None:
                law = lax.stop_gradient(product(theirs, judge))
                t = self.temperature
                out |= {"soft": t * t * soft_cross_entropy(logits / t, law / t)} if self.soft else {}
                out |= {"l1": 2 * total_variation(logits, law)} if self.l1 else {}
            return out

        every = lambda x: flatten(flatten(x))
        out = in_chunks(of_rows, jax.tree.map(every, (hidden, theirs, tokens, previous)), every(weight))
        return jax.tree.map(lambda x: x.reshape(labels.shape), out), inside

    def teachers(self, trace: Trace, place: Int[Array, "B A"]) -> Float[Array, "B A N E"]:
        """The target's final state that predicts each slot's token."""
        before = jnp.minimum(place[..., None] + jnp.arange(self.length), trace.hidden.shape[1] - 1)
        return rows(trace.hidden, before)

    @classmethod
    def tiny(cls, target: Decoder) -> "Block":
        """With a draft vocabulary and a gate."""
        return cls((0, target.layers - 1), 3, layers=2, markov="gated", rank=4, sampled=True, head=DraftHead(20), anchors=8)
