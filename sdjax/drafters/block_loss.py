"""What a block drafter's slots are judged by in training: each against the text's token, and the target's law there."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Int

from sdjax.core.linear import product
from sdjax.core.sampling import top_k
from sdjax.core.types import Context
from sdjax.drafters.confidence import acceptance_rate
from sdjax.drafters.head import DraftHead
from sdjax.drafters.judge import rank_of
from sdjax.drafters.losses import (
    binary_cross_entropy,
    cross_entropy,
    flatten,
    hybrid_lk,
    in_chunks,
    soft_cross_entropy,
    total_variation,
)

TEXTS = ("text", "base", "choice")  # need no target
DISTANCES = ("soft", "l1", "lk")  # compare laws


@dataclass(frozen=True)
class Manner:
    """Of drafting: whether tokens are `sampled`, and of how many likeliest `candidates` each is (None: of all); and the
    temperature of both laws in the soft loss."""

    sampled: bool
    candidates: int | None
    soft_temperature: float


@struct.dataclass
class Slots:
    """A row for each slot behind each anchor; None is what nobody asks for.

    `told` is what the Markov head's matrix reads, `trust` the confidence's logit, `theirs` the target's final state that
    predicts the slot's token, `label` that token's place in the draft vocabulary.
    """

    hidden: Float[Array, "B A N E"]
    told: Float[Array, "B A N r"] | None
    trust: Float[Array, "B A N"] | None
    theirs: Float[Array, "B A N E"] | None
    label: Int[Array, "B A N"]


def judge_slots(
    ctx: Context,
    head: DraftHead,
    params: Any,
    slots: Slots,
    needed: Float[Array, "B A N"],
    wanted: Collection[str],
    manner: Manner,
) -> dict[str, Float[Array, "B A N"]]:
    """The label's rank, and of each slot what is `wanted`.

    "text": CE(label); "base": the same without the Markov head; "choice": the same among the candidates and the label;
    "soft", "l1", "lk": distances to the target's law, cut to the draft vocabulary and renormalised; "soft" is CE of both
    laws at a temperature T, times T²; "confidence": BCE to the acceptance rate. Slots that are not `needed` may hold
    anything.
    """
    drafted = params["head"]
    distances = [name for name in DISTANCES if name in wanted]
    judge = lax.stop_gradient(head.teacher_rows(ctx, drafted)) if distances or "confidence" in wanted else None

    def of_rows(rows: Slots) -> dict[str, Array]:
        base = head.logits(ctx, drafted, rows.hidden)
        logits = base if rows.told is None else base + product(rows.told, params["markov"]["after"])
        drafted_from = among(base, logits, manner.candidates)
        out = {"rank": rank_of(lax.stop_gradient(drafted_from), rows.label)}
        if "text" in wanted:
            out["text"] = cross_entropy(logits, rows.label)
        if "base" in wanted:
            out["base"] = cross_entropy(base, rows.label)
        if "choice" in wanted:
            right = jax.nn.one_hot(rows.label, base.shape[-1], dtype=bool)
            out["choice"] = cross_entropy(jnp.where(right, logits, drafted_from), rows.label)
        if judge is None or rows.theirs is None:
            return out
        law = lax.stop_gradient(product(rows.theirs, judge))
        out |= {name: distance(name, logits, law, manner.soft_temperature) for name in distances}
        if rows.trust is not None:
            whole = law if "ids" not in drafted else ctx.target.unembed(ctx.target_params, rows.theirs)
            out["confidence"] = binary_cross_entropy(rows.trust, acceptance_rate(drafted_from, law, whole, manner.sampled))
        return out

    every = lambda x: flatten(flatten(x))
    out = in_chunks(of_rows, jax.tree.map(every, slots), every(needed))
    return jax.tree.map(lambda x: x.reshape(slots.label.shape), out)


def among(base: Float[Array, "... D"], logits: Float[Array, "... D"], candidates: int | None) -> Float[Array, "... D"]:
    """`logits` of the tokens with the largest `base`; -inf of the others. DFlash 2's selector corrects these alone."""
    if candidates is None:
        return logits
    least = top_k(base, candidates)[0][..., -1:]
    return jnp.where(base >= least, logits, -jnp.inf)


def distance(name: str, logits: Float[Array, "n D"], law: Float[Array, "n D"], temperature: float) -> Float[Array, " n"]:
    """One of DISTANCES of the drafter's logits from the target's."""
    if name == "soft":
        return temperature**2 * soft_cross_entropy(logits / temperature, law / temperature)
    return hybrid_lk(logits, law) if name == "lk" else 2 * total_variation(logits, law)
