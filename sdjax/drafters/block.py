"""Block drafters: a small decoder that drafts a whole block in one pass, with the target's states in its attention.

DFlash (arXiv:2602.06036) fills masks in behind the anchor; DSpark (arXiv:2607.05147) lets the anchor itself predict,
corrects the slots from left to right, and says how far it trusts them; Domino (arXiv:2605.29707) corrects by a GRU. Each
layer's attention sees the committed tokens as keys and values made of the target's tapped states, and the block's own
rows; those keys and values depend on a token and a layer alone.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from sdjax.core.cache import KV, Cache, Staged, commit
from sdjax.core.linear import linear, product
from sdjax.core.spec import Spec, initialise, normal
from sdjax.core.types import Committed, Context, Draft, Trace, rows
from sdjax.drafters.anchored import draw_anchors, run_blocks, tokens_behind
from sdjax.drafters.base import check_mask_token, check_tapped
from sdjax.drafters.block_checks import check_block
from sdjax.drafters.block_loss import DISTANCES, TEXTS, Manner, Slots, among, judge_slots
from sdjax.drafters.chain import chain_of, choose_greedy, choose_sampled
from sdjax.drafters.confidence import chain_survival, confidence_logit, confidence_specs
from sdjax.drafters.eagle_layer import layer_for
from sdjax.drafters.head import DraftHead, own_tokens
from sdjax.drafters.judge import chain_figures
from sdjax.drafters.losses import dpace_weights, weighted_mean
from sdjax.drafters.markov import Markov, markov_block, markov_specs, markov_start, markov_step
from sdjax.targets.decoder import Decoder, Tap, causal_mask, rms_norm


def spread_taps(layers: int, count: int = 5) -> tuple[Tap, ...]:
    """The states behind `count` layers, evenly from the second to the third last: DFlash's choice."""
    taps = tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count)) if count > 1 else (layers // 2,)
    if min(taps) < 0 or len(set(taps)) < count:
        raise ValueError(f"a target of {layers} layers gives the taps {taps}, which collide; name distinct ones in `taps`")
    return taps


@dataclass(frozen=True)
class Block:
    """Drafts a chain in one pass behind the target's states: a block of the anchor and mask slots, at positions p, p + 1, ...

    Under "fill_in" the slot at position i predicts the token at i, so `length` masks follow the anchor, whose own slot is
    idle; under "anchor_first" it predicts the token at i + 1, and one mask fewer is needed. No parameter depends on
    `length`: what was trained on long blocks drafts shorter ones.

    The loss is `text` · CE(token) + `soft` · CE(target's law) + `l1` · Σ|p - q| + `lk` · hybrid LK + `confidence` · BCE of a
    confidence head. Where there are candidates all of the text's weight goes to the CE of the uncorrected logits, and
    `choice` weighs the CE among these and the token.

    With `visible_prefix` it is D²SD's variable-prefix drafter, which redrafts what stands behind a prefix: of the tokens that
    it is not shown the first weighs 1. Weights are normalised over all blocks: one that is shown much weighs less.
    """

    taps: tuple[Tap, ...]
    """The target's states that layers see, low to high: behind layer i (from 0), "embed" or "final"."""
    length: int = 7
    """Tokens of a draft."""
    layers: int = 5
    """Layers of the drafter."""
    layout: Literal["fill_in", "anchor_first"] = "fill_in"
    """Which token a slot predicts: its own (DFlash), or the next, the anchor's slot too (DSpark)."""
    block_mask: Literal["full", "causal"] = "full"
    """What slots see of each other: all, or those before them."""
    markov: Markov = "none"
    """A head that adds to each slot's logits what follows the tokens drafted before it."""
    rank: int = 256
    """Of that head's matrices."""
    gru: int = 1024
    """Width of Domino's recurrence."""
    uncorrected: int = 0
    """The first so many slots, which that head leaves alone."""
    candidates: int | None = None
    """Of how many of the likeliest tokens a selector chooses; None: there is none."""
    sampled: bool = False
    """Whether tokens are drawn; else they are argmaxes at any temperature."""
    head: DraftHead = DraftHead()
    """The vocabulary that it drafts in."""
    mask_token: int | None = None
    """The token whose row of the target's embedding masks read; kept with the weights, never learnt. None: a learnt vector."""
    shape: Decoder | None = None
    """Of the layers; None: as the target's, without biases, with norms of queries and keys."""
    windows: tuple[int | None, ...] = ()
    """Each layer's sliding window (None: none; empty: none anywhere); it ends at the query, so such layers are causal."""
    anchors: int = 512
    """Blocks that training draws in each row."""
    decay: float | None = 4.0
    """Slot j's loss weighs exp(-j / decay); None: all alike."""
    dpace: float | None = None
    """α of D-PACE's weights, which replace those by decay; None: they do not."""
    text: float = 1.0
    """Weight of the loss on the text's tokens."""
    base_steps: int = 0
    """In the first so many steps part of that weight, falling from all to none, goes to the logits without the Markov head."""
    soft: float = 0.0
    """Weight of the cross-entropy with the target's law."""
    l1: float = 0.0
    """Weight of Σ|p - q|."""
    soft_temperature: float = 1.0
    """The temperature of both laws in the soft loss, which is then times its square."""
    lk: float = 0.0
    """Weight of the hybrid LK loss."""
    choice: float = 0.0
    """Weight of a selector's cross-entropy, among its candidates and the text's token."""
    confidence: float = 0.0
    """Weight of a confidence head, by which drafts say their survival; 0: there is none."""
    confidence_stops: bool = False
    """Whether the confidence's loss trains its head alone, and not the layers."""
    temperatures: tuple[float, ...] = ()
    """Divide the confidence's logit of each slot; from calibration."""
    visible_prefix: float | None = None
    """β: training also shows each block its first l tokens, l drawn ∝ β^l, and learns the others; None: it does not."""
    start: Literal["drawn", "target"] = "drawn"
    """Where training begins: layers drawn anew, or, in the target's own shape, its last ones on its deepest tap."""
    is_chain: ClassVar[bool] = True

    def __post_init__(self):
        check_block(self)

    @classmethod
    def dflash(cls, taps: tuple[Tap, ...], mask_token: int | None, length: int = 15, **changes: Any) -> "Block":
        """DFlash as published: masks filled in, all slots see all, argmax, the text's own tokens; γ by the block's length."""
        decay = {15: 7.0, 9: 5.0}.get(length, 4.0)
        return cls(taps, length, mask_token=mask_token, **{"decay": decay, **changes})

    @classmethod
    def dspark(cls, taps: tuple[Tap, ...], mask_token: int | None, length: int = 7, **changes: Any) -> "Block":
        """DSpark as released: anchor first, drawn behind a Markov head, 0.1 CE + 0.9 L1 + the confidence's BCE."""
        published = {"layout": "anchor_first", "markov": "vanilla", "sampled": True, "text": 0.1, "l1": 0.9, "confidence": 1.0}
        return cls(taps, length, mask_token=mask_token, **{**published, **changes})

    @classmethod
    def deepspec_dflash(cls, taps: tuple[Tap, ...], mask_token: int | None, length: int = 7, **changes: Any) -> "Block":
        """DFlash as DeepSpec trains and serves it: anchor first, each slot drawn by itself, the text's own tokens."""
        return cls(taps, length, mask_token=mask_token, **{"layout": "anchor_first", "sampled": True, **changes})

    @classmethod
    def jetspec(cls, taps: tuple[Tap, ...], mask_token: int | None, length: int = 15, **changes: Any) -> "Block":
        """JetSpec's weights: slots see those before them alone, and learn the target's law, each slot alike."""
        published = {"block_mask": "causal", "text": 0.0, "soft": 1.0, "decay": None}
        return cls.dflash(taps, mask_token, length, **{**published, **changes})

    @classmethod
    def domino(
        cls, taps: tuple[Tap, ...], mask_token: int | None, base_steps: int, length: int = 16, **changes: Any
    ) -> "Block":
        """Domino as SpecForge trains it: anchor first, argmax behind a GRU but for the first slot, the text's own tokens.

        The uncorrected logits' weight falls from 1 to 0 in `base_steps`: the run's length.
        """
        published = {"layout": "anchor_first", "markov": "domino", "uncorrected": 1, "anchors": 256, "decay": 7.0}
        return cls(taps, length, mask_token=mask_token, base_steps=base_steps, **{**published, **changes})

    @classmethod
    def dflash2(cls, taps: tuple[Tap, ...], mask_token: int | None, length: int = 15, **changes: Any) -> "Block":
        """DFlash with the selector of DFlash 2 (inco.ai/blog/dflash2), but without its convolutions around sublayers."""
        published = {"markov": "selector", "candidates": 16, "choice": 1.0, "sampled": True}
        return cls.dflash(taps, mask_token, length, **{**published, **changes})

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
        own = target if self.start == "target" else self.shape
        plain = replace(target, qkv_bias=False, o_bias=False, mlp_bias=False, qk_norm=True)
        return replace(layer_for(target, own or plain), layers=self.layers, windows=self.windows)

    def specs(self, target: Decoder) -> dict[str, Any]:
        """{fc, hidden_norm, layers, norm, mask, head}, and {markov, confidence}, each where there is one."""
        check_tapped(target, self.taps)
        check_mask_token(self.mask_token, target)
        e, whole = target.width, self.model(target).specs()
        vector = whole["norm"]
        size = self.head.size or target.vocab
        if self.candidates and self.candidates > size:
            raise ValueError(f"candidates is {self.candidates}, but the drafter's vocabulary has {size} tokens; lower it")
        specs = {
            "fc": Spec((e, len(self.taps) * e), target.matrix_dtype, ("embed", None), normal()),
            "hidden_norm": vector,
            "layers": whole["layers"],
            "norm": vector,
            "mask": replace(vector, init=normal(), trainable=self.mask_token is None),
            "head": self.head.specs(target),
        }
        if self.markov != "none":
            specs["markov"] = markov_specs(target, self.markov, self.rank, size, self.gru)
        if self.confidence:
            specs["confidence"] = confidence_specs(target, self.rank if "before" in specs.get("markov", {}) else 0)
        return specs

    def initial(
        self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]
    ) -> dict[str, Any]:
        """Drawn anew, but for the head and the mask's row, which are the target's, and what `start` takes from it."""
        params = initialise(self.specs(target), key) | {"head": self.head.initial(target, target_params, counts)}
        if self.mask_token is not None:
            params["mask"] = target.embed(target_params, jnp.array([[self.mask_token]]))[0, 0]
        return params if self.start == "drawn" else params | self.last_layers(target, target_params)

    def last_layers(self, target: Decoder, target_params: Any) -> dict[str, Any]:
        """The target's last layers, with its deepest tap as what they see of the text. ValueError if it has too few."""
        if self.layers > target.layers:
            raise ValueError(f"layers is {self.layers}, the target has {target.layers}; it cannot start from it")
        e, m, layers = target.width, len(self.taps), target_params["layers"][-self.layers :]
        deepest = jnp.pad(jnp.eye(e, dtype=target.matrix_dtype), ((0, 0), ((m - 1) * e, 0)))
        taken = {"layers": layers, "hidden_norm": layers[-1]["attn_norm"], "norm": target_params["norm"]}
        return {"fc": deepest} | jax.tree.map(jnp.copy, taken)

    def fuse(self, ctx: Context, params: Any, features: Float[Array, "B T M E"]) -> Float[Array, "B T E"]:
        """The tapped states as one, normed: what every layer's keys and values of the text are made of."""
        joined = linear(features.reshape(*features.shape[:2], -1), params["fc"]).astype(features.dtype)
        return rms_norm(joined, params["hidden_norm"], self.model(ctx.target).norm_eps)

    def keys_and_values(
        self, ctx: Context, params: Any, features: Float[Array, "B T M E"], positions: Int[Array, "B T"]
    ) -> list[KV]:
        """What tokens with these tapped states are to each layer's queries."""
        model, context = self.model(ctx.target), self.fuse(ctx, params, features)
        angles = model.rope.angles(positions, model.head_width)
        return [model.keys_and_values(p, context, angles) for p in params["layers"]]

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

    def told(self, numbers: Float[Array, "... r"], slot: Int[Array, "..."]) -> Float[Array, "... r"]:
        """What the Markov head makes its bias of: nothing at the slots that it leaves alone."""
        return jnp.where((slot >= self.uncorrected)[..., None], numbers, 0.0)

    def told_of_text(
        self, ctx: Context, params: Any, previous: Int[Array, "B A N"], hidden: Float[Array, "B A N E"]
    ) -> Float[Array, "B A N r"] | None:
        """`told` along blocks whose tokens are known: `previous` are those before each slot. None without a head."""
        if self.markov == "none":
            return None
        return self.told(markov_block(ctx, params["markov"], previous, hidden), jnp.arange(self.length))

    def trust_of_text(
        self, params: Any, previous: Int[Array, "B A N"], hidden: Float[Array, "B A N E"]
    ) -> Float[Array, "B A N"]:
        """The confidence's logits; where `confidence_stops`, its loss trains the head alone."""
        if self.confidence_stops:
            params = params | {"markov": lax.stop_gradient(params.get("markov", {}))}
            hidden = lax.stop_gradient(hidden)
        return confidence_logit(params, previous, hidden)

    def empty(self, target: Decoder, batch: int, capacity: int) -> Cache:
        return self.model(target).empty_cache(batch, capacity)

    def observe(self, ctx: Context, params: Any, state: Cache, seen: Committed, scratch: Any = None) -> Cache:
        """Every layer's keys and values of what was committed; the block's own are kept nowhere."""
        layers = self.keys_and_values(ctx, params, seen.features, seen.positions)
        path = jnp.broadcast_to(jnp.arange(seen.tokens.shape[1]), seen.tokens.shape)
        return commit(state, Staged(layers, seen.positions), path, seen.count)

    def propose(self, ctx: Context, params: Any, state: Cache) -> tuple[Draft, None]:
        """One pass for all slots; with a Markov head, then a short step for each."""
        hidden = self.slots(ctx, params, state)
        places, q = self.choose(ctx, params, hidden)
        draft = chain_of(ctx, places, q, params["head"].get("ids"))
        if self.confidence:
            trust = confidence_logit(params, draft.tokens[:, :-1], hidden)
            draft = draft.replace(survival=chain_survival(trust, self.temperatures))
        return draft, None

    def choose(
        self, ctx: Context, params: Any, hidden: Float[Array, "B N E"]
    ) -> tuple[Int[Array, "N B"], Float[Array, "N B D"] | None]:
        """A token for each slot, as a place in the draft vocabulary, and the law it was drawn from (None: argmax)."""
        ids, head = params["head"].get("ids"), params.get("markov")
        choose = choose_sampled if self.sampled and not ctx.warp.greedy else choose_greedy
        by_slot = lambda x: jnp.swapaxes(x, 0, 1)
        logits, numbers = by_slot(self.head.logits(ctx, params["head"], hidden)), jnp.arange(self.length)
        if head is None:
            return jax.vmap(lambda logits, number: choose(logits, ctx, number + 1))(logits, numbers)

        def behind(before: tuple[Array, Array], slot: tuple[Array, Array, Array]) -> tuple[Any, Any]:
            previous, memory = before
            logits, hidden, number = slot
            memory, told = markov_step(ctx, head, memory, previous, hidden)
            corrected = logits + product(self.told(told, number), head["after"])
            place, q = choose(among(logits, corrected, self.candidates), ctx, number + 1)
            return (place if ids is None else ids[place], memory), (place, q)

        start = ctx.anchor, markov_start(head, ctx.anchor.shape)
        return lax.scan(behind, start, (logits, by_slot(hidden), numbers))[1]

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
        """Blocks behind random anchors, drawn anew by `key`: of each objective Σ w · loss / Σ w over all their slots.

        j counts from the first token that is not shown. A block is learnt up to its first token that is not learnt from. The
        target's law is cut to the draft vocabulary and renormalised; tokens outside are not learnt as text, and to D-PACE
        they have probability 0. τ is that of blocks that are shown none.
        """
        place, drawn = self.draw_anchors(trace, key)
        visible = self.draw_prefixes(place.shape, jax.random.fold_in(key, 1))
        labels, weight = tokens_behind(trace, place, drawn, self.length)
        behind = jnp.arange(self.length) - visible[..., None]
        weight *= behind >= 0
        label, inside = own_tokens(params["head"].get("ids"), labels)
        hidden = self.run_blocks(ctx, params, trace, place, visible)
        previous = jnp.concatenate([rows(trace.batch.tokens, place)[..., None], labels[..., :-1]], -1)
        told = self.told_of_text(ctx, params, previous, hidden)
        trust = self.trust_of_text(params, previous, hidden) if self.confidence else None
        objectives = self.objectives(ctx)
        theirs = self.teachers(trace, place) if objectives.keys() - TEXTS else None
        slots = Slots(hidden, told, trust, theirs, label)
        wanted = objectives.keys() if self.dpace is None else objectives.keys() | {"text"}
        manner = Manner(self.sampled, self.candidates, self.soft_temperature)
        out = judge_slots(ctx, self.head, params, slots, weight, wanted, manner)
        if self.dpace is None:
            by_slot = weight * jnp.exp(-jnp.maximum(behind, 0) / (self.decay or math.inf))
        else:
            by_slot = dpace_weights(jnp.exp(-out["text"]) * inside, weight, self.dpace)
        loss = jnp.float32(0)
        for name, scale in objectives.items():
            loss += scale * weighted_mean(out[name], by_slot * inside if name in TEXTS else by_slot)
        ranks = jnp.where(inside, out["rank"], ctx.target.vocab)
        return loss, chain_figures(jnp.moveaxis(ranks, -1, 0), jnp.moveaxis(weight, -1, 0))

    def objectives(self, ctx: Context) -> dict[str, Float[Array, ""] | float]:
        """What is minimised, each with its weight at this step of training."""
        weights: dict[str, Any] = {name: getattr(self, name) for name in ("text", *DISTANCES, "choice", "confidence")}
        weights = {name: weight for name, weight in weights.items() if weight}
        if self.text and self.base_steps:
            base = jnp.clip(1 - ctx.step / self.base_steps, 0, 1)
            weights |= {"base": self.text * base, "text": self.text * (1 - base)}
        if self.candidates and self.text:
            weights["base"] = weights.pop("text")
        return weights

    def draw_anchors(self, trace: Trace, key: Key[Array, ""]) -> tuple[Int[Array, "B A"], Float[Array, "B A"]]:
        """`anchored.draw_anchors`."""
        return draw_anchors(trace, self.anchors, key)

    def draw_prefixes(self, shape: tuple[int, ...], key: Key[Array, ""]) -> Int[Array, "B A"]:
        """How many tokens behind its anchor each block is shown: l < `length` with a probability ∝ β^l."""
        if self.visible_prefix is None:
            return jnp.zeros(shape, jnp.int32)
        return jax.random.categorical(key, jnp.arange(self.length) * math.log(self.visible_prefix), shape=shape)

    def run_blocks(
        self, ctx: Context, params: Any, trace: Trace, place: Int[Array, "B A"], visible: Int[Array, "B A"] | None = None
    ) -> Float[Array, "B A N E"]:
        """`slots` of the block behind each anchor, which sees its document before it: all blocks in one pass."""
        batch, context = trace.batch, self.keys_and_values(ctx, params, trace.features, trace.batch.positions)
        visible = jnp.zeros_like(place) if visible is None else visible
        behind = jnp.arange(1 if self.visible_prefix is None else self.length)
        text = rows(batch.tokens, jnp.minimum(place[..., None] + behind, batch.tokens.shape[1] - 1))
        x = self.inputs(ctx, params, text, visible)
        out = run_blocks(self.model(ctx.target), params, x, batch, place, context, self.slots_seen()[0])
        return out[:, :, -self.length :]

    def teachers(self, trace: Trace, place: Int[Array, "B A"]) -> Float[Array, "B A N E"]:
        """The target's final state that predicts each slot's token."""
        before = jnp.minimum(place[..., None] + jnp.arange(self.length), trace.hidden.shape[1] - 1)
        return rows(trace.hidden, before)

    @classmethod
    def tiny(cls, target: Decoder) -> "Block":
        """With a draft vocabulary, a recurrence and a confidence head."""
        head = DraftHead(20)
        return cls((0, target.layers - 1), 3, 2, markov="rnn", rank=4, sampled=True, head=head, confidence=1.0, anchors=8)
