"""Products with bfloat16 weights: factors are rounded, sums are not, and gradients follow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.linear import linear, product, table_rows

WIDTH, OUT = 24, 40


def drawn(key, *shape):
    return jax.random.normal(jax.random.key(key), shape)


@pytest.mark.parametrize("rows", [(), (1,), (3,), (2, 5), (200,)])
def test_rounded_factors_and_float32_sums(rows):
    x, w, bias = drawn(0, *rows, WIDTH), drawn(1, OUT, WIDTH), drawn(2, OUT)
    exact = np.einsum("...i,oi->...o", *(np.asarray(a.astype(jnp.bfloat16), np.float64) for a in (x, w))) + np.asarray(bias)
    made = product(x, w.astype(jnp.bfloat16), bias)
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(made, exact, atol=1e-5)
    assert linear(x, w.astype(jnp.bfloat16)).dtype == jnp.float32
    assert linear(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    np.testing.assert_allclose(product(x, w, bias), np.einsum("...i,oi->...o", x, w) + bias, atol=1e-5)


@pytest.mark.parametrize("rows", [(1,), (2, 70)])
def test_gradients_are_those_of_the_exact_product_up_to_rounding(rows):
    x, w, g = drawn(0, *rows, WIDTH), drawn(1, OUT, WIDTH), drawn(2, *rows, OUT)
    exact = jax.grad(lambda x, w: (jnp.einsum("...i,oi->...o", x, w) * g).sum(), (0, 1))(x, w)
    made = jax.jit(jax.grad(lambda x, w: (linear(x, w) * g).sum(), (0, 1)))(x, w.astype(jnp.bfloat16))
    assert [a.dtype for a in made] == [jnp.float32, jnp.bfloat16]
    for a, b in zip(made, exact, strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.02 * float(jnp.abs(b).max()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_a_table_and_what_they_give_back(dtype):
    table, ids = drawn(0, OUT, WIDTH).astype(dtype), jnp.array([[3, 3, 0], [39, 1, 3]])
    np.testing.assert_array_equal(jax.jit(table_rows)(table, ids), table[ids])
    g = drawn(1, 2, 3, WIDTH).astype(dtype)
    total = lambda take: jax.grad(lambda table: (take(table, ids) * g).sum().astype(jnp.float32))(table)
    made, exact = total(table_rows), total(lambda table, ids: table[ids])
    assert made.dtype == table.dtype
    np.testing.assert_allclose(made.astype(jnp.float32), exact.astype(jnp.float32), atol=0.05)
