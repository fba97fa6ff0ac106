"""DSpark's Markov head: a low-rank bias on a slot's logits, made of the token before it (arXiv:2607.05147, §3).

A block's slots are drafted side by side and know nothing of each other's tokens; the bias is the little that they are told.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sdjax.core.linear import product, table_rows
from sdjax.core.spec import Spec, normal, zeros
from sdjax.targets.decoder import Decoder

Markov = Literal["none", "vanilla", "gated"]


def markov_specs(target: Decoder, kind: Markov, rank: int, size: int) -> dict[str, Spec]:
    """`rank` numbers for every token of the target, and their matrix to `size` logits; where gated, the gate's layer."""
    dtype = target.matrix_dtype
    specs = {
        "before": Spec((target.vocab, rank), dtype, ("vocab", None), normal()),
        "after": Spec((size, rank), dtype, ("vocab", None), normal()),
    }
    if kind == "gated":
        specs["gate"] = Spec((rank, target.width + rank), dtype, (None, None), normal())
        specs["gate_bias"] = Spec((rank,), dtype, (None,), zeros)
    return specs


def markov_bias(p: dict[str, Array], previous: Int[Array, "..."], hidden: Float[Array, "... E"]) -> Float[Array, "... D"]:
    """W₂ W₁[previous token], float32; gated: W₂ (g ⊙ W₁[previous]), g = σ(W [slot's state, W₁[previous]] + b)."""
    e = table_rows(p["before"], previous).astype(jnp.float32)
    if "gate" in p:
        e *= jax.nn.sigmoid(product(jnp.concatenate([hidden.astype(jnp.float32), e], -1), p["gate"], p["gate_bias"]))
    return product(e, p["after"])
