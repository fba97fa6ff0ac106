"""Children are drawn from the law that the draft carries, with noise of their own."""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from sdjax.core.sampling import Warp
from sdjax.core.types import Context, Law
from sdjax.trees.draw import draw_children

Q = np.array([[0.5, 0.25, 0.15, 0.1], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 0.0], [0.0, 0.6, 0.0, 0.4]])
WIDTHS = (2, 1, 2, 3)
MANY = 20_000


def context(batch, temperature=1.0):
    zeros = jnp.zeros(batch, jnp.int32)
    return Context(None, None, None, zeros + 3, jnp.arange(batch, dtype=jnp.uint32), target=None, warp=Warp(temperature))


def draw_all(law, batch=MANY, temperature=1.0):
    """The four parents' children, split by parent: [B, width] tokens and valid."""
    logits = jnp.broadcast_to(jnp.log(Q), (batch, *Q.shape))
    children = jax.jit(lambda logits, ctx: draw_children(logits, WIDTHS, law, ctx, 1))(logits, context(batch, temperature))
    cut = np.cumsum(WIDTHS)[:-1]
    return np.split(np.asarray(children.tokens), cut, 1), np.split(np.asarray(children.valid), cut, 1), children.q


def agrees(outcomes, law):
    """A χ² test of counted outcomes against {outcome: probability}; fails once in a million runs of a right sampler."""
    counted = dict.fromkeys(law, 0)
    for outcome in outcomes:
        counted[tuple(outcome.tolist())] += 1  # a KeyError is an outcome that cannot be
    return chisquare(list(counted.values()), [len(outcomes) * p for p in law.values()]).pvalue > 1e-6


def successive(q, k):
    """Law of k draws without replacement."""
    law = {}
    for order in permutations(range(len(q)), k):
        left, p = 1.0, 1.0
        for token in order:
            p, left = p * q[token] / left, left - q[token]
        law[order] = p
    return law


def test_without_replacement_draws_successively():
    tokens, valid, q = draw_all(Law.WITHOUT_REPLACEMENT)
    assert agrees(tokens[0], successive(Q[0], 2))
    assert agrees(tokens[1], successive(Q[1], 1))
    np.testing.assert_allclose(q[0], Q, atol=1e-6)
    # One token with mass: the second child is absent; two of them: the third.
    assert (tokens[2][:, 0] == 2).all() and (valid[2] == [True, False]).all()
    assert (valid[3] == [True, True, False]).all()
    assert agrees(tokens[3][:, :2], {(1, 3): 0.6, (3, 1): 0.4})
    # Parents do not share noise.
    joint = np.stack([tokens[0][:, 0], tokens[1][:, 0]], 1)
    assert agrees(joint, {(a, b): Q[0, a] * Q[1, b] for a in range(4) for b in range(4)})


def test_iid_draws_independently():
    tokens, valid, q = draw_all(Law.IID)
    assert agrees(tokens[0], {(a, b): Q[0, a] * Q[0, b] for a in range(4) for b in range(4)})
    assert all(v.all() for v in valid) and (tokens[2] == 2).all()
    np.testing.assert_allclose(q[0], Q, atol=1e-6)


def test_mixed_fixes_all_but_the_first():
    tokens, valid, q = draw_all(Law.MIXED)
    assert agrees(tokens[0], {(1, 0): 0.5, (2, 0): 0.3, (3, 0): 0.2})
    np.testing.assert_allclose(q[0, 0], [0, 0.5, 0.3, 0.2], atol=1e-6)
    np.testing.assert_allclose(q[0, 1], Q[1], atol=1e-6)
    assert (valid[2] == [False, True]).all() and (tokens[2][:, 1] == 2).all()
    assert (valid[3] == [False, True, True]).all() and (tokens[3][:, 1:] == [1, 3]).all()
    np.testing.assert_array_equal(q[0, 2:], 0)


@pytest.mark.parametrize("law, temperature", [(Law.IID, 0.0), (Law.ONE_HOT, 1.0)])
def test_greedy_takes_the_likeliest(law, temperature):
    tokens, valid, q = draw_all(law, batch=2, temperature=temperature)
    assert q is None
    assert (tokens[0] == [0, 1]).all() and (tokens[1] == [3]).all() and (tokens[3][:, :2] == [1, 3]).all()
    assert not valid[2][:, 1].any()


def test_noise_belongs_to_seed_position_and_depth_alone():
    draw = jax.jit(lambda logits, ctx: [draw_children(logits, WIDTHS, Law.IID, ctx, depth).tokens for depth in (1, 2)])
    ctx = context(64)
    logits = jnp.broadcast_to(jnp.log(Q), (64, *Q.shape))
    first, deeper = draw(logits, ctx)
    order = np.random.default_rng(0).permutation(64)
    np.testing.assert_array_equal(draw(logits, ctx.replace(seed=ctx.seed[order]))[0], first[order])
    assert (first != deeper).any() and (first != draw(logits, ctx.replace(p=ctx.p + 1))[0]).any()
