"""Commit writes accepted rows and nothing else; attention over two segments is attention over their union."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sdjax.core.attention import attend, block_mask, cache_mask
from sdjax.core.cache import KV, Cache, Staged, commit, scatter, with_rows

B, G, S, K, T, A = 2, 2, 12, 4, 5, 3


def random_kv(seed, rows):
    k, v = (jax.random.normal(key, (B, G, rows, K)) for key in jax.random.split(jax.random.key(seed)))
    return KV(k, v)


def looped_commit(kept, new, path, start, count):
    kept = np.array(kept)
    for b in range(B):
        for i in range(count[b]):
            kept[b, :, start[b] + i] = new[b, :, path[b][i]]
    return kept


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, T - 1), min_size=A, max_size=A), min_size=B, max_size=B),
    st.lists(st.integers(0, S - A), min_size=B, max_size=B),
    st.lists(st.integers(0, A), min_size=B, max_size=B),
)
def test_commit_appends_the_path_and_touches_nothing_else(path, start, count):
    kept, new = random_kv(0, S), random_kv(1, T)
    cache = Cache([kept], jnp.array(start, jnp.int32))
    out = commit(cache, Staged([new], jnp.array(start)[:, None] + jnp.arange(T)), jnp.array(path), jnp.array(count))
    np.testing.assert_array_equal(out.layers[0].k, looped_commit(kept.k, new.k, path, start, count))
    np.testing.assert_array_equal(out.layers[0].v, looped_commit(kept.v, new.v, path, start, count))
    np.testing.assert_array_equal(out.length, np.array(start) + count)
    rows = jnp.stack([new.k[b][:, jnp.array(path[b])] for b in range(B)])
    np.testing.assert_array_equal(scatter(kept.k, rows, jnp.array(start), jnp.array(count)), out.layers[0].k)


def test_every_cache_of_a_state_grows_or_shrinks_and_keeps_its_first_rows():
    small, large = random_kv(0, 8), random_kv(1, 32)
    state = {"a": Cache([small], jnp.full(B, 8)), "b": [Cache([large], jnp.full(B, 5)), jnp.zeros(3)]}
    state = with_rows(state, 16)
    assert state["a"].capacity == state["b"][0].capacity == 16 and state["b"][1].shape == (3,)
    np.testing.assert_array_equal(state["a"].layers[0].k[:, :, :8], small.k)
    assert not state["a"].layers[0].v[:, :, 8:].any()
    np.testing.assert_array_equal(state["b"][0].layers[0].v, large.v[:, :, :16])


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.integers(0, S), st.integers(0, S), st.sampled_from([None, 1, 3, 100]))
def test_two_segments_equal_their_union(seed, first, second, window):
    cache, block = random_kv(seed, S), random_kv(seed + 1, T)
    q = jax.random.normal(jax.random.key(seed + 2), (B, T, 2 * G, K))
    length = jnp.array([first, second])
    positions = length[:, None] + jnp.array([0, 1, 1, 2, 2])
    mask = jax.random.bernoulli(jax.random.key(seed + 3), 0.5, (B, T, T)) | jnp.eye(T, dtype=bool)
    seen = cache_mask(length, S, positions, window)
    inside = block_mask(mask, positions, positions, window)
    out = attend(q, cache, seen, block, inside, 0.5)

    keys, values = (jnp.concatenate([c, b], 2).repeat(2, 1) for c, b in ((cache.k, block.k), (cache.v, block.v)))
    visible = jnp.concatenate([jnp.broadcast_to(seen, (B, T, S)), jnp.broadcast_to(inside, (B, T, T))], 2)
    scores = jnp.einsum("bthk,bhsk->bhts", q, keys) * 0.5
    p = jax.nn.softmax(jnp.where(visible[:, None], scores, -jnp.inf), -1)
    np.testing.assert_allclose(out, jnp.einsum("bhts,bhsk->bthk", p, values), atol=1e-5)


def test_a_window_of_one_sees_itself_alone():
    positions = jnp.broadcast_to(jnp.arange(T), (B, T))
    mask = block_mask(jnp.tril(jnp.ones((1, T, T), bool)), positions, positions, 1)
    np.testing.assert_array_equal(mask, np.broadcast_to(np.eye(T, dtype=bool), (B, T, T)))
