"""An independent, smaller language model as the drafter (Leviathan et al. 2022, arXiv:2211.17192; Chen et al. 2023)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from sdjax.core.cache import Cache, Staged, commit
from sdjax.core.linear import product
from sdjax.core.spec import initialise
from sdjax.core.types import Committed, Context, Draft, Trace
from sdjax.drafters.base import check_length
from sdjax.drafters.chain import draft_chain, stage_token
from sdjax.drafters.head import DraftHead, own_tokens
from sdjax.drafters.losses import (
    cross_entropy,
    flatten,
    forward_kl,
    hybrid_lk,
    in_chunks,
    log_acceptance,
    reverse_kl,
    total_variation,
    weighted_mean,
)
from sdjax.targets.decoder import Decoder, Tap, causal_mask, truncate_params
from sdjax.targets.packed import trace_of

DISTANCES = {
    "forward-kl": forward_kl,
    "reverse-kl": reverse_kl,
    "tv": total_variation,
    "log-acceptance": log_acceptance,
    "hybrid-lk": hybrid_lk,
}


@dataclass(frozen=True)
class DraftModel:
    """Drafts a chain of `length` tokens with `model`, drawn from its own law, or greedily where not `sampled`.

    Its keys and values depend on tokens alone, so `observe` commits the accepted rows of its scratch. `objective` is
    what it is trained on: the texts themselves, or the target's law at every position of them. `head` is read in the
    place of the model's own; it is as wide as the model, and starts as rows of its matrix.
    """

    model: Decoder
    length: int = 4
    sampled: bool = True
    head: DraftHead = DraftHead()
    objective: Literal["text", "forward-kl", "reverse-kl", "tv", "log-acceptance", "hybrid-lk"] = "forward-kl"
    taps: ClassVar[tuple[Tap, ...]] = ()
    is_chain: ClassVar[bool] = True

    def __post_init__(self):
        check_length(self.length)

    @property
    def depth(self) -> int:
        return self.length

    @property
    def nodes(self) -> int:
        return self.length + 1

    def specs(self, target: Decoder) -> Any:
        """The model's; a head of its own stands under `head`."""
        if self.model.vocab != target.vocab:
            raise ValueError(
                f"the draft model's vocabulary has {self.model.vocab} entries, the target's {target.vocab}; "
                "drafts are exchanged as token ids, so both models must share one tokenizer"
            )
        return self.model.specs() | self.under_head(self.head.specs(self.model))

    def under_head(self, own: dict[str, Any]) -> dict[str, Any]:
        """{head: own}, but for a head that is the model's."""
        return {"head": own} if own else {}

    def logits(self, ctx: Context, params: Any, hidden: Float[Array, "... E"]) -> Float[Array, "... D"]:
        """float32, over the draft vocabulary (D tokens), or the whole."""
        if self.head == DraftHead():
            return self.model.unembed(params, hidden)
        return self.head.logits(ctx, params["head"], hidden)

    def ids(self, params: Any) -> Int[Array, " D"] | None:
        """The draft vocabulary's tokens; None: all."""
        return None if self.head.size is None else params["head"]["ids"]

    def empty(self, target: Decoder, batch: int, capacity: int) -> Cache:
        return self.model.empty_cache(batch, capacity)

    def observe(self, ctx: Context, params: Any, state: Cache, seen: Committed, scratch: Staged | None = None) -> Cache:
        if scratch is not None:
            return commit(state, scratch, seen.node, seen.count)
        x = self.model.embed(params, seen.tokens)
        width = seen.tokens.shape[1]
        out = self.model.forward(params, x, seen.positions, state, causal_mask(width))
        return commit(state, out.staged, jnp.broadcast_to(jnp.arange(width), seen.tokens.shape), seen.count)

    def propose(self, ctx: Context, params: Any, state: Cache) -> tuple[Draft, Staged]:
        """The chain, and one more pass without logits: should all drafts be accepted, the last one's row is needed."""
        logits = lambda hidden: self.logits(ctx, params, hidden)
        draft, scratch = draft_chain(self.model, params, state, ctx, self.length, self.sampled, logits, self.ids(params))
        _, scratch = stage_token(self.model, params, state, scratch, draft.tokens[:, -1], self.length)
        return draft, scratch

    def initial(self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]) -> Any:
        """The target's first layers where the shapes allow it, else drawn anew; a head of its own has rows of the model's."""
        if replace(target, layers=self.model.layers, windows=self.model.windows) == self.model:
            params = jax.tree.map(jnp.copy, truncate_params(target_params, self.model.layers))
        elif self.head.size is None or self.head.trained:
            params = initialise(self.model.specs(), key)
        else:
            raise ValueError(
                "the draft model is drawn anew, as its shape is not the target's; a draft vocabulary that is not trained "
                "would keep random rows: take DraftHead(size, trained=True)"
            )
        return params | self.under_head(self.head.initial(self.model, params, counts))

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The draft model's law behind every token, against the next token or the target's law (arXiv:2310.08461).

        With a draft vocabulary the target's law is cut to it and renormalised, and tokens outside are not learnt as text.
        """
        labels, weight = trace.ahead(1)
        hidden = trace_of(self.model, params, trace.batch).hidden
        ids = self.ids(params)
        place, inside = own_tokens(ids, labels)
        judge = None if ids is None else self.head.teacher_rows(ctx, params["head"])

        def of_rows(rows: Any) -> tuple[Array, Array]:
            mine, theirs, place = rows
            logits, teacher = self.logits(ctx, params, mine), ctx.target.unembed(ctx.target_params, theirs)
            best, drafted = own_tokens(ids, jnp.argmax(teacher, -1))
            agrees = drafted & (jnp.argmax(logits, -1) == best)
            if self.objective == "text":
                return cross_entropy(logits, place), agrees.astype(jnp.float32)
            cut = teacher if judge is None else product(theirs, judge)
            return DISTANCES[self.objective](logits, cut), agrees.astype(jnp.float32)

        loss, agrees = in_chunks(of_rows, (flatten(hidden), flatten(trace.hidden), flatten(place)), flatten(weight))
        learnt = weight * inside if self.objective == "text" else weight
        return weighted_mean(loss, flatten(learnt)), {"agreement": weighted_mean(agrees, flatten(weight))}

    @classmethod
    def tiny(cls, target: Decoder) -> "DraftModel":
        """With a head of few tokens."""
        model = replace(target, layers=1, windows=target.windows[:1])
        return cls(model, length=3, head=DraftHead(target.vocab // 2, trained=True))
