"""Attention over a long cache on TPUs: what their compiler expects of XLA's form, of JAX's own, and of our kernel.

    python -m experiments.aot_attention

One kv head's 4 query heads and one sequence on each chip, bfloat16. XLA's instructions carry the compiler's cycles. A kernel's
do not: its cycles are the bundles of its final schedule, which the compiler writes out, as often as its grid has steps.
Writes experiments/tables/attention/TOPOLOGY.json, and docs/scale.md anew. Needs libtpu and no TPU.
"""

import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from experiments.aot_config import Given
from experiments.aot_page import page
from experiments.launch import command_line, mistakes_end_the_program
from sdjax.core.attention import attend, cache_mask, fold_heads
from sdjax.core.cache import KV
from sdjax.core.flash import BLOCK, committed, merge, pays
from sdjax.core.plain import write_json
from sdjax.mesh.ahead import compile_ahead, tpu_devices
from sdjax.mesh.chips import chip_of
from sdjax.mesh.layout import make_mesh
from sdjax.study.plan import compiler

HEADS, WIDTH = 4, 128
SCALE = WIDTH**-0.5
BUNDLES = re.compile(r"total scheduled bundles:\s+(\d+)")


@dataclass(frozen=True)
class Asked:
    """What is compiled, and where files are, as for experiments.aot."""

    topologies: tuple[str, ...] = ("v5e:2x2", "v6e:2x2")
    """TPUs that are compiled for"""
    tokens: tuple[int, ...] = (1, 16, 60)
    """widths of the pass"""
    rows: tuple[int, ...] = (4096, 32_768)
    """lengths of the cache"""
    reports: Path = Given.reports
    """the folder of the cases, beside which the page is written"""
    curves: Path = Given.curves
    """the folder of the verification cost curves, which the page shows"""
    attention: Path = Given.attention
    """the folder to write"""


def main(asked: Asked) -> None:
    """Compiles, writes and prints."""
    given = Given(reports=asked.reports, curves=asked.curves, attention=asked.attention)
    given.attention.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as dumps:
        # Read by libtpu when it is loaded: not yet.
        os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={dumps} --xla_jf_dump_llo_text=true"
        for topology in asked.topologies:
            cells = [measure(topology, t, s, Path(dumps)) for s in asked.rows for t in asked.tokens]
            found = {"topology": topology, "compiler": compiler(), "cells": cells}
            write_json(given.attention / f"{topology.replace(':', '-')}.json", found)
    given.reports.with_suffix(".md").write_text(page(given), encoding="utf-8")


def measure(topology: str, t: int, s: int, dumps: Path) -> dict[str, Any]:
    """One width and one length: microseconds of each form, and of reading the cache."""
    chip, cache = chip_of(topology), array(1, 1, s, WIDTH)
    seconds = {
        name: compiled(topology, form, t, s).program.cycles / chip.clock
        for name, form in (("attend", attend_whole), ("dot_product_attention", attend_stock))
    }
    if pays(t, HEADS, KV(cache, cache)):
        for path in dumps.rglob("*"):
            path.unlink()
        compiled(topology, kernel, t, s)
        seconds["kernel"] = scheduled(dumps) * (s // BLOCK) / chip.clock
    seconds["reading"] = 2 * s * WIDTH * 2 / chip.bandwidth
    found = {"tokens": t, "rows": s} | {name: round(1e6 * x, 1) for name, x in seconds.items()}
    print(topology, found, flush=True)
    return found


def array(*shape: int) -> Any:
    """An abstract bfloat16 array."""
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def compiled(topology: str, form: Callable[..., Array], t: int, s: int) -> Any:
    """A form for one chip of a topology."""
    mesh = make_mesh(devices=tpu_devices(topology)[:1])
    here = NamedSharding(mesh, PartitionSpec())
    kv = lambda rows: KV(array(1, 1, rows, WIDTH), array(1, 1, rows, WIDTH))
    length, mask = jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((1, t, t), jnp.bool_)
    place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)
    with jax.set_mesh(mesh):
        return compile_ahead(jax.jit(form), *jax.tree.map(place, (array(1, t, HEADS, WIDTH), kv(s), length, kv(t), mask)))


def attend_whole(q: Array, cache: KV, length: Array, block: KV, mask: Array) -> Array:
    """The reference: one softmax over both."""
    seen = cache_mask(length, cache.k.shape[2], length[:, None] + jnp.arange(q.shape[1]), None)
    return attend(q, cache, seen, block, mask, SCALE)


def attend_stock(q: Array, cache: KV, length: Array, block: KV, mask: Array) -> Array:
    """JAX's own attention on either part, merged by log-sum-exp."""
    by_rows = lambda kv: (jnp.swapaxes(kv.k, 1, 2), jnp.swapaxes(kv.v, 1, 2))
    of = partial(jax.nn.dot_product_attention, q, scale=SCALE, return_residual=True)
    far, near = of(*by_rows(cache), key_value_seq_lengths=length), of(*by_rows(block), mask=mask[:, None])
    part = lambda x: (x[0].astype(jnp.float32), x[1][..., None])
    return merge(part(far), part(near)).astype(q.dtype)


def kernel(q: Array, cache: KV, length: Array, block: KV, mask: Array) -> Array:
    """The committed part alone, by our kernel: the staged one is a fraction of it."""
    return committed(fold_heads(q * SCALE, 1), cache, length, interpret=False)[0]


def scheduled(dumps: Path) -> int:
    """Bundles of the kernel's final schedule: one a cycle, its loop's body and what surrounds it."""
    paths = list(dumps.rglob("*attend_committed*schedule-analysis_final_bundles.txt"))
    if not paths:
        raise ValueError("the compiler wrote no schedule of the kernel; this libtpu knows other flags")
    return max(int(found[1]) for path in paths if (found := BUNDLES.search(path.read_text())))


if __name__ == "__main__":
    with mistakes_end_the_program():
        main(command_line("aot_attention", Asked, __doc__))
