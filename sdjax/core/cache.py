"""The key/value cache: it holds committed tokens only, and `commit` is the one function that writes it."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Int

from sdjax.core.whole import whole_heads


@struct.dataclass
class KV:
    """Keys and values of one layer; rows are cache rows (S), scratch rows (R) or new tokens (T)."""

    k: Float[Array, "B G S K"]
    v: Float[Array, "B G S K"]


@struct.dataclass
class Staged:
    """What a forward pass would add to the cache: its rows are kept only if `commit` takes them."""

    layers: list[KV]
    positions: Int[Array, "B T"]


@struct.dataclass
class Cache:
    """Committed keys and values: row s of sequence b is position s, for s < length[b].

    Attention reads all rows, so a cache has as many as its longest sequence needs and grows, by `with_rows`, with it.
    """

    layers: list[KV]
    length: Int[Array, " B"]

    @property
    def capacity(self) -> int:
        return self.layers[0].k.shape[2]


def empty_cache(layers: int, batch: int, kv_heads: int, capacity: int, head_width: int, dtype: Any) -> Cache:
    """A cache of `capacity` rows a sequence, with nothing committed."""
    shape = (batch, kv_heads, capacity, head_width)
    kv = [KV(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(layers)]
    return Cache(kv, jnp.zeros(batch, jnp.int32))


def with_rows(tree: Any, rows: int) -> Any:
    """The same state, with `rows` rows in every cache: those that were there, and zeros.

    A sequence that is longer than `rows` loses its last ones: it must be done.
    """

    def resized(x: Float[Array, "B G S K"]) -> Float[Array, "B G r K"]:
        return jnp.pad(x[:, :, :rows], ((0, 0), (0, 0), (0, max(rows - x.shape[2], 0)), (0, 0)))

    def resize(x: Any) -> Any:
        return x.replace(layers=jax.tree.map(resized, x.layers)) if isinstance(x, Cache) and x.capacity != rows else x

    return jax.tree.map(resize, tree, is_leaf=lambda x: isinstance(x, Cache))


def commit(cache: Cache, staged: Staged, path: Int[Array, "B A"], count: Int[Array, " B"]) -> Cache:
    """Appends rows path[b, :count[b]] of the staged block to sequence b, in place where donated.

    The first staged row must stand at position length[b] where count[b] > 0. Gathering the accepted path is the
    compaction: a rejected row is never written anywhere.
    """
    # Not cache.length, which it equals: what a forward pass returns is known only after its reads of the cache.
    start = staged.positions[:, 0]
    layers = [append_rows(kept, new, path, start, count) for kept, new in zip(cache.layers, staged.layers, strict=True)]
    return cache.replace(layers=layers, length=cache.length + count)


def append_rows(kept: KV, new: KV, path: Int[Array, "B A"], start: Int[Array, " B"], count: Int[Array, " B"]) -> KV:
    """One layer of `commit`: rows path[b, :count[b]] of `new` become rows start[b].. of `kept`."""

    def put(kept: Array, new: Array) -> Array:
        rows = jax.vmap(lambda new, path: jnp.take(new, path, axis=1))(new, path).astype(kept.dtype)
        return lax.platform_dependent(kept, whole_heads(rows), start, count, cpu=overwrite, default=scatter)

    return KV(put(kept.k, new.k), put(kept.v, new.v))


def overwrite(
    kept: Float[Array, "B G S K"], rows: Float[Array, "B G A K"], start: Int[Array, " B"], count: Int[Array, " B"]
) -> Float[Array, "B G S K"]:
    """Writes all A rows, behind the first count[b] what stood there: in place on XLA's CPU backend."""

    def accepted(kept: Array, rows: Array, start: Array, count: Array) -> Array:
        old = lax.dynamic_slice_in_dim(kept, start, rows.shape[1], axis=1)
        return jnp.where(jnp.arange(rows.shape[1])[:, None] < count, rows, old)

    # Fused with its own read of the cache, the write would not be in place.
    rows = lax.optimization_barrier(jax.vmap(accepted)(kept, rows, start, count))
    return jax.vmap(lambda kept, rows, start: lax.dynamic_update_slice_in_dim(kept, rows, start, axis=1))(kept, rows, start)


def scatter(
    kept: Float[Array, "B G S K"], rows: Float[Array, "B G A K"], start: Int[Array, " B"], count: Int[Array, " B"]
) -> Float[Array, "B G S K"]:
    """Writes the first count[b] rows and reads nothing: in place on TPU, where `overwrite` copies the cache, twice.

    Row by row, each of one head: with all heads of a row as a window, XLA lays a loop's caches out row by row, and turns
    them around for attention in every step.
    """
    sequences, heads, place = jnp.arange(kept.shape[0]), jnp.arange(kept.shape[1]), jnp.arange(rows.shape[2])
    at = jnp.where(place < count[:, None], start[:, None], kept.shape[2]) + place
    index = sequences[:, None, None], heads[:, None], at[:, None]
    return kept.at[index].set(rows, mode="drop", unique_indices=True)
