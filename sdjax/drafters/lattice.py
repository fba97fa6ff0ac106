"""Causal-consistency path search: of a block's slot laws, the path that also reads well from left to right.

Li et al. 2025 (DiffuSpec, arXiv:2510.02358, §4.2): slots that were guessed side by side need not fit one another, so each
keeps a few candidates, and a beam joins them under a small causal model.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Int

from sdjax.core.sampling import top_k


@struct.dataclass
class Lattice:
    """The candidates of each slot, likeliest first, as places in the draft vocabulary; log q is -inf where one is pruned."""

    places: Int[Array, "N M"]
    log_q: Float[Array, "N M"]


def lattice_of(logits: Float[Array, "N D"], most: int, mass: float) -> Lattice:
    """Of each slot the fewest likeliest tokens that together have `mass`, and no more than `most`: one where it is sure."""
    log_q, places = top_k(jax.nn.log_softmax(logits), most)
    q = jnp.exp(log_q)
    above = jnp.cumsum(q, -1) - q
    return Lattice(places, jnp.where(above < mass, log_q, -jnp.inf))


def best_path(
    lattice: Lattice,
    first: Int[Array, ""],
    log_next: Callable[[Int[Array, " W"]], Float[Array, "W D"]],
    beams: int,
    mix: float,
    ids: Int[Array, " D"] | None = None,
) -> Int[Array, " N"]:
    """The tokens of the best path behind `first`, by Σ mix · log q(x) + (1 - mix) · log p(x | the token before).

    From left to right the `beams` best paths are kept; ties go to the better one before, then to the likelier candidate.
    `log_next` is the causal model's log p behind tokens of the target, `ids` the draft vocabulary's.
    """
    n, m = lattice.places.shape

    def extend(beam: tuple[Array, Array, Array], slot: tuple[Array, Lattice]) -> tuple[tuple[Array, Array, Array], None]:
        last, score, paths = beam
        i, here = slot
        joint = score[:, None] + mix * here.log_q + (1 - mix) * log_next(last)[:, here.places]
        joint = jnp.where(here.log_q > -jnp.inf, joint, -jnp.inf)
        score, best = lax.top_k(joint.reshape(-1), beams)
        last = here.places[best % m] if ids is None else ids[here.places[best % m]]
        return (last, score, paths[best // m].at[:, i].set(last)), None

    score = jnp.where(jnp.arange(beams) == 0, 0.0, -jnp.inf)
    start = jnp.full(beams, first), score, jnp.zeros((beams, n), jnp.int32)
    (_, _, paths), _ = lax.scan(extend, start, (jnp.arange(n), lattice))
    return paths[0]
