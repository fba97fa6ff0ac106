"""The TPU's kernel, interpreted, is the reference attention."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.attention import attend, cache_mask
from sdjax.core.cache import KV
from sdjax.core.flash import BLOCK, attend_flash, attend_wide, pays

SCALE = 0.3


def inputs(rows=2 * BLOCK, t=9, heads=4, groups=2, width=16):
    """Three sequences: an empty cache, one that ends within a block, a full one; trees of different shapes."""
    keys = iter(jax.random.split(jax.random.key(0), 8))
    normal = lambda *shape: jax.random.normal(next(keys), shape)
    q = 3 * normal(3, t, heads, width)
    cache, block = (KV(normal(3, groups, n, width), normal(3, groups, n, width)) for n in (rows, t))
    length = jnp.array([0, BLOCK + 5, rows])
    mask = jax.random.bernoulli(next(keys), 0.5, (3, t, t)) | jnp.eye(t, dtype=bool)
    return q, cache, length, block, mask


def reference(q, cache, length, block, mask):
    positions = length[:, None] + jnp.arange(q.shape[1])
    return attend(q, cache, cache_mask(length, cache.k.shape[2], positions, None), block, mask, SCALE)


def test_it_equals_the_reference():
    given = inputs()
    np.testing.assert_allclose(attend_flash(*given, SCALE, interpret=True), reference(*given), atol=2e-5)


def test_rows_behind_the_length_leave_no_trace():
    """Nor does it matter whether the mask is one for all."""
    q, cache, length, block, mask = inputs()
    behind = (jnp.arange(cache.k.shape[2]) >= length[:, None])[:, None, :, None]
    poisoned = jax.tree.map(lambda x: jnp.where(behind, 1e4, x), cache)
    found = attend_flash(q, poisoned, length, block, mask[:1], SCALE, interpret=True)
    np.testing.assert_allclose(found, reference(q, cache, length, block, mask[:1]), atol=2e-5)


@pytest.mark.parametrize(
    "t, groups, rows, says",
    [(60, 1, BLOCK, True), (1, 1, BLOCK, False), (600, 1, BLOCK, False), (60, 1, BLOCK + 8, False), (60, 2, BLOCK, False)],
)
def test_it_is_for_wide_passes_of_one_kv_head_over_whole_blocks(t, groups, rows, says):
    cache = KV(*[jax.ShapeDtypeStruct((1, groups, rows, 16), jnp.float32)] * 2)
    assert pays(t, 4 * groups, cache) is says


@pytest.mark.parametrize(("t", "window", "says"), [(40, None, True), (40, 16, False), (1, 16, False)])
def test_a_window_keeps_it_away(t, window, says):
    """Also from a pass of one row, 40 queries of one kv head: the mask of a window then has one row, too."""
    heads, rows = (40 if t == 1 else 1), lambda *shape: jnp.zeros((1, *shape))
    cache, block = (KV(rows(1, n, 16), rows(1, n, 16)) for n in (BLOCK, t))
    seen = cache_mask(jnp.array([100]), BLOCK, 100 + jnp.arange(t)[None], window)
    made = jax.make_jaxpr(partial(attend_wide, scale=SCALE))(rows(t, heads, 16), cache, seen, block, jnp.ones((1, t, t), bool))
    assert pays(t, heads, cache)
    assert ("attend_committed" in str(made)) is says
