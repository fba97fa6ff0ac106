"""Chains of masks behind a text's tokens, trained beside the text in one pass: what PARD and P-EAGLE have in common.

Slot d of the chain behind a row stands d positions further. Slot 0 is the text's own row, which sees the text up to
itself; the others are masks, which see the same text and their own chain so far: ordinary causal attention, as if
the text ended there. COnditional Drop-token (PARD, arXiv:2504.18583; P-EAGLE, arXiv:2602.01469) keeps ever fewer chains
the deeper they go.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from sdjax.core.attention import cache_mask
from sdjax.core.cache import KV
from sdjax.core.linear import linear
from sdjax.core.types import Batch, Context, Trace, rows
from sdjax.drafters.block_attention import attend_blocks
from sdjax.drafters.eagle_layer import add_mlp
from sdjax.drafters.head import DraftHead
from sdjax.drafters.judge import chain_figures, judge_states
from sdjax.targets.decoder import Decoder, causal_mask, rms_norm
from sdjax.targets.packed import packed_mask


@dataclass(frozen=True)
class Drop:
    """Of n chains, ⌈max(keep^d, least) · n⌉ have a slot at depth d, and so at every depth before it."""

    keep: float = 0.7
    """Share of a depth's chains that go one deeper."""
    least: float = 0.2
    """Share of all that every depth keeps at least."""

    def __post_init__(self):
        if not 0 < self.least <= self.keep <= 1:
            raise ValueError(
                f"keep is {self.keep} and least {self.least}; they must be shares with 0 < least <= keep <= 1 (1, 1: no drop)"
            )

    def counts(self, chains: int, length: int) -> tuple[int, ...]:
        """How many of so many chains have a slot at depth 0 .. length - 1."""
        return tuple(math.ceil(max(self.keep**depth, self.least) * chains - 1e-9) for depth in range(length))


@dataclass(frozen=True)
class Chains:
    """The chains of a row of texts, S slots in all: `counts[d]` at depth d, all of the first chains in the order of drawing.

    The text's own rows come first, then the masks, chain by chain.
    """

    counts: tuple[int, ...]

    @property
    def groups(self) -> list[tuple[int, int, int]]:
        """(first chain, last + 1, masks) of chains that have as many masks; the longest first."""
        ends = (*self.counts, 0)
        bounds = [(ends[masks + 1], ends[masks], masks) for masks in range(len(self.counts) - 1, 0, -1)]
        return [group for group in bounds if group[0] < group[1]]

    @property
    def chain(self) -> Int[np.ndarray, " S"]:
        """Which chain each slot belongs to."""
        masks = [np.repeat(np.arange(first, last), deep) for first, last, deep in self.groups]
        return np.concatenate([np.arange(self.counts[0]), *masks])

    @property
    def depth(self) -> Int[np.ndarray, " S"]:
        """How many positions each slot stands behind the row that its chain hangs on."""
        masks = [np.tile(np.arange(1, deep + 1), last - first) for first, last, deep in self.groups]
        return np.concatenate([np.zeros(self.counts[0], int), *masks])

    def places(self, place: Int[Array, "B T"], by: int) -> Int[Array, "B S"]:
        """`by` places behind each slot, where chain i hangs on the row at place[:, i]; the last one, where there is none."""
        return jnp.minimum(place[:, self.chain] + self.depth + by, place.shape[1] - 1)

    def table(self, flat: Float[Array, "B S"]) -> Float[Array, "N B T"]:
        """Slots by depth and chain; zero where they were dropped."""
        empty = jnp.zeros((len(self.counts), len(flat), self.counts[0]), flat.dtype)
        return empty.at[self.depth, :, self.chain].set(flat.T)


class Rows(NamedTuple):
    """What a layer adds to, and what its attention reads."""

    residual: Float[Array, "B T E"]
    x: Float[Array, "B T i"]


def draw_chains(
    drop: Drop, chains: Chains, trace: Trace, key: Key[Array, ""], lag: int
) -> tuple[Int[Array, "B T"], Float[Array, "B S"]]:
    """A random order of each row's places, to hang chains on, and the weight of every slot: 1 where it is learnt from.

    A slot is where its label and those before it in its chain are; slot d's stands d + 1 + lag places further. Of the places
    whose first slot is, the first ones in the order keep each depth, as `drop` says: PARD's random subset of the depth before.
    """
    ahead = jnp.stack([trace.ahead(depth + 1 + lag)[1] for depth in range(len(chains.counts))], -1)
    learnt = jnp.cumprod(ahead, -1)
    able = learnt[..., 0] > 0
    place = jnp.argsort(jnp.where(able, -jax.random.uniform(key, able.shape), 1), 1).astype(jnp.int32)
    kept = np.array([drop.counts(n, len(chains.counts)) for n in range(able.shape[1] + 1)])
    kept_of_row = jnp.asarray(kept)[able.sum(1)][:, chains.depth]
    return place, rows(learnt, place)[:, chains.chain, chains.depth] * (chains.chain < kept_of_row)


def run_chains(
    model: Decoder,
    layers: Sequence[dict[str, Array]],
    text: Rows,
    mask: Rows,
    batch: Batch,
    place: Int[Array, "B T"],
    chains: Chains,
) -> Float[Array, "B S E"]:
    """The outputs of all slots, before the final norm: `text` of the packed texts, and one `mask` [1 1 ...] at every place.

    `text` and `mask` go into the first layer's attention as they are, into that of the others behind their `attn_norm`.
    """
    nothing = model.empty_cache(len(place), 1)
    seen = cache_mask(nothing.length, 1, batch.positions, None), packed_mask(batch)
    angles = model.rope.angles(batch.positions, model.head_width)
    own = len(chains.chain) - chains.counts[0]
    positions = jnp.take_along_axis(batch.positions, place, 1)[:, chains.chain[-own:]] + chains.depth[-own:]
    own_angles = model.rope.angles(positions, model.head_width)

    @jax.checkpoint
    def layer(text: Rows, masks: Rows, p: dict[str, Array]) -> tuple[Array, Array]:
        mixed, given = model.attention(p, text.x, angles, nothing.layers[0], None, seen)
        q, kv = model.project(p, masks.x, own_angles)
        around = attend_chains(q, given, kv, batch.segments, place, chains, model.head_width**-0.5)
        around = linear(around.reshape(*around.shape[:2], -1), p["o"], p.get("o_bias"))
        return add_mlp(model, p, text.residual + mixed), add_mlp(model, p, masks.residual + around)

    masks = Rows(*(jnp.broadcast_to(x, (len(place), own, x.shape[-1])) for x in mask))
    out = layer(text, masks, layers[0])
    for p in layers[1:]:
        out = layer(*(Rows(x, rms_norm(x, p["attn_norm"], model.norm_eps)) for x in out), p)
    return jnp.concatenate([rows(out[0], place), out[1]], 1)


def attend_chains(
    q: Float[Array, "B Q H K"],
    given: KV,
    own: KV,
    segments: Int[Array, "B T"],
    place: Int[Array, "B T"],
    chains: Chains,
    scale: float,
) -> Float[Array, "B Q H K"]:
    """The masks' attention to the text's keys and values up to the row that they hang on, and to their own chain's."""
    mixed, start = [], 0
    for first, last, deep in chains.groups:
        here = slice(start, start := start + (last - first) * deep)
        queries = q[:, here].reshape(len(q), last - first, deep, *q.shape[2:])
        kept = jax.tree.map(lambda x, here=here: x[:, :, here], own)
        behind = place[:, first:last] + 1
        found = attend_blocks(queries, given, kept, segments, behind, causal_mask(deep)[0], scale)
        mixed.append(found.reshape(len(q), -1, *q.shape[2:]))
    return jnp.concatenate(mixed, 1)


def chain_loss(
    ctx: Context,
    head: DraftHead,
    head_params: dict[str, Array],
    logits: Callable[[Float[Array, "n E"]], Float[Array, "n D"]],
    trace: Trace,
    hidden: Float[Array, "B S E"],
    at: tuple[Int[Array, "B S"], Float[Array, "B S"]],
    chains: Chains,
    text: float,
    soft: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """`judge_states` of all slots, and a chain's figures.

    `at` holds, for every slot, the place whose state is the target's that predicts its token, and its weight.
    """
    before, weight = at
    labels = rows(trace.ahead(1)[0], before)
    theirs = rows(trace.hidden, before) if soft else None
    loss, ranks = judge_states(ctx, head, head_params, logits, hidden, theirs, labels, weight, text, soft)
    return loss, chain_figures(chains.table(ranks), chains.table(weight))


def check_chains(length: int, text: float, soft: float) -> None:
    """Raises ValueError for chains without a mask, or a loss without a part."""
    if length < 2:
        raise ValueError(f"length is {length}; a chain of masks drafts at least 2 tokens (DraftModel and Eagle3 draft one)")
    if min(text, soft) < 0 or text + soft == 0:
        raise ValueError(f"text is {text} and soft {soft}; no weight may be negative, and one must be positive")
