"""Matrix products: the one with weights, and contractions whose result is float32."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def linear(x: Float[Array, "... i"], w: Float[Array, "o i"], bias: Float[Array, " o"] | None = None) -> Float[Array, "... o"]:
    """x Wᵀ (+ bias), weights stored [out, in]."""
    y = jnp.einsum("...i,oi->...o", x, w)
    return y if bias is None else y + bias


def einsum_f32(equation: str, a: Array, b: Array) -> Array:
    """einsum with a float32 result. XLA's CPU backend has no such product of bfloat16 factors: there they are widened."""
    if a.dtype == b.dtype == jnp.float32:
        return jnp.einsum(equation, a, b)
    narrow = lambda a, b: jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
    wide = lambda a, b: jnp.einsum(equation, a.astype(jnp.float32), b.astype(jnp.float32))
    return lax.platform_dependent(a, b, cpu=wide, default=narrow)
