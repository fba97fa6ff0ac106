"""Attention on a TPU, the committed cache by a kernel: scores of many queries on a long cache never leave the core.

XLA's form writes all scores of a head, [n, S], before it takes their softmax. This kernel goes through the cache block by
block with a running maximum and sum (Dao et al. 2022, arXiv:2205.14135); the staged rows, few and under a mask of their own,
are plain XLA; both are merged by their log-sum-exp. Blocks behind a sequence's length are neither read nor computed. For
decoding alone: it has no gradient.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.attention import NEVER, attend, every_head, fold_heads, unfold_heads
from sdjax.core.cache import KV
from sdjax.core.linear import einsum_f32
from sdjax.core.whole import SPLIT, ways

BLOCK = 512  # cache rows of one step
FEWEST, MOST = 32, 1024  # queries of a kv head: with fewer, reading the cache is what takes the time; more do not fit the core
Part = tuple[Float[Array, "B G n K"], Float[Array, "B G n 1"]]  # a softmax's mean of values, and its log-sum-exp


def pays(t: int, heads: int, cache: KV) -> bool:
    """Whether a pass over t tokens is wide enough for the kernel, the cache in whole blocks, and each device has one kv head.

    With several, XLA lays a loop's caches out row by row, and would turn them around for the kernel in each step.
    """
    queries, (groups, rows) = t * heads // cache.k.shape[1], cache.k.shape[1:3]
    return FEWEST <= queries <= MOST and rows % BLOCK == 0 and groups == math.prod(ways(SPLIT[1]))


def attend_wide(
    q: Float[Array, "B T H K"],
    cache: KV,
    seen: Bool[Array, "B t S"],
    block: KV,
    mask: Bool[Array, "b T U"],
    scale: float,
) -> Float[Array, "B T H K"]:
    """`attention.attend`; on a TPU the kernel, where it pays and no window can be asked for (never for one row alone)."""
    reference = partial(attend, scale=scale)
    # The mask of a window has a row for each query: of a single query nothing tells it from that of a length.
    windowed = seen.shape[1] > 1 or q.shape[1] == 1
    if windowed or not pays(q.shape[1], q.shape[2], cache):
        return reference(q, cache, seen, block, mask)

    def kernel(q: Array, cache: KV, seen: Array, block: KV, mask: Array) -> Array:
        return attend_flash(q, cache, seen[:, 0].sum(-1, dtype=jnp.int32), block, mask, scale)

    return lax.platform_dependent(q, cache, seen, block, mask, tpu=kernel, default=reference)


def attend_flash(
    q: Float[Array, "B T H K"],
    cache: KV,
    length: Int[Array, " B"],
    block: KV,
    mask: Bool[Array, "b T U"],
    scale: float,
    interpret: bool = False,
) -> Float[Array, "B T H K"]:
    """`attention.attend` without a window: each query sees the cache's first `length` rows, and the block under its mask."""
    t, groups = q.shape[1], cache.k.shape[1]
    queries = fold_heads(q * scale, groups)
    far = over_mesh(partial(committed, interpret=interpret), queries, cache, length)
    near = staged(queries, block, jnp.broadcast_to(mask, (q.shape[0], *mask.shape[1:])), q.shape[2] // groups)
    return unfold_heads(merge(far, near).astype(q.dtype), t)


def merge(a: Part, b: Part) -> Float[Array, "B G n K"]:
    """The softmax over the rows of both."""
    top = jnp.maximum(a[1], b[1])
    first, second = jnp.exp(a[1] - top), jnp.exp(b[1] - top)
    return (first * a[0] + second * b[0]) / (first + second)


def staged(q: Float[Array, "B G n K"], block: KV, mask: Bool[Array, "B T U"], shared: int) -> Part:
    """Over the staged rows."""
    seen = jax.vmap(lambda mask: every_head(mask, shared))(mask)[:, None]
    scores = jnp.where(seen, einsum_f32("bgnk,bguk->bgnu", q, block.k), NEVER)
    top = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return einsum_f32("bgnu,bguk->bgnk", weights.astype(q.dtype), block.v) / total, top + jnp.log(total)


def over_mesh(kernel: Any, q: Float[Array, "B G n K"], cache: KV, length: Int[Array, " B"]) -> Part:
    """The kernel on each device's own sequences and kv heads, where a mesh is set (`jax.set_mesh`)."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return kernel(q, cache, length)

    def axes(wanted: tuple[str, ...], size: int) -> tuple[str, ...] | None:
        there = tuple(axis for axis, parts in zip(wanted, ways(wanted), strict=True) if parts > 1)
        return there if there and size % math.prod(ways(there)) == 0 else None

    rows, heads = axes(SPLIT[0], q.shape[0]), axes(SPLIT[1], q.shape[1])
    wide: Any = PartitionSpec(rows, heads)
    return jax.shard_map(kernel, in_specs=(wide, KV(wide, wide), PartitionSpec(rows)), out_specs=(wide, wide), check_vma=False)(
        q, cache, length
    )


def committed(q: Float[Array, "B G n K"], cache: KV, length: Int[Array, " B"], interpret: bool) -> Part:
    """Over the cache's first length[b] rows (none: a log-sum-exp that no other is below)."""
    b, groups, n, width = q.shape
    whole = lambda last: pl.BlockSpec((None, None, n, last), lambda b, g, i, length: (b, g, 0, 0))
    # Where a block is no longer needed the last one stands again, which is not read anew.
    rows = lambda b, g, i, length: (b, g, jnp.minimum(i, jnp.maximum(length[b] - 1, 0) // BLOCK), 0)
    call = pl.pallas_call(
        one_block,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(b, groups, cache.k.shape[2] // BLOCK),
            in_specs=[whole(width), *[pl.BlockSpec((None, None, BLOCK, width), rows)] * 2],
            out_specs=[whole(width), whole(1)],
            scratch_shapes=[pltpu.VMEM((n, last), jnp.float32) for last in (1, 1, width)],
        ),
        out_shape=[jax.ShapeDtypeStruct((b, groups, n, last), jnp.float32) for last in (width, 1)],
        interpret=interpret,
        name="attend_committed",
    )
    mixed, lse = call(length, q, cache.k, cache.v)
    return mixed, lse


def one_block(length: Any, q: Any, k: Any, v: Any, mixed: Any, lse: Any, top: Any, total: Any, sum_: Any) -> None:
    """One step of the grid (sequence, kv head, block): `top`, `total` and `sum_` are kept from block to block."""
    sequence, i = pl.program_id(0), pl.program_id(2)

    @pl.when(i == 0)
    def begin() -> None:
        top[...] = jnp.full(top.shape, NEVER)
        total[...] = jnp.zeros(total.shape)
        sum_[...] = jnp.zeros(sum_.shape)

    @pl.when(i * BLOCK < length[sequence])
    def go_on() -> None:
        scores = product("nk,sk->ns", q[...], k[...])
        row = i * BLOCK + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        scores = jnp.where(row < length[sequence], scores, NEVER)
        higher = jnp.maximum(top[...], scores.max(-1, keepdims=True))
        weights, shrink = jnp.exp(scores - higher), jnp.exp(top[...] - higher)
        total[...] = shrink * total[...] + weights.sum(-1, keepdims=True)
        sum_[...] = shrink * sum_[...] + product("ns,sk->nk", weights.astype(v.dtype), v[...])
        top[...] = higher

    @pl.when(i == pl.num_programs(2) - 1)
    def end() -> None:
        there = jnp.maximum(total[...], jnp.finfo(jnp.float32).tiny)
        mixed[...] = sum_[...] / there
        lse[...] = top[...] + jnp.log(there)


def product(equation: str, a: Array, b: Array) -> Array:
    """`einsum_f32` in a kernel, which has one way to multiply bfloat16: the precision that is asked for is for others."""
    precision = lax.Precision.DEFAULT if a.dtype == jnp.bfloat16 else None
    return jnp.einsum(equation, a, b, precision=precision, preferred_element_type=jnp.float32)
