"""A wide pass, which a CPU runs head by head, equals narrow ones, gradients included; both are a plain softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.attention import WIDE, attend
from sdjax.core.cache import KV

B, T, H, G, K, S = 2, WIDE + 9, 4, 2, 8, 5


@pytest.fixture(scope="module")
def case():
    """Queries, cache, block, what each sequence sees of its cache and each query of the block: some see nothing there."""
    normal = lambda key, *shape: jax.random.normal(jax.random.key(key), shape)
    kv = lambda key, rows: KV(normal(key, B, G, rows, K), normal(key + 1, B, G, rows, K))
    seen = jnp.arange(S) < jnp.array([3, S])[:, None, None]
    mask = jax.random.bernoulli(jax.random.key(9), 0.3, (B, T, T))
    return normal(0, B, T, H, K), kv(1, S), seen, kv(3, T), mask


def of_rows(q, cache, seen, block, mask, rows):
    return attend(q[:, rows], cache, seen, block, mask[:, rows], 0.3)


def test_a_softmax_over_cache_and_block(case):
    q, cache, seen, block, mask = (jax.tree.map(lambda x: np.asarray(x, np.float64), part) for part in case)
    keys, values = (np.concatenate([a, b], 2) for a, b in ((cache.k, block.k), (cache.v, block.v)))
    spread = lambda x: np.repeat(x, H // G, 1)
    scores = np.einsum("bthk,bhsk->bhts", q * 0.3, spread(keys))
    allowed = np.concatenate([np.broadcast_to(seen, (B, T, S)), mask], 2).astype(bool)
    weights = np.where(allowed[:, None], np.exp(scores), 0)
    wanted = np.einsum("bhts,bhsk->bthk", weights / weights.sum(-1, keepdims=True), spread(values))
    np.testing.assert_allclose(of_rows(*case, slice(None)), wanted, atol=1e-5)


def test_wide_equals_narrow(case):
    def total(q, cache, block, parts):
        made = [of_rows(q, cache, case[2], block, case[4], part) for part in parts]
        return (jnp.concatenate(made, 1) ** 2).sum()

    q, cache, _, block, _ = case
    gradient = jax.value_and_grad(total, (0, 1, 2))
    wide = gradient(q, cache, block, [slice(None)])
    narrow = gradient(q, cache, block, [slice(0, 40), slice(40, T)])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), wide, narrow)


def test_one_mask_for_all_sequences(case):
    q, cache, seen, block, mask = case
    same = jnp.broadcast_to(mask[:1], mask.shape)
    np.testing.assert_allclose(
        attend(q, cache, seen, block, mask[:1], 0.3), attend(q, cache, seen, block, same, 0.3), atol=1e-6
    )
