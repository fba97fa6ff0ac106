"""Speed and memory of the decode loop on SmolLM2-135M: `make bench-decode`, or `python -m experiments.bench_decode`.

Everything is measured in one run, interleaved, medians quoted; float32, batch 1. The last line is one JSON object:

read_bandwidth_fraction   weight bytes / time of a plain step, over the bandwidth of a large reduction
t4_over_t1 (5, 8, 12, 16)  a step that verifies 4 (…) tokens, over a plain one; the plain one counts as at least
                          weight bytes / (0.65 × bandwidth), so a faster plain step does not worsen the ratio
overhead_fraction         what a step of plain decoding spends outside the target's forward pass
compile_s                 compiling prefill and decode loop of one bucket, no persistent cache
step_time_capacity_ratio  a plain step where caches may grow to 4096 rows over one with 1024, equally filled
peak_extra_mb             high-water mark of decoding, less memory after loading and the caches
"""

import gc
import json
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import sdjax
from experiments.launch import takes_no_arguments
from sdjax.core.cache import Cache
from sdjax.core.sampling import Warp
from sdjax.decode.generate import prefill, run, start
from sdjax.decode.state import Loop, Params, State
from sdjax.drafters.base import Drafter
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.targets.decoder import Decoder, causal_mask
from sdjax.verify.walk import Walk

FILLED = 192  # committed rows when timing starts
ROUNDS = 10
REPEATS = 9
WIDTHS = (4, 5, 8, 12, 16)


@dataclass
class Timer:
    """A timed thing: `call` runs `rounds` rounds and blocks; `seconds` collects the time of one round."""

    call: Callable[[], None]
    rounds: int
    seconds: list[float]

    def sample(self) -> None:
        begin = time.perf_counter()
        self.call()
        self.seconds.append((time.perf_counter() - begin) / self.rounds)

    @property
    def median(self) -> float:
        return median(self.seconds)


def loop_timer(target: Decoder, weights: Any, drafter: Drafter, capacity: int) -> Timer:
    """Steps of the real decode loop, from a prompt of FILLED distinct tokens (so that lookup finds nothing)."""
    loop, params = Loop(target, drafter, Walk(), Warp(0.0)), Params(weights, {})
    prompt = [list(range(100, 100 + FILLED))]

    def fresh() -> State:
        state, lengths = start(loop, prompt, ROUNDS * (drafter.depth + 1) + 2, [0], capacity, rows=256)
        return jax.block_until_ready(prefill(loop, params, state, lengths))

    def call() -> None:
        jax.block_until_ready(run(loop, params, held.pop(), jnp.int32(ROUNDS)))

    held = [fresh()]
    call()
    timer = Timer(call, ROUNDS, [])
    sample = timer.sample

    def sample_fresh() -> None:
        held.append(fresh())
        sample()

    timer.sample = sample_fresh  # type: ignore[method-assign]
    return timer


@partial(jax.jit, static_argnames=("target", "width"))
def forwards(target: Decoder, width: int, weights: Any, cache: Cache, tokens: Any) -> Any:
    """ROUNDS forward passes of `width` tokens over the same cache, each fed by the one before."""

    def one(_: Any, tokens: Any) -> Any:
        positions = cache.length[:, None] + jnp.arange(width)
        out = target.forward(weights, target.embed(weights, tokens), positions, cache, causal_mask(width))
        return jnp.argmax(target.unembed(weights, out.hidden), -1).astype(jnp.int32)

    return lax.fori_loop(0, ROUNDS, one, tokens)


def forward_timer(target: Decoder, weights: Any, width: int) -> Timer:
    """The target's forward pass alone."""
    cache = target.empty_cache(1, 256).replace(length=jnp.full(1, FILLED, jnp.int32))
    tokens = jnp.arange(width, dtype=jnp.int32)[None]

    def call() -> None:
        jax.block_until_ready(forwards(target, width, weights, cache, tokens))

    call()
    return Timer(call, ROUNDS, [])


def bandwidth_timer(size: int) -> Timer:
    """The sum of as many bytes as the weights have."""
    data = jnp.ones((size // 4 // 2048, 2048))
    total = jax.jit(jnp.sum)
    total(data).block_until_ready()
    return Timer(lambda: total(data).block_until_ready(), 1, [])


def resident_mb(field: str) -> float:
    """VmRSS or VmHWM of this process in MB (Linux)."""
    with open("/proc/self/status") as status:
        return next(float(line.split()[1]) / 1024 for line in status if line.startswith(field))


def peak_extra_mb(target: Decoder, weights: Any) -> float:
    """Compiles first; then the high-water mark of a run, less memory before it and its caches."""
    loop, params = Loop(target, NGram(7), Walk(), Warp(0.0)), Params(weights, {})
    prompt = [list(range(100, 100 + FILLED))]

    def once() -> int:
        state, lengths = start(loop, prompt, 64, [0], 1024, rows=256)
        size = sum(x.nbytes for x in jax.tree.leaves(state.cache))
        state = prefill(loop, params, state, lengths)
        jax.block_until_ready(run(loop, params, state, jnp.int32(ROUNDS)))
        return size

    once()
    gc.collect()
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # forget the high-water mark so far
    before = resident_mb("VmRSS")
    caches = once()
    return resident_mb("VmHWM") - before - caches / 2**20


def compile_seconds(target: Decoder, weights: Any) -> float:
    """Tracing, lowering and compiling both programs of one bucket, from nothing."""
    loop, params = Loop(target, NGram(7), Walk(), Warp(0.0), chunk=64), Params(weights, {})
    state, lengths = start(loop, [[1, 2, 3]], 64, [0], 512)
    begin = time.perf_counter()
    prefill.lower(loop, params, state, lengths).compile()
    run.lower(loop, params, state, jnp.int32(1)).compile()
    return time.perf_counter() - begin


def main() -> None:
    model = sdjax.load("smollm2-135m")
    target, weights = model.target, jax.block_until_ready(model.params)
    size = sum(x.nbytes for x in jax.tree.leaves(weights))
    figures = {"compile_s": compile_seconds(target, weights), "peak_extra_mb": peak_extra_mb(target, weights)}
    timers = {
        "bandwidth": bandwidth_timer(size),
        "plain": loop_timer(target, weights, NoDraft(), 1024),
        "plain, capacity 4096": loop_timer(target, weights, NoDraft(), 4096),
        "forward of 1": forward_timer(target, weights, 1),
    }
    timers |= {f"verify {n}": loop_timer(target, weights, NGram(n - 1), 1024) for n in WIDTHS}
    for _ in range(REPEATS):
        for timer in timers.values():
            timer.sample()
    for name, timer in timers.items():
        print(f"{name:22} {1e3 * timer.median:8.2f} ms")
    read, plain = size / timers["bandwidth"].median, timers["plain"].median
    t1 = max(plain, size / (0.65 * read))
    figures |= {
        "read_bandwidth_gb_s": read / 1e9,
        "plain_step_ms": 1e3 * plain,
        "read_bandwidth_fraction": size / plain / read,
        **{f"t{n}_over_t1": timers[f"verify {n}"].median / t1 for n in WIDTHS},
        "overhead_fraction": 1 - timers["forward of 1"].median / plain,
        "step_time_capacity_ratio": timers["plain, capacity 4096"].median / plain,
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    takes_no_arguments("bench_decode", __doc__)
    main()
