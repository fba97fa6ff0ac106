"""P-EAGLE: an EAGLE-3 head that drafts its chain in one pass (Hui et al. 2026, arXiv:2602.01469).

Rows are EAGLE-3's: row t holds the target's states at t and token t + 1, and predicts token t + 2. Where EAGLE-3 feeds its
own output back, here one learnt vector stands for the states that are not known and another for the token; the former is
as wide as the tapped states, and goes through the same matrix. More layers than EAGLE-3's one make up for it.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from sdjax.core.attention import cache_mask
from sdjax.core.cache import Cache, Staged
from sdjax.core.spec import Spec, initialise, normal
from sdjax.core.types import Committed, Context, Draft, Trace
from sdjax.drafters.base import check_mask_token, check_taps
from sdjax.drafters.chain import draft_at_once
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.eagle_layer import State, add_mlp, empty_state, extend, layer_for
from sdjax.drafters.head import DraftHead
from sdjax.drafters.mask_chains import Chains, Drop, Rows, chain_loss, check_chains, draw_chains, run_chains
from sdjax.drafters.recursion import Cell
from sdjax.targets.decoder import Decoder, Tap, causal_mask, known_after
from sdjax.trees.tree import Tree


@dataclass(frozen=True)
class PEagle:
    """Drafts a chain in one pass: the last row's own prediction, and masks behind it for the tokens that follow.

    The first layer and its inputs are Eagle3's; the other layers are plain ones. Trained on `text` · CE(token) + `soft` ·
    CE(target's law).
    """

    taps: tuple[Tap, ...]
    """The target's states that are joined, low to high: behind layer i (from 0), "embed" or "final"."""
    length: int = 8
    """Tokens of a draft, masks and one; no parameter depends on it."""
    layers: int = 4
    """Layers of the drafter."""
    sampled: bool = False
    """Whether tokens are drawn; else they are argmaxes at any temperature."""
    head: DraftHead = DraftHead(trained=True)
    """The vocabulary that it drafts in."""
    mask_token: int | None = None
    """The token whose row of the target's embedding the mask starts as, and stands for in published folders; None: drawn."""
    drop: Drop = Drop()
    """How many chains of masks training keeps, by depth."""
    text: float = 0.0
    """Weight of the loss on the text's tokens."""
    soft: float = 1.0
    """Weight of the loss on the target's law."""
    norm_before_residual: bool = False
    """Whether the first layer adds to the normed state."""
    fc_norm: bool = False
    """Whether each tapped state is normed before they are joined, after norm_before_fc."""
    norm_before_fc: bool = False
    """Whether all tapped states are normed before they are joined, as one vector."""
    layer: Decoder | None = None
    """The shape of its layers; None: Llama layers as wide as the target's."""
    start: Literal["drawn", "target"] = "drawn"
    """Where training begins: weights drawn anew, or the target's last layers behind its deepest tap."""
    is_chain: ClassVar[bool] = True

    def __post_init__(self):
        check_chains(self.length, self.text, self.soft)
        if self.layers < 1:
            raise ValueError(f"layers is {self.layers}; it must be at least 1")
        check_taps(self.taps)

    @property
    def depth(self) -> int:
        return self.length

    @property
    def nodes(self) -> int:
        return self.length + 1

    @property
    def first(self) -> Eagle3:
        """The head whose layer is the first one here."""
        shared = ("norm_before_residual", "fc_norm", "norm_before_fc", "layer", "start", "head")
        return Eagle3(self.taps, Tree.chain(self.length), **{name: getattr(self, name) for name in shared})

    def model(self, target: Decoder) -> Decoder:
        """The shape of the layers, but for the width that the first one's attention reads."""
        return replace(layer_for(target, self.layer), layers=self.layers)

    def specs(self, target: Decoder) -> dict[str, Any]:
        """Eagle3's, the `layers` behind its own, and the masks: of a token, and of the states at all taps."""
        check_mask_token(self.mask_token, target)
        head, plain = self.first.specs(target), self.model(target).specs()
        states = Spec((len(self.taps), target.width), jnp.dtype(target.dtype), ("tap", None), normal())
        return head | {"layers": plain["layers"][1:], "mask": replace(plain["norm"], init=normal()), "mask_hidden": states}

    def initial(
        self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]
    ) -> dict[str, Any]:
        """Drawn anew, but for the head, the mask of a token, and what `start` takes from the target."""
        params = initialise(self.specs(target), key) | {"head": self.head.initial(target, target_params, counts)}
        if self.mask_token is not None:
            params["mask"] = target.embed(target_params, jnp.array([[self.mask_token]]))[0, 0]
        return params if self.start == "drawn" else params | self.last_layers(target, target_params, params)

    def last_layers(self, target: Decoder, target_params: Any, params: Any) -> dict[str, Any]:
        """The target's last layers; the first of them reads as Eagle3's does. ValueError where shapes or counts differ."""
        if self.layers > target.layers:
            raise ValueError(f"layers is {self.layers}, the target has {target.layers}; it cannot start from it")
        kept = target_params["layers"][-self.layers :]
        first = self.first.last_layer(target, target_params | {"layers": kept[:1]}, params)
        rest = zip(params["layers"], kept[1:], strict=True)
        return first | {"layers": [{name: jnp.copy(theirs[name]) for name in own} for own, theirs in rest]}

    def empty(self, target: Decoder, batch: int, capacity: int) -> State:
        return empty_state(self.model(target), batch, capacity)

    def observe(self, ctx: Context, params: Any, state: State, seen: Committed, scratch: None = None) -> State:
        """Rows made of the target's states; masks leave none."""

        def run(tokens: Array, hidden: Array, positions: Array, mask: Array, scratch: Any) -> tuple[Array, Staged]:
            row = Rows(*self.first.pair(ctx, params, tokens, hidden))
            return self.run_rows(ctx, params, row, positions, state.cache, mask)

        cell = Cell(run, lambda hidden: self.logits(ctx, params, hidden), lag=1)
        return extend(cell, state, self.first.fuse(ctx, params, seen.features), seen)

    def run_rows(
        self, ctx: Context, params: Any, row: Rows, positions: Int[Array, "B T"], cache: Cache, mask: Bool[Array, "b T T"]
    ) -> tuple[Float[Array, "B T E"], Staged]:
        """All layers on rows behind the cache: their outputs before the final norm, and what they would add to it."""
        model, masks = self.model(ctx.target), (cache_mask(cache.length, cache.capacity, positions, None), mask)
        angles = model.rope.angles(positions, model.head_width)
        mixed, kv = model.attention(params["layer"], row.x, angles, cache.layers[0], None, masks)
        x, staged = add_mlp(model, params["layer"], row.residual + mixed), [kv]
        for p, before in zip(params["layers"], cache.layers[1:], strict=True):
            x, kv = model.block(p, x, angles, before, None, masks)
            staged.append(kv)
        return x, Staged(staged, known_after(positions, x[:, :1, 0]))

    def mask_row(self, ctx: Context, params: Any) -> Rows:
        """What the first layer is given of every mask, [1 1 ...]."""
        hidden = self.first.fuse(ctx, params, params["mask_hidden"][None, None])
        return Rows(*self.first.join(ctx, params, params["mask"][None, None], hidden))

    def propose(self, ctx: Context, params: Any, state: State) -> tuple[Draft, None]:
        """The last row, which has consumed the anchor, stands at p - 1; the masks behind it, in one pass."""
        masks = self.length - 1
        positions = ctx.p[:, None] + jnp.arange(masks)
        row = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(ctx.p), masks, x.shape[-1])), self.mask_row(ctx, params))
        hidden, _ = self.run_rows(ctx, params, row, positions, state.cache, causal_mask(masks))
        logits = self.logits(ctx, params, jnp.concatenate([state.root[:, None], hidden], 1))
        return draft_at_once(ctx, logits, self.sampled, params["head"].get("ids")), None

    def logits(self, ctx: Context, params: Any, hidden: Float[Array, "... E"]) -> Float[Array, "... D"]:
        """Over the draft vocabulary, from a row's output."""
        return self.first.logits(ctx, params, hidden)

    def run_slots(
        self, ctx: Context, params: Any, trace: Trace, place: Int[Array, "B T"], chains: Chains
    ) -> Float[Array, "B S E"]:
        """The outputs of all slots before the final norm, where chain i of a row hangs on the row at place[:, i]."""
        fused = self.first.fuse(ctx, params, trace.features)
        text = Rows(*self.first.pair(ctx, params, trace.ahead(1)[0], fused))
        layers = [params["layer"], *params["layers"]]
        return run_chains(self.model(ctx.target), layers, text, self.mask_row(ctx, params), trace.batch, place, chains)

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Every row's prediction and those of the masks behind it, averaged over all slots that are kept."""
        chains = Chains(self.drop.counts(trace.batch.tokens.shape[1], self.length))
        place, weight = draw_chains(self.drop, chains, trace, key, lag=1)
        hidden = self.run_slots(ctx, params, trace, place, chains)
        at = chains.places(place, by=1), weight
        logits = lambda hidden: self.logits(ctx, params, hidden)
        return chain_loss(ctx, self.head, params["head"], logits, trace, hidden, at, chains, self.text, self.soft)

    @classmethod
    def tiny(cls, target: Decoder) -> "PEagle":
        """With a draft vocabulary and a second layer."""
        taps = (0, target.layers // 2, target.layers - 1)
        return cls(taps, length=3, layers=2, sampled=True, head=DraftHead(20, trained=True))
