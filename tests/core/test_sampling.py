"""Warp against a sorting reference; keyed noise against its promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sdjax.core.sampling import Purpose, Warp, coin_key, draw, target_choice, top_k, warp_logits, warped_probs

V = 12
logits = st.lists(st.sampled_from([-4.0, -1.0, 0.0, 0.5, 0.5, 1.0, 2.0, 3.0]), min_size=V, max_size=V)


def reference(logits, warp):
    """The definition, by brute force in float64."""
    z = np.asarray(logits, np.float64) / warp.temperature
    kept = np.ones(V, bool)

    def law():
        p = np.where(kept, np.exp(z - z[kept].max()), 0)
        return p / p.sum()

    if warp.top_k:
        kept &= z >= np.sort(z)[::-1][min(warp.top_k, V) - 1]
    if warp.top_p < 1:
        p = law()
        kept &= np.array([p[p > x].sum() < warp.top_p for x in p])
    if warp.min_p > 0:
        p = law()
        kept &= p >= warp.min_p * p.max() * (1 - 1e-9)
    return law()


@example([3.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0], 1.7, 3, 0.8, 0.0)
@given(
    logits, st.sampled_from([0.5, 1.0, 1.7]), st.integers(0, V + 2), st.floats(0.02, 0.999), st.sampled_from([0.0, 0.07, 0.6])
)
def test_warp_equals_its_definition(logits, temperature, top_k, top_p, min_p):
    p = reference(logits, Warp(temperature, top_k))
    masses = np.array([p[p > x].sum() for x in p])
    if np.abs(masses - top_p).min() < 1e-4:
        return  # on the edge, float32 and float64 may rightly differ
    warp = Warp(temperature, top_k, top_p, min_p)
    np.testing.assert_allclose(warped_probs(jnp.array(logits), warp), reference(logits, warp), atol=1e-6)


def test_top_k_keeps_ties_and_top_p_keeps_the_token_that_crosses():
    assert (warped_probs(jnp.array([2.0, 1.0, 1.0, 0.0]), Warp(1.0, top_k=2)) > 0).tolist() == [True, True, True, False]
    p = jnp.log(jnp.array([0.5, 0.3, 0.2]))
    assert (warped_probs(p, Warp(1.0, top_p=0.6)) > 0).tolist() == [True, True, False]
    assert (warped_probs(p, Warp(1.0, top_p=1e-9)) > 0).tolist() == [True, False, False]


def test_temperature_zero_is_argmax():
    assert warped_probs(jnp.array([0.0, 3.0, 1.0]), Warp(0.0)).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 1e-39),
        ("top_k", 2.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.5),
    ],
)
def test_bad_warps_name_the_field_and_the_value(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        Warp(**{field: value})


def test_coins_never_share_a_key():
    keys = {
        tuple(np.asarray(jax.random.key_data(coin_key(seed, position, purpose, depth, rank))).tolist())
        for seed in (0, 1)
        for position in (0, 1, 5)
        for purpose in Purpose
        for depth in (0, 1, 2)
        for rank in (0, 1, 2)
    }
    assert len(keys) == 2 * 3 * len(Purpose) * 9


def test_the_targets_choice_follows_its_law():
    z = jnp.array([0.0, 1.0, 2.0, -1.0])
    choices = jax.vmap(lambda position: target_choice(z, Warp(1.0), jnp.uint32(3), position))(jnp.arange(20_000))
    share = np.bincount(choices, minlength=4) / 20_000
    np.testing.assert_allclose(share, warped_probs(z, Warp(1.0)), atol=0.015)


def test_dropped_tokens_are_never_drawn():
    z = warp_logits(jnp.array([0.0, 1.0, 2.0, -1.0]), Warp(1.0, top_k=2))
    draws = jax.vmap(lambda i: draw(z, jax.random.key(i)))(jnp.arange(2_000))
    assert set(np.asarray(draws).tolist()) == {1, 2}


@pytest.mark.parametrize("size", [12, 29, 64, 128, 640])
@pytest.mark.parametrize("k", [1, 3, 9])
def test_top_k_by_blocks_is_top_k(size, k):
    """Ties to the lower id, dropped tokens last, whatever the blocks."""
    for seed in range(3):
        x = jax.random.randint(jax.random.key(seed), (2, 3, size), 0, 7).astype(jnp.float32)
        x = jnp.where(x == 0, -jnp.inf, x)
        jax.tree.map(np.testing.assert_array_equal, top_k(x, k), tuple(jax.lax.top_k(x, k)))
