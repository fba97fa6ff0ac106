"""An independent, smaller language model as the drafter (Leviathan et al. 2022, arXiv:2211.17192; Chen et al. 2023)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp

from sdjax.core.cache import Cache, Staged, commit
from sdjax.core.types import Committed, Context, Draft
from sdjax.drafters.chain import draft_chain, stage_token
from sdjax.targets.decoder import Decoder, Tap, causal_mask


@dataclass(frozen=True)
class DraftModel:
    """Drafts a chain of `length` tokens with `model`, drawn from its own law, or greedily where not `sampled`.

    Its keys and values depend on tokens alone, so `observe` commits the accepted rows of its scratch.
    """

    model: Decoder
    length: int = 4
    sampled: bool = True
    taps: ClassVar[tuple[Tap, ...]] = ()

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

    @classmethod
    def tiny(cls, target: Decoder) -> "DraftModel":
        return cls(replace(target, layers=1, windows=target.windows[:1]), length=3)
