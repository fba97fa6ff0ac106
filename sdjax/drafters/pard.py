"""PARD: an independent language model that drafts its chain in one pass (An et al. 2025, arXiv:2504.18583).

Behind the anchor stand masks, one for each draft but the first; attention is causal, as in any language model, and each
row predicts the next token. PARD-2 (arXiv:2605.08632) trains on 0.1 CE(token) + 1.0 CE(target's law) instead of the tokens
alone.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from sdjax.core.cache import Cache
from sdjax.core.linear import table_rows
from sdjax.core.spec import initialise, normal
from sdjax.core.types import Committed, Context, Draft, Trace
from sdjax.drafters.base import check_mask_token
from sdjax.drafters.chain import draft_at_once
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.head import DraftHead
from sdjax.drafters.mask_chains import Chains, Drop, Rows, chain_loss, check_chains, draw_chains, run_chains
from sdjax.targets.decoder import Decoder, Tap, causal_mask, rms_norm


@dataclass(frozen=True)
class Pard:
    """Drafts a chain of `length` tokens with `model` behind the committed tokens and `length` - 1 masks.

    All masks are one row: that of `mask_token` in the model's embedding, as published, or a learnt vector of its own
    (None), which a frozen embedding needs. Where not `sampled`, drafts are argmaxes at any temperature. No parameter
    depends on `length`: what was trained on long chains drafts shorter ones. `head` is DraftModel's. Trained on
    `text` · CE(token) + `soft` · CE(target's law).

    The released code feeds new tokens and masks in one pass; here `observe` runs the new tokens, and `propose` the anchor
    and the masks, whose keys and values are kept nowhere.
    """

    model: Decoder
    length: int = 8
    sampled: bool = False
    head: DraftHead = DraftHead()
    mask_token: int | None = None
    drop: Drop = Drop()
    text: float = 1.0
    soft: float = 0.0
    taps: ClassVar[tuple[Tap, ...]] = ()
    is_chain: ClassVar[bool] = True

    def __post_init__(self):
        check_chains(self.length, self.text, self.soft)
        if any(self.model.windows):
            raise ValueError(f"the model's windows are {self.model.windows}; masks are trained with all positions in sight")
        check_mask_token(self.mask_token, self.model)

    @property
    def depth(self) -> int:
        return self.length

    @property
    def nodes(self) -> int:
        return self.length + 1

    @property
    def plain(self) -> DraftModel:
        """The same model, drafting token by token."""
        return DraftModel(self.model, self.length, head=self.head)

    def own_mask(self) -> dict[str, Any]:
        """The spec of a mask that is none of the embedding's rows."""
        return {"mask": replace(self.model.specs()["norm"], init=normal())} if self.mask_token is None else {}

    def specs(self, target: Decoder) -> Any:
        """DraftModel's, and {mask} where it is none of the embedding's rows."""
        return self.plain.specs(target) | self.own_mask()

    def initial(self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]) -> Any:
        """DraftModel's; a mask of its own is drawn."""
        return self.plain.initial(target, target_params, counts, key) | initialise(self.own_mask(), key)

    def mask(self, params: Any) -> Float[Array, "1 1 E"]:
        """What stands in the place of a token's embedding."""
        row = params["mask"] if self.mask_token is None else table_rows(params["embed"], jnp.int32(self.mask_token))
        return row.astype(self.model.dtype)[None, None]

    def empty(self, target: Decoder, batch: int, capacity: int) -> Cache:
        return self.model.empty_cache(batch, capacity)

    def observe(self, ctx: Context, params: Any, state: Cache, seen: Committed, scratch: None = None) -> Cache:
        """Runs the committed tokens, of which the drafted ones never ran: masks stood in their place."""
        return self.plain.observe(ctx, params, state, seen)

    def propose(self, ctx: Context, params: Any, state: Cache) -> tuple[Draft, None]:
        anchor = self.model.embed(params, ctx.anchor[:, None])
        masks = jnp.broadcast_to(self.mask(params), (len(anchor), self.length - 1, anchor.shape[-1]))
        positions = ctx.p[:, None] + jnp.arange(self.length)
        x = jnp.concatenate([anchor, masks], 1)
        hidden = self.model.forward(params, x, positions, state, causal_mask(self.length)).hidden
        return draft_at_once(ctx, self.logits(ctx, params, hidden), self.sampled, self.plain.ids(params)), None

    def logits(self, ctx: Context, params: Any, hidden: Float[Array, "... E"]) -> Float[Array, "... D"]:
        """DraftModel's."""
        return self.plain.logits(ctx, params, hidden)

    def run_slots(
        self, ctx: Context, params: Any, trace: Trace, place: Int[Array, "B T"], chains: Chains
    ) -> Float[Array, "B S E"]:
        """The final states of all slots, where chain i of a row hangs on the token at place[:, i]."""
        first = params["layers"][0]["attn_norm"]
        text, mask = (
            Rows(x, rms_norm(x, first, self.model.norm_eps))
            for x in (self.model.embed(params, trace.batch.tokens), self.mask(params))
        )
        hidden = run_chains(self.model, params["layers"], text, mask, trace.batch, place, chains)
        return rms_norm(hidden, params["norm"], self.model.norm_eps)

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Next-token prediction of the text and of the masks behind it, averaged over all slots that are kept (§3.3)."""
        chains = Chains(self.drop.counts(trace.batch.tokens.shape[1], self.length))
        place, weight = draw_chains(self.drop, chains, trace, key, lag=0)
        hidden = self.run_slots(ctx, params, trace, place, chains)
        head = {} if self.head == DraftHead() else params["head"]  # else it is the model's own matrix
        at = chains.places(place, by=0), weight
        logits = lambda hidden: self.logits(ctx, params, hidden)
        return chain_loss(ctx, self.head, head, logits, trace, hidden, at, chains, self.text, self.soft)

    @classmethod
    def tiny(cls, target: Decoder) -> "Pard":
        """Sampled, with a head of few tokens."""
        model = replace(target, layers=1, windows=())
        return cls(model, length=3, sampled=True, head=DraftHead(target.vocab // 2, trained=True))
