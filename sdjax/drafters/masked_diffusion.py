"""A small masked-diffusion language model that drafts a block in one denoising pass: what DiffuSpec and SpecDiff-2 share.

Masks stand behind the anchor, and the law of each is read off one pass (Sahoo et al. 2024, MDLM, arXiv:2406.07524; Nie et
al. 2025, LLaDA, arXiv:2502.09992). The published drafters are models of whole texts, in which every token sees those
behind it, so that nothing can be kept from one step to the next. Here a block sees the clean text before it, as in Block
Diffusion (arXiv:2503.09573), and the clean text is causal: keys and values of committed tokens never change.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from sdjax.core.cache import KV, Cache, commit
from sdjax.core.spec import initialise, normal
from sdjax.core.types import Batch, Committed, Context, Trace
from sdjax.drafters.anchored import draw_anchors, run_blocks, tokens_behind
from sdjax.drafters.base import check_length
from sdjax.drafters.head import DraftHead, own_tokens
from sdjax.drafters.judge import chain_figures, rank_of
from sdjax.drafters.losses import cross_entropy, flatten, in_chunks, weighted_mean
from sdjax.targets.decoder import Decoder, causal_mask
from sdjax.targets.packed import packed_mask

LEAST_RATE = 1e-3  # of masking, as in LLaDA's code: its inverse is a weight


@struct.dataclass
class Noised:
    """Blocks with some of their slots masked: `rate` is 1 where a block is masked whole, as drafting has it.

    `learnt` marks the slots whose tokens are learnt from. The others are masked too: they may belong to another document.
    """

    place: Int[Array, "B A"]
    labels: Int[Array, "B A N"]
    learnt: Float[Array, "B A N"]
    masked: Bool[Array, "B A N"]
    rate: Float[Array, "B A"]

    @property
    def whole(self) -> Float[Array, "B A N"]:
        """The slots that are learnt from in blocks that are masked whole."""
        return self.learnt * (self.rate == 1)[..., None]


@struct.dataclass
class Guesses:
    """Of each slot's token: -log q (infinite outside the draft vocabulary), and its rank among q's tokens."""

    surprise: Float[Array, "B A N"]
    rank: Int[Array, "B A N"]


@dataclass(frozen=True)
class MaskedDiffusion:
    """`layers` such as the target's first ones, from which they start, between the target's embedding and `head`.

    It starts as a causal model and is adapted, as DiffuLLaMA was (arXiv:2410.17891); no state of the target is read. A
    block has the anchor and `length` masks, which all see each other; a mask's embedding is learnt. Training draws `anchors`
    in each row. Of their blocks a share `whole` is masked whole, as when drafting; in the others each slot is masked at the
    block's own rate t ~ U(0, 1).
    """

    length: int = 7
    layers: int = 2
    head: DraftHead = DraftHead()
    anchors: int = 128
    whole: float = 0.5

    def __post_init__(self):
        check_length(self.length)
        for name in ("layers", "anchors"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 < self.whole <= 1:
            raise ValueError(f"whole is {self.whole}; it must lie in (0, 1], since drafting masks every block whole")

    def model(self, target: Decoder) -> Decoder:
        """The shape of the layers: the target's, without windows."""
        return replace(target.truncate(self.layers), windows=())

    def specs(self, target: Decoder) -> dict[str, Any]:
        """{layers, norm, mask, head}."""
        whole = self.model(target).specs()
        mask = replace(whole["norm"], init=normal())
        return {"layers": whole["layers"], "norm": whole["norm"], "mask": mask, "head": self.head.specs(target)}

    def initial(
        self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]
    ) -> dict[str, Any]:
        """The target's first layers, its final norm and its head; a mask drawn anew."""
        taken = {"layers": target_params["layers"][: self.layers], "norm": target_params["norm"]}
        mask = initialise(self.specs(target)["mask"], key)
        head = self.head.initial(target, target_params, counts)
        return jax.tree.map(jnp.copy, taken) | {"mask": mask, "head": head}

    def empty(self, target: Decoder, batch: int, capacity: int) -> Cache:
        return self.model(target).empty_cache(batch, capacity)

    def observe(self, ctx: Context, params: Any, state: Cache, seen: Committed) -> Cache:
        """Runs what was committed as clean text, each token seeing those before it."""
        width = seen.tokens.shape[1]
        x = ctx.target.embed(ctx.target_params, seen.tokens)
        out = self.model(ctx.target).forward(params, x, seen.positions, state, causal_mask(width))
        return commit(state, out.staged, jnp.broadcast_to(jnp.arange(width), seen.tokens.shape), seen.count)

    def denoise(self, ctx: Context, params: Any, state: Cache) -> Float[Array, "B N D"]:
        """One pass over `length` masks behind the anchor: the logits of each, over the draft vocabulary."""
        r = self.length + 1
        masked = jnp.ones((len(ctx.p), self.length), bool)
        x = self.inputs(ctx, params, jnp.broadcast_to(ctx.anchor[:, None], (len(ctx.p), r)), masked)
        positions = ctx.p[:, None] + jnp.arange(r)
        out = self.model(ctx.target).forward(params, x, positions, state, jnp.ones((1, r, r), bool))
        return self.head.logits(ctx, params["head"], out.hidden[:, 1:])

    def inputs(
        self, ctx: Context, params: Any, tokens: Int[Array, "... R"], masked: Bool[Array, "... N"]
    ) -> Float[Array, "... R E"]:
        """Blocks: the anchor's embedding, then of each slot its token's, or the mask's."""
        x = ctx.target.embed(ctx.target_params, tokens)
        is_mask = jnp.pad(masked, [(0, 0)] * (masked.ndim - 1) + [(1, 0)])
        return jnp.where(is_mask[..., None], params["mask"].astype(x.dtype), x)

    def noised(self, trace: Trace, key: Key[Array, ""]) -> Noised:
        """Blocks behind random anchors, and their masks, drawn anew by `key`."""
        of_anchors, of_rates, of_slots = jax.random.split(key, 3)
        place, drawn = draw_anchors(trace, self.anchors, of_anchors)
        labels, learnt = tokens_behind(trace, place, drawn, self.length)
        u = jax.random.uniform(of_rates, place.shape)
        rate = jnp.where(u < self.whole, 1, jnp.maximum((u - self.whole) / max(1 - self.whole, LEAST_RATE), LEAST_RATE))
        masked = (jax.random.uniform(of_slots, labels.shape) < rate[..., None]) | (learnt == 0)
        return Noised(place, labels, learnt, masked, rate)

    def clean(self, ctx: Context, params: Any, batch: Batch) -> list[KV]:
        """Every layer's keys and values of the text."""
        x, model = ctx.target.embed(ctx.target_params, batch.tokens), self.model(ctx.target)
        nothing = model.empty_cache(batch.tokens.shape[0], 1)
        return model.forward(params, x, batch.positions, nothing, packed_mask(batch)).staged.layers

    def slots(self, ctx: Context, params: Any, batch: Batch, noised: Noised) -> Float[Array, "B A N E"]:
        """The final states that `denoise` reads its logits off, of all blocks."""
        anchor = jnp.take_along_axis(batch.tokens, noised.place, 1)[..., None]
        x = self.inputs(ctx, params, jnp.concatenate([anchor, noised.labels], -1), noised.masked)
        every = jnp.ones((x.shape[2], x.shape[2]), bool)
        context = self.clean(ctx, params, batch)
        return run_blocks(self.model(ctx.target), params, x, batch, noised.place, context, every)[:, :, 1:]

    def guess(self, ctx: Context, params: Any, batch: Batch, noised: Noised) -> Guesses:
        """What one denoising pass makes of the tokens that were masked; slots that are not learnt from may hold zeros."""
        head = params["head"]
        tokens, inside = own_tokens(head.get("ids"), noised.labels)

        def of_rows(part: Any) -> Guesses:
            hidden, tokens, inside = part
            logits = self.head.logits(ctx, head, hidden)
            surprise = jnp.where(inside, cross_entropy(logits, tokens), jnp.inf)
            rank = jnp.where(inside, rank_of(lax.stop_gradient(logits), tokens), ctx.target.vocab)
            return Guesses(surprise, rank)

        every = lambda x: flatten(flatten(x))
        slots = self.slots(ctx, params, batch, noised), tokens, inside
        out = in_chunks(of_rows, jax.tree.map(every, slots), every(noised.learnt * noised.masked))
        return jax.tree.map(lambda x: x.reshape(noised.labels.shape), out)


def diffusion_loss(noised: Noised, guesses: Guesses) -> Float[Array, ""]:
    """Σ w · -log q(token) / Σ w over masked slots, w = 1 / t: the bound that LLaDA and MDLM minimise, self-normalised.

    The expectation of Σ w is the number of slots, by which those divide. A token outside the draft vocabulary is not learnt.
    """
    inside = jnp.isfinite(guesses.surprise)
    weight = noised.learnt * noised.masked * inside / noised.rate[..., None]
    return weighted_mean(jnp.where(inside, guesses.surprise, 0), weight)


def expected_streak(noised: Noised, guesses: Guesses) -> Float[Array, ""]:
    """Σ_m Π_{j ≤ m} q_j(x_j), the mean over blocks that are masked whole, x being the text (arXiv:2511.00606, Eq. 6)."""
    chances = jnp.exp(-guesses.surprise) * noised.whole
    return weighted_mean(jnp.cumprod(chances, -1).sum(-1), noised.whole[..., 0])


def whole_figures(noised: Noised, guesses: Guesses) -> dict[str, Float[Array, ""]]:
    """`chain_figures` of the blocks that are masked whole: those that drafting meets."""
    return chain_figures(jnp.moveaxis(guesses.rank, -1, 0), jnp.moveaxis(noised.whole, -1, 0))
