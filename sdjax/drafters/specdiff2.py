"""SpecDiff-2: several drafts from one denoising pass, by a model taught long streaks (Sandler et al. 2025, arXiv:2511.00606).

Independent draws from the slots' laws cost nothing more than the first, so K chains are verified in one pass of the target.
The paper's own verdict on them is the rule `verify/selection.py`. The formulas are those of the paper as others report
them and of its authors' training code.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from sdjax.core.cache import Cache
from sdjax.core.types import Committed, Context, Draft, Law, Trace
from sdjax.drafters.head import DraftHead, in_target
from sdjax.drafters.masked_diffusion import MaskedDiffusion, diffusion_loss, expected_streak, whole_figures
from sdjax.targets.decoder import Decoder, Tap
from sdjax.trees.draw import Children, draw_children
from sdjax.trees.tree import Tree


@dataclass(frozen=True)
class SpecDiff2:
    """Draws `drafts` chains from the laws of `model`'s slots, flattened by `temperature` so that they differ.

    Chains are i.i.d., and every slot's law is told, so that rules for i.i.d. trees can judge them too. At temperature 0
    of the target they are the first slot's likeliest tokens, each followed by the other slots' argmaxes. Minimised is
    `text` · the diffusion loss - `streak` · the expected streak: the paper teaches streaks alone, to a model that another
    has trained. Its texts must then be the target's own.
    """

    model: MaskedDiffusion = MaskedDiffusion()
    drafts: int = 8
    temperature: float = 1.5
    text: float = 1.0
    streak: float = 1.0
    taps: ClassVar[tuple[Tap, ...]] = ()

    def __post_init__(self):
        if self.drafts < 1 or self.temperature <= 0:
            raise ValueError(f"drafts is {self.drafts}, temperature {self.temperature}; take at least one draft, above 0")
        if min(self.text, self.streak) < 0 or self.text + self.streak == 0:
            raise ValueError(f"text is {self.text}, streak {self.streak}; none may be negative, and one must be positive")

    @property
    def depth(self) -> int:
        return self.model.length

    @property
    def nodes(self) -> int:
        return 1 + self.drafts * self.model.length

    @property
    def is_chain(self) -> bool:
        return self.drafts == 1

    def specs(self, target: Decoder) -> dict[str, Any]:
        """The model's."""
        size = self.model.head.size or target.vocab
        if self.drafts > size:
            raise ValueError(f"{self.drafts} drafts cannot begin differently with {size} tokens; take fewer")
        return self.model.specs(target)

    def initial(
        self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]
    ) -> dict[str, Any]:
        return self.model.initial(target, target_params, counts, key)

    def empty(self, target: Decoder, batch: int, capacity: int) -> Cache:
        return self.model.empty(target, batch, capacity)

    def observe(self, ctx: Context, params: Any, state: Cache, seen: Committed, scratch: Any = None) -> Cache:
        return self.model.observe(ctx, params, state, seen)

    def propose(self, ctx: Context, params: Any, state: Cache) -> tuple[Draft, None]:
        """Every slot is drawn once for each chain; the row of q that its nodes share is their depth's."""
        logits = self.model.denoise(ctx, params, state) / self.temperature
        slots = [self.draw(ctx, logits[:, slot], slot + 1) for slot in range(self.depth)]
        joined = jax.tree.map(lambda *parts: jnp.concatenate(parts, 1), *slots)
        drawn = in_target(joined, params["head"].get("ids"), ctx.target.vocab)
        tokens = jnp.concatenate([ctx.anchor[:, None], drawn.tokens], 1)
        draft = chains(self.drafts, self.depth).draft(tokens, Law.ONE_HOT if drawn.q is None else Law.IID)
        row = jnp.where(draft.depth < self.depth, draft.depth, -1)
        return draft.replace(q=drawn.q, q_row=None if drawn.q is None else row), None

    def draw(self, ctx: Context, logits: Float[Array, "B D"], depth: int) -> Children:
        """One slot's token for each chain."""
        drawn = draw_children(logits[:, None], (self.drafts,), Law.IID, ctx, depth)
        if not ctx.warp.greedy or depth == 1:
            return drawn
        return drawn.replace(tokens=jnp.broadcast_to(drawn.tokens[:, :1], drawn.tokens.shape))

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The streak is that of a draft accepted with q(x), x being the target's text (the paper's Eq. 6)."""
        noised = self.model.noised(trace, key)
        guesses = self.model.guess(ctx, params, trace.batch, noised)
        streak = expected_streak(noised, guesses)
        loss = self.text * diffusion_loss(noised, guesses) - self.streak * streak
        return loss, whole_figures(noised, guesses) | {"streak": streak}

    @classmethod
    def tiny(cls, target: Decoder) -> "SpecDiff2":
        """With a draft vocabulary."""
        return cls(MaskedDiffusion(3, layers=1, head=DraftHead(20), anchors=8), drafts=2)


def chains(count: int, length: int) -> Tree:
    """`count` chains below the anchor, level by level."""
    return Tree.from_paths((k, *[0] * d) for k in range(count) for d in range(length))
