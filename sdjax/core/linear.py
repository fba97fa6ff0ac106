"""The one matrix product with weights."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def linear(x: Float[Array, "... i"], w: Float[Array, "o i"], bias: Float[Array, " o"] | None = None) -> Float[Array, "... o"]:
    """x Wᵀ (+ bias), weights stored [out, in]."""
    y = jnp.einsum("...i,oi->...o", x, w)
    return y if bias is None else y + bias
