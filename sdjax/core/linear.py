"""Matrix products: the one with weights, and contractions whose result is float32."""

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

WIDE = 128  # rows from which x Wᵀ was measured to be as fast on a CPU as the narrow form, at 256 up to half as fast again


def linear(x: Float[Array, "... i"], w: Float[Array, "o i"], bias: Float[Array, " o"] | None = None) -> Float[Array, "... o"]:
    """x Wᵀ (+ bias), weights stored [out, in]: the product that is fastest on the platform at hand."""
    wide = math.prod(x.shape[:-1]) >= WIDE
    y = row_major(x, w) if wide else lax.platform_dependent(x, w, cpu=feature_major, default=row_major)
    return y if bias is None else y + bias


def row_major(x: Float[Array, "... i"], w: Float[Array, "o i"]) -> Float[Array, "... o"]:
    """x Wᵀ as it stands."""
    return jnp.einsum("...i,oi->...o", x, w)


def feature_major(x: Float[Array, "... i"], w: Float[Array, "o i"]) -> Float[Array, "... o"]:
    """(W xᵀ)ᵀ: on XLA's CPU backend narrow passes run up to twice as fast with the weights as the left factor.

    The barriers keep the simplifier from turning this back into x Wᵀ. One row is a matrix-vector product. Few rows are
    padded to 2, 4, 8 or 16: five columns were measured to cost a quarter more than eight.
    """
    *batch, width = x.shape
    rows = math.prod(batch)
    if rows == 1:
        return (w @ x.reshape(width)).reshape(*batch, -1)
    padded = next((n for n in (2, 4, 8, 16) if rows <= n), rows)
    columns = jnp.pad(x.reshape(rows, width), ((0, padded - rows), (0, 0))).T
    product = lax.optimization_barrier(w @ lax.optimization_barrier(columns))
    return product.T[:rows].reshape(*batch, -1)


def einsum_f32(equation: str, a: Array, b: Array) -> Array:
    """einsum with a float32 result. XLA's CPU backend has no such product of bfloat16 factors: there they are widened."""
    if a.dtype == b.dtype == jnp.float32:
        return jnp.einsum(equation, a, b)
    narrow = lambda a, b: jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
    wide = lambda a, b: jnp.einsum(equation, a.astype(jnp.float32), b.astype(jnp.float32))
    return lax.platform_dependent(a, b, cpu=wide, default=narrow)
