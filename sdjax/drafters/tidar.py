"""TiDAR: the target drafts for itself, as a diffusion model, in the pass that verifies (arXiv:2511.08923).

A block of b tokens is the anchor and b - 1 drafts. Behind it, the pass holds b masks for every outcome: those for `a`
accepted drafts stand behind the a-th, see it and what is before it, and all of each other. The first of them stands at the
place of the bonus token, which is not known yet, and idles; the others are the next drafts. So a pass has b + b² rows, and
there is no other. What is emitted is the target's own text: the tuned target's, not that of the model it was made from.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from sdjax.core.cache import Staged
from sdjax.core.spec import Spec, initialise, normal
from sdjax.core.types import Batch, Committed, Context, Draft, Probes, Trace, rows
from sdjax.drafters.base import check_length
from sdjax.drafters.chain import chain_of, choose_greedy, choose_sampled
from sdjax.drafters.head import DraftHead
from sdjax.drafters.judge import chain_figures, judge_head
from sdjax.targets.decoder import Decoder, Tap, rms_norm


@dataclass(frozen=True)
class TiDAR:
    """Drafts a chain of `length` tokens from masks that the target ran in the step before.

    `layers` is the number of the target's layers. Where not `sampled`, drafts are argmaxes at any temperature. The state
    holds the masks' final states [B, length, E] behind the committed tokens: they depend on those before the anchor alone.
    """

    layers: int
    length: int = 7
    sampled: bool = False
    is_chain: ClassVar[bool] = True

    def __post_init__(self):
        check_length(self.length)
        if self.layers < 1:
            raise ValueError(f"layers is {self.layers}; set it to the number of the target's layers")

    @property
    def taps(self) -> tuple[Tap, ...]:
        """What each layer reads: in training, the text's keys and values are made of it."""
        return ("embed", *range(self.layers - 1))

    @property
    def depth(self) -> int:
        return self.length

    @property
    def nodes(self) -> int:
        return self.length + 1

    @property
    def block(self) -> int:
        """Masks of a block, and outcomes of a step: b."""
        return self.length + 1

    def specs(self, target: Decoder) -> dict[str, Spec]:
        """{mask}: the input of every mask; all else is the target's."""
        if target.layers != self.layers:
            raise ValueError(f"made for a target of {self.layers} layers, this one has {target.layers}; set layers to that")
        return {"mask": replace(target.specs()["norm"], init=normal())}

    def initial(
        self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]
    ) -> dict[str, Array]:
        return initialise(self.specs(target), key)

    def empty(self, target: Decoder, batch: int, capacity: int) -> Float[Array, "B D E"]:
        return jnp.zeros((batch, self.length, target.width), jnp.dtype(target.dtype))

    def observe(
        self, ctx: Context, params: Any, state: Float[Array, "B D E"], seen: Committed, scratch: Any = None
    ) -> Float[Array, "B D E"]:
        """The block of the outcome that came true; at prefill, the target runs one behind what is committed so far."""
        if seen.probes is None:
            blocks = self.first_block(ctx, params)[:, None]
            chosen = blocks[:, 0]
        else:
            blocks = seen.probes.reshape(len(ctx.p), self.block, self.block, -1)
            chosen = rows(blocks, jnp.maximum(seen.count - 1, 0)[:, None])[:, 0]
        return jnp.where(seen.count[:, None, None] > 0, chosen[:, 1:], state)

    def first_block(self, ctx: Context, params: Any) -> Float[Array, "B b E"]:
        """Masks behind the cache, in a pass of their own."""
        slots = jnp.arange(self.block)
        x, positions = self.masks(params, len(ctx.p), self.block), ctx.p[:, None] + slots
        see_all = jnp.ones((1, self.block, self.block), bool)
        return ctx.target.forward(ctx.target_params, x, positions, ctx.cache, see_all).hidden

    def masks(self, params: Any, *shape: int) -> Float[Array, "B T E"]:
        return jnp.broadcast_to(params["mask"], (*shape, len(params["mask"])))

    def propose(self, ctx: Context, params: Any, state: Float[Array, "B D E"]) -> tuple[Draft, None]:
        """Each slot for itself: the argmax, or a draw; and masks for every outcome."""
        choose = choose_sampled if self.sampled and not ctx.warp.greedy else choose_greedy
        slots = jnp.swapaxes(ctx.target.unembed(ctx.target_params, state), 0, 1)
        depths = jnp.arange(self.length) + 1
        places, q = jax.vmap(lambda logits, depth: choose(logits, ctx, depth))(slots, depths)
        return chain_of(ctx, places, q, None).replace(probes=self.probes(params, len(ctx.p))), None

    def probes(self, params: Any, batch: int) -> Probes:
        """The b² masks, outcome by outcome: slot j behind `a` accepted drafts is a + 1 + j places from the anchor."""
        outcome, slot = np.divmod(np.arange(self.block**2), self.block)
        sees = np.concatenate([np.arange(self.block) <= outcome[:, None], outcome == outcome[:, None]], 1)
        spread = lambda x: jnp.broadcast_to(jnp.asarray(x), (batch, *x.shape))
        return Probes(self.masks(params, batch, len(slot)), spread((outcome + 1 + slot).astype(np.int32)), spread(sees))

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """CE(mask at t, token t), unweighted: the labels are not shifted. The target's own loss is not in it.

        The paper minimises (α · AR + this) / (1 + α): `Joint` with a weight of 1 / α, but for a constant factor.
        """
        hidden = self.run_masks(ctx, params, trace)
        loss, ranks, _ = judge_head(ctx, DraftHead(), {}, hidden, trace, 0, text=1.0)
        first = trace.batch.positions % self.block == 0
        slots = range(1, self.block)
        seen = jnp.stack([first * trace.ahead(j)[1] for j in slots])
        return loss, chain_figures(jnp.stack([jnp.roll(ranks, -j, 1) for j in slots]), seen)

    def run_masks(self, ctx: Context, params: Any, trace: Trace) -> Float[Array, "B T E"]:
        """The sequence doubled: behind the text, a mask for each of its places, all through the target's layers.

        The text's half is the trace: what the masks see of it is made of its states.
        """
        target, batch = ctx.target, trace.batch
        angles = target.rope.angles(batch.positions, target.head_width)

        def text(p: dict[str, Array], state: Array) -> Any:
            return target.keys_and_values(p, rms_norm(state, p["attn_norm"], target.norm_eps), angles)

        states = jnp.moveaxis(trace.features, 2, 0)
        layers = [text(p, state) for p, state in zip(ctx.target_params["layers"], states, strict=True)]
        x, mask = self.masks(params, *batch.tokens.shape), self.doubled_mask(batch)
        before = Staged(layers, batch.positions)
        return target.forward(ctx.target_params, x, batch.positions, ctx.cache, mask, scratch=before).hidden

    def doubled_mask(self, batch: Batch) -> Bool[Array, "B T U"]:
        """Each mask sees its document's text before its block, then the masks of its block (U = 2T); blocks tile documents."""
        same = batch.segments[:, :, None] == batch.segments[:, None]
        block = batch.positions // self.block
        of_mask, of_key = block[:, :, None], block[:, None]
        return jnp.concatenate([same & (of_key < of_mask), same & (of_key == of_mask)], 2)

    @classmethod
    def tiny(cls, target: Decoder) -> "TiDAR":
        return cls(layers=target.layers, length=3, sampled=True)
