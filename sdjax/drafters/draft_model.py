"""An independent, smaller language model as the drafter (Leviathan et al. 2022, arXiv:2211.17192; Chen et al. 2023)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from sdjax.core.cache import Cache, Staged, commit
from sdjax.core.spec import initialise
from sdjax.core.types import Committed, Context, Draft, Trace
from sdjax.drafters.base import check_length
from sdjax.drafters.chain import draft_chain, stage_token
from sdjax.drafters.losses import cross_entropy, flatten, forward_kl, in_chunks, reverse_kl, total_variation, weighted_mean
from sdjax.targets.decoder import Decoder, Tap, causal_mask, truncate_params
from sdjax.targets.packed import trace_of


@dataclass(frozen=True)
class DraftModel:
    """Drafts a chain of `length` tokens with `model`, drawn from its own law, or greedily where not `sampled`.

    Its keys and values depend on tokens alone, so `observe` commits the accepted rows of its scratch. `objective` is
    what it is trained on: the texts themselves, or the target's law at every position of them.
    """

    model: Decoder
    length: int = 4
    sampled: bool = True
    objective: Literal["text", "forward-kl", "reverse-kl", "tv"] = "forward-kl"
    taps: ClassVar[tuple[Tap, ...]] = ()

    def __post_init__(self):
        check_length(self.length)

    @property
    def depth(self) -> int:
        return self.length

    @property
    def nodes(self) -> int:
        return self.length + 1

    def specs(self, target: Decoder) -> Any:
        if self.model.vocab != target.vocab:
            raise ValueError(
                f"the draft model's vocabulary has {self.model.vocab} entries, the target's {target.vocab}; "
                "drafts are exchanged as token ids, so both models must share one tokenizer"
            )
        return self.model.specs()

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
        draft, scratch = draft_chain(self.model, params, state, ctx, self.length, self.sampled)
        _, scratch = stage_token(self.model, params, state, scratch, draft.tokens[:, -1], self.length)
        return draft, scratch

    def initial(self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]) -> Any:
        """The target's first layers where the shapes allow it, else drawn anew."""
        if replace(target, layers=self.model.layers, windows=self.model.windows) != self.model:
            return initialise(self.specs(target), key)
        return jax.tree.map(jnp.copy, truncate_params(target_params, self.model.layers))

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The draft model's law behind every token, against the next token or the target's law (arXiv:2310.08461)."""
        distance = {"forward-kl": forward_kl, "reverse-kl": reverse_kl, "tv": total_variation}
        labels, weight = trace.ahead(1)
        hidden = trace_of(self.model, params, trace.batch).hidden

        def of_rows(rows: Any) -> tuple[Array, Array]:
            mine, theirs, labels = rows
            logits, teacher = self.model.unembed(params, mine), ctx.target.unembed(ctx.target_params, theirs)
            agrees = jnp.argmax(logits, -1) == jnp.argmax(teacher, -1)
            loss = cross_entropy(logits, labels) if self.objective == "text" else distance[self.objective](logits, teacher)
            return loss, agrees.astype(jnp.float32)

        loss, agrees = in_chunks(of_rows, (flatten(hidden), flatten(trace.hidden), flatten(labels)), flatten(weight))
        return weighted_mean(loss, flatten(weight)), {"agreement": weighted_mean(agrees, flatten(weight))}

    @classmethod
    def tiny(cls, target: Decoder) -> "DraftModel":
        return cls(replace(target, layers=1, windows=target.windows[:1]), length=3)
