"""Products are counted through loops, rematerialisation and gradients."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from sdjax.core.linear import linear
from sdjax.train.flops import matmul_flops

A, B = jnp.ones((3, 5)), jnp.ones((5, 7))
ONE = 2 * 3 * 5 * 7


def looped(a, b):
    return lax.scan(lambda carry, _: (carry, carry @ b), a, length=4)


def chunked(a, b):
    return lax.map(jax.checkpoint(lambda row: row @ b), a)


def branching(a, b):
    return lax.cond(a[0, 0] > 0, lambda: (a @ b).sum(), lambda: 0.0)


@pytest.mark.parametrize(
    ("function", "times"),
    [
        (lambda a, b: a @ b, 1),
        (looped, 4),
        (chunked, 1),
        (branching, 1),
        (jax.grad(lambda a, b: ((a @ b) ** 2).sum(), (0, 1)), 3),
    ],
)
def test_counts(function, times):
    assert matmul_flops(function, A, B) == times * ONE


def test_a_platforms_choice_counts_once():
    assert matmul_flops(linear, jnp.ones((4, 5)), B.T) == 2 * 4 * 5 * 7


def test_rematerialised_products_count_again_in_the_gradient():
    loss = lambda b, remat: (remat(lambda b: jnp.tanh(A @ b))(b) ** 2).sum()
    plain, again = (matmul_flops(lambda b, r=r: jax.grad(loss)(b, r), B) for r in (lambda f: f, jax.checkpoint))
    assert again == plain + ONE
