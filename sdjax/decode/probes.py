"""Probes in the target's pass: rows behind a draft's nodes, whose final states go to `observe` and nowhere else."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.types import Probes


def append_probes(
    probes: Probes | None, x: Float[Array, "B N E"], depth: Int[Array, "B N"], mask: Bool[Array, "B N N"]
) -> tuple[Float[Array, "B U E"], Int[Array, "B U"], Bool[Array, "B U U"]]:
    """Inputs, depths and mask of the whole pass: the nodes', which see no probe, then the probes' (U = N + Q)."""
    if probes is None:
        return x, depth, mask
    nodes = jnp.pad(mask, ((0, 0), (0, 0), (0, probes.x.shape[1])))
    join = lambda first, then: jnp.concatenate([first, then], 1)
    return join(x, probes.x), join(depth, probes.depth), join(nodes, probes.sees)


def split_probes(
    probes: Probes | None, hidden: Float[Array, "B U E"]
) -> tuple[Float[Array, "B N E"], Float[Array, "B Q E"] | None]:
    """The final states of nodes and of probes."""
    if probes is None:
        return hidden, None
    nodes = hidden.shape[1] - probes.x.shape[1]
    return hidden[:, :nodes], hidden[:, nodes:]
