"""Matrix products: the one with weights, and contractions whose result is float32; and rows of a table, as `table[ids]`."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

WIDE = 128  # rows from which x Wᵀ was measured to be as fast on a CPU as the narrow form, at 256 up to half as fast again
# Rows of a bfloat16 product: with fewer, XLA's CPU backend does not reach the processor's matrix units. For a TPU it
# leaves a single row to the vector units, which its own estimate takes for three times as slow.
FEWEST = 4


def linear(x: Float[Array, "... i"], w: Float[Array, "o i"], bias: Float[Array, " o"] | None = None) -> Float[Array, "... o"]:
    """x Wᵀ (+ bias), weights stored [out, in], in the type of x and w together; bfloat16 weights have x rounded for it."""
    return affine(x, w, bias, jnp.result_type(x, w))


def product(x: Float[Array, "... i"], w: Float[Array, "o i"], bias: Float[Array, " o"] | None = None) -> Float[Array, "... o"]:
    """x Wᵀ (+ bias), float32; bfloat16 weights have x rounded for it."""
    return affine(x, w, bias, jnp.dtype(jnp.float32))


def affine(x: Array, w: Array, bias: Array | None, dtype: jnp.dtype) -> Array:
    """x Wᵀ (+ bias) as `dtype`, by the form that is fastest on the platform at hand."""
    if w.dtype == jnp.bfloat16:
        y = halves(x, w, dtype)
    elif math.prod(x.shape[:-1]) >= WIDE:
        y = row_major(x, w).astype(dtype)
    else:
        y = lax.platform_dependent(x, w, cpu=feature_major, default=row_major).astype(dtype)
    return y if bias is None else y + bias.astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def halves(x: Float[Array, "... i"], w: Float[Array, "o i"], dtype: jnp.dtype) -> Float[Array, "... o"]:
    """The product of factors rounded to bfloat16, summed in float32, as `dtype`; the same for its gradient."""
    there = partial(jnp.einsum, "...i,oi->...o", preferred_element_type=dtype)
    on_cpu = lambda x, w: in_fours(row_major, x, w).astype(dtype)
    on_tpu = there if math.prod(x.shape[:-1]) >= FEWEST else partial(in_fours, there)
    return lax.platform_dependent(x.astype(w.dtype), w, cpu=on_cpu, tpu=on_tpu, default=there)


def halves_forward(x: Array, w: Array, dtype: jnp.dtype) -> tuple[Array, tuple[Array, Array]]:
    return halves(x, w, dtype), (x, w)


def halves_backward(dtype: jnp.dtype, kept: tuple[Array, Array], g: Float[Array, "... o"]) -> tuple[Array, Array]:
    x, w = kept
    g = g.astype(w.dtype)
    flat = lambda y: y.reshape(-1, y.shape[-1]).astype(w.dtype)
    return contract("...o,oi->...i", g, w, x.dtype), contract("no,ni->oi", flat(g), flat(x), w.dtype)


halves.defvjp(halves_forward, halves_backward)


def contract(equation: str, a: Array, b: Array, dtype: jnp.dtype) -> Array:
    """einsum of bfloat16 factors. A CPU reaches its matrix units only where results are float32; elsewhere narrow results
    halve what sharded sums send.
    """
    there = partial(jnp.einsum, equation, preferred_element_type=dtype)
    return lax.platform_dependent(a, b, cpu=lambda a, b: einsum_f32(equation, a, b).astype(dtype), default=there)


def in_fours(times: Callable[..., Array], x: Float[Array, "... i"], w: Float[Array, "o i"]) -> Float[Array, "... o"]:
    """times(x, w), which is x Wᵀ, with at least FEWEST rows, the missing ones zeros."""
    *batch, width = x.shape
    rows = math.prod(batch)
    padded = jnp.pad(x.reshape(rows, width), ((0, max(FEWEST - rows, 0)), (0, 0)))
    return times(padded, w)[:rows].reshape(*batch, -1)


def table_rows(table: Float[Array, "V E"], ids: Int[Array, "..."]) -> Float[Array, "... E"]:
    """table[ids]."""
    return halved_rows(table, ids) if table.dtype == jnp.bfloat16 else table[ids]


@jax.custom_vjp
def halved_rows(table: Float[Array, "V E"], ids: Int[Array, "..."]) -> Float[Array, "... E"]:
    """table[ids] of a bfloat16 table; XLA's CPU backend would widen the whole table first."""
    return lax.platform_dependent(table, ids, cpu=rows_by_bits, default=lambda table, ids: table[ids])


def rows_by_bits(table: Float[Array, "V E"], ids: Int[Array, "..."]) -> Float[Array, "... E"]:
    """As integers, which are moved as they are. The barrier keeps a loop from having the whole table's bits taken first."""
    table, ids = lax.optimization_barrier((table, ids))
    return lax.bitcast_convert_type(lax.bitcast_convert_type(table, jnp.uint16)[ids], table.dtype)


halved_rows.defvjp(
    lambda table, ids: (halved_rows(table, ids), (table, ids)),
    lambda kept, g: (jnp.zeros(kept[0].shape, jnp.float32).at[kept[1]].add(g.astype(jnp.float32)).astype(g.dtype), None),
)


def row_major(x: Float[Array, "... i"], w: Float[Array, "o i"]) -> Float[Array, "... o"]:
    """x Wᵀ as it stands."""
    return einsum_f32("...i,oi->...o", x, w)


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
    """einsum with a float32 result, whatever its factors' type."""
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
