"""The walk: the target's own choice at each node decides; go to the child that equals it, emit it where none does.

With choices keyed by the position of the token they emit, speculative sampling equals plain sampling token for
token, for every tree, drafter and law of the draft. For one-hot drafts no lossless rule accepts more.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.sampling import target_choice
from sdjax.core.types import Context, Draft, Law, Verdict
from sdjax.verify.base import verdict_at


@struct.dataclass
class Stroll:
    """Where one sequence's walk stands; `bonus` is the choice that no child equalled, once done."""

    node: Int[Array, ""]
    bonus: Int[Array, ""]
    done: Bool[Array, ""]


@dataclass(frozen=True)
class Walk:
    """Lossless for every law, since it never asks how a draft was drawn."""

    laws: ClassVar[frozenset[Law]] = frozenset(Law)
    chains_only: ClassVar[bool] = False
    lossless: ClassVar[bool] = True

    def start(self, xp: Any) -> Stroll:
        return Stroll(xp.int32(0), xp.int32(0), xp.bool_(False))

    def follow(self, xp: Any, draft: Any, stroll: Stroll, choice: Any) -> Stroll:
        """One step of one sequence: to the first present child that equals the choice, or to the end."""
        match = (draft.parent == stroll.node) & draft.valid & (draft.tokens == choice)
        found = match.any()
        return Stroll(xp.where(found, match.argmax(), stroll.node).astype(xp.int32), xp.int32(choice), ~found)

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        """Draws at the visited nodes only; nothing of size N × V is made."""

        def one(draft: Draft, logits: Float[Array, "N V"], seed: Array, p: Array) -> Stroll:
            def step(stroll: Stroll) -> Stroll:
                position = p + draft.depth[stroll.node] + 1
                return self.follow(jnp, draft, stroll, target_choice(logits[stroll.node], ctx.warp, seed, position))

            return jax.lax.while_loop(lambda stroll: ~stroll.done, step, self.start(jnp))

        end = jax.vmap(one)(draft, logits, ctx.seed, ctx.p)
        return verdict_at(draft, end.node, end.bonus)
