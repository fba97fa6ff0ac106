"""Training throughput of each family on SmolLM2-135M: `make bench-train`, or

    python -m experiments.bench_train [eagle3 medusa ..] [--rounds 5] [--no-memory]

One optimiser step of configs/train/NAME_smollm2.py from its first weights: 2 × 512 packed tokens, the target's states
given, so that no pass of the target is timed. Families take turns with each other and with large products, medians are
quoted, all is float32. The last line is one JSON object:

matmul_peak_gflops        the best of the large products, on all cores
families.NAME:
  supervised_per_second   tokens that are learnt from; tokens_per_second counts all of the batch
  gflop                   of matrix products a step needs: without what is computed anew in the backward pass, and of the
                          losses' chunks only the supervised share of the rows
  mfu                     gflop / seconds / matmul_peak_gflops
  temporaries_mb          what the compiled step allocates besides its arguments and results
memory                    temporaries of EAGLE-3's gradient (the whole vocabulary, 1 × 2048 tokens, 7 unrolled steps) and of
                          the same loss with all logits held at once and nothing computed anew
"""

import gc
import inspect
import json
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import lax
from jaxtyping import Array, Float, Key
from rich.console import Console
from rich.table import Table

import sdjax
from experiments.config import load_file
from experiments.launch import ROOT, command_line, decode_in_float32, mistakes_end_the_program
from experiments.train_config import TrainConfig
from sdjax.core.types import Batch, Context, Trace
from sdjax.drafters.base import with_parts
from sdjax.drafters.eagle3 import Eagle3, published_taps
from sdjax.drafters.head import DraftHead
from sdjax.drafters.losses import soft_cross_entropy, weighted_mean
from sdjax.targets.decoder import Decoder, types
from sdjax.targets.load import Model
from sdjax.train.context import training_context
from sdjax.train.flops import matmul_flops
from sdjax.train.partition import is_float
from sdjax.train.recipe import Recipe
from sdjax.train.step import TrainState, drafter_loss, train_step

SUFFIX = "_smollm2"
DOCUMENTS = 3  # in a row, equally long
PRODUCTS = (2048, 3072)  # widths of the square products that stand for the machine's peak
MEMORY_LENGTH, MEMORY_STEPS = 2048, 7


@dataclass(frozen=True)
class Bench:
    """What is measured."""

    families: tyro.conf.Positional[tuple[str, ...]] = ()
    """names of configs/train/NAME_smollm2.py; none: all of them"""
    rounds: int = 5
    """steps of each family that are timed"""
    memory: bool = True
    """whether the memory of EAGLE-3's gradient is compared (compiles only)"""


def main(bench: Bench) -> dict[str, Any]:
    decode_in_float32()
    model = sdjax.load("smollm2-135m")
    found: dict[str, Any] = speeds(bench, model)
    if bench.memory:
        found["memory"] = memory(model.target)
    found["max_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = rounded(found)
    print(json.dumps(found))
    return found


def rounded(figures: Any) -> Any:
    """Four significant digits."""
    if isinstance(figures, dict):
        return {name: rounded(value) for name, value in figures.items()}
    return float(f"{figures:.4g}") if isinstance(figures, float) else figures


def configs_of(names: tuple[str, ...]) -> dict[str, TrainConfig]:
    """The configs of SmolLM2's drafters by family; ValueError for a family without one."""
    folder = ROOT / "configs" / "train"
    known = sorted(path.stem.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}.py"))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there are no families {unknown}; there are {', '.join(known)}")
    return {name: in_float32(load_file(folder / f"{name}{SUFFIX}.py").get_config()) for name in names or known}


def in_float32(config: TrainConfig) -> TrainConfig:
    """The config for a float32 target; drafters that are models name their own types."""
    return replace(config, drafter=with_parts(config.drafter, Decoder, lambda model: replace(model, **types("float32"))))


def packed(rows: int, length: int, vocab: int, seed: int = 0) -> Batch:
    """Rows of DOCUMENTS random texts, of which the first third is a prompt."""
    parts = np.array_split(np.arange(length), DOCUMENTS)
    each = lambda x: jnp.broadcast_to(jnp.asarray(x), (rows, length))
    positions = np.concatenate([np.arange(len(part)) for part in parts])
    return Batch(
        tokens=jnp.asarray(np.random.default_rng(seed).integers(0, vocab, (rows, length)), jnp.int32),
        positions=each(positions.astype(np.int32)),
        segments=each(np.repeat(np.arange(1, DOCUMENTS + 1, dtype=np.int32), [len(part) for part in parts])),
        loss_mask=each(np.concatenate([np.arange(len(part)) >= len(part) // 3 for part in parts])),
    )


def traced(target: Decoder, taps: int, batch: Batch) -> Trace:
    """The batch with random states, as the feature cache would give it."""
    keys = jax.random.split(jax.random.key(1))
    shape, dtype = batch.tokens.shape, jnp.dtype(target.dtype)
    features = jax.random.normal(keys[0], (*shape, taps, target.width), dtype)
    return Trace(batch, features, jax.random.normal(keys[1], (*shape, target.width), dtype))


@dataclass
class Step:
    """A family's step: `run` is compiled and donates the state."""

    run: Callable[[TrainState, Any, Trace], Any]
    state: TrainState
    trace: Trace
    temporaries: int
    flops: float
    seconds: list[float] = field(default_factory=list)

    def sample(self, target_params: Any) -> None:
        begin = time.perf_counter()
        self.state, _ = jax.block_until_ready(self.run(self.state, target_params, self.trace))
        self.seconds.append(time.perf_counter() - begin)


def step_of(config: TrainConfig, target: Decoder, target_params: Any, batch: Batch) -> Step:
    """The compiled step of a config, run once."""
    recipe = Recipe(target, config.drafter, config.optimiser, config.joint, config.frozen, config.cadence)
    counts = np.bincount(np.ravel(batch.tokens), minlength=target.vocab)
    state = recipe.begin(target_params, config.drafter.initial(target, target_params, counts, jax.random.key(0)), config.seed)
    trace = traced(target, len(config.drafter.taps), batch)
    flops = useful_flops(recipe, state, target_params, trace)
    run = train_step.lower(recipe.loss, recipe.optimiser, state, target_params, trace).compile()
    step = Step(run, state, trace, temporaries(run), flops)
    step.sample(target_params)
    step.seconds.clear()
    return step


def temporaries(compiled: Any) -> int:
    """Bytes that a compiled program allocates besides its arguments and results."""
    return compiled.memory_analysis().temp_size_in_bytes


def useful_flops(recipe: Recipe, state: TrainState, target_params: Any, trace: Trace) -> float:
    """Operations of a step's products: nothing twice, and of the losses' chunks the supervised share."""
    whole, none = (work(recipe, state, target_params, trace, branch) for branch in (taken, skipped))
    return none + float(trace.batch.loss_mask.mean()) * (whole - none)


def work(recipe: Recipe, state: TrainState, target_params: Any, trace: Trace, branch: Callable[..., Any]) -> int:
    """Operations of a step without rematerialisation, where `branch` stands for the conditions that skip chunks."""
    step: Any = inspect.unwrap(train_step)
    with unrematerialised(), patch.object(lax, "cond", branch):
        return matmul_flops(lambda *given: step(recipe.loss, recipe.optimiser, *given), state, target_params, trace)


def taken(condition: Any, one: Callable[..., Any], other: Callable[..., Any], *given: Any) -> Any:
    """`lax.cond` where the condition holds."""
    return one(*given)


def skipped(condition: Any, one: Callable[..., Any], other: Callable[..., Any], *given: Any) -> Any:
    """`lax.cond` where it does not; gradients still reach what is given, as those of the chunks beside it do."""
    floats = [x for x in jax.tree.leaves(given) if is_float(x)]
    return jax.tree.map(lambda x: x + 0 * sum(y.sum() for y in floats) if is_float(x) else x, other(*given))


@contextmanager
def unrematerialised() -> Iterator[None]:
    """What is traced inside keeps all that its backward pass needs."""
    with patch.object(jax, "checkpoint", lambda function, **_: function):
        yield


def speeds(bench: Bench, model: Model) -> dict[str, Any]:
    """Times the families in turns, and shows them."""
    configs = configs_of(bench.families)
    shapes = {(config.rows, config.length) for config in configs.values()}
    target, target_params = model.target, jax.block_until_ready(model.params)
    if len(shapes) > 1:
        raise ValueError(f"the configs' batches are {sorted(shapes)}; make them one shape, so that they compare")
    batch = packed(*shapes.pop(), target.vocab)
    steps = {}
    for name, config in configs.items():
        print(f"compiling {name}", flush=True)
        steps[name] = step_of(config, target, target_params, batch)
        gc.collect()
    products = {width: product(width) for width in PRODUCTS}
    peak = 0.0
    for _ in range(bench.rounds):
        peak = max(peak, *(2 * width**3 / clocked(call) for width, call in products.items()))
        for step in steps.values():
            step.sample(target_params)
    found = {name: figures(step, batch, peak) for name, step in steps.items()}
    show(found, peak)
    return {"matmul_peak_gflops": peak / 1e9, "rounds": bench.rounds, "families": found}


def product(width: int) -> Callable[[], Any]:
    """A square product, compiled and run once."""
    x = jax.random.normal(jax.random.key(0), (width, width))
    multiply = jax.jit(jnp.matmul)
    multiply(x, x).block_until_ready()
    return lambda: multiply(x, x)


def clocked(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begin


def figures(step: Step, batch: Batch, peak: float) -> dict[str, float]:
    seconds = median(step.seconds)
    return {
        "seconds": seconds,
        "supervised_per_second": float(batch.ahead(1)[1].sum()) / seconds,
        "tokens_per_second": batch.tokens.size / seconds,
        "gflop": step.flops / 1e9,
        "mfu": step.flops / seconds / peak,
        "temporaries_mb": step.temporaries / 2**20,
    }


def show(found: dict[str, dict[str, float]], peak: float) -> None:
    table = Table("family", title=f"a training step; products reach {peak / 1e9:.0f} GFLOP/s", title_justify="left")
    for title in ("s", "supervised tokens/s", "tokens/s", "GFLOP", "MFU", "temporaries, MB"):
        table.add_column(title, justify="right")
    for name, row in found.items():
        s, supervised, tokens, gflop, mfu, mb = row.values()
        table.add_row(name, f"{s:.2f}", f"{supervised:.0f}", f"{tokens:.0f}", f"{gflop:.1f}", f"{mfu:.1%}", f"{mb:.0f}")
    Console().print(table)


# What EAGLE-3's loss would hold without chunks and rematerialisation.


def naive_loss(
    drafter: Eagle3, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """`Eagle3.loss` with the logits of all rows and steps held at once."""
    del key
    with unrematerialised():
        outputs = drafter.unroll(ctx, params, trace)
    logits = drafter.logits(ctx, params, outputs)
    teacher = lax.stop_gradient(ctx.target.unembed(ctx.target_params, trace.hidden))
    inside, ids = jnp.ones(trace.batch.tokens.shape), params["head"].get("ids")
    if ids is not None:
        inside, teacher = jnp.isin(jnp.argmax(teacher, -1), ids), teacher[..., ids]
    loss = jnp.float32(0)
    for i in range(drafter.steps):
        law, weight = jnp.roll(teacher, -i - 1, 1), trace.ahead(i + 1)[1] * jnp.roll(inside, -i - 1, 1)
        loss += drafter.decay**i * weighted_mean(soft_cross_entropy(logits[i], law), weight)
    return loss, {}


def memory(target: Decoder) -> dict[str, float]:
    """Temporaries of the gradient, ours and naive, in MB as compiled; nothing is run."""
    drafter = Eagle3(published_taps(target.layers), head=DraftHead(trained=True), steps=MEMORY_STEPS)
    abstract = lambda specs: jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), specs)
    params, target_params = abstract(drafter.specs(target)), abstract(target.specs())
    trace = jax.eval_shape(lambda: traced(target, len(drafter.taps), packed(1, MEMORY_LENGTH, target.vocab)))
    ours = drafter_loss(drafter, target)

    def naive(params: Any, target_params: Any, trace: Trace, key: Any, step: Any) -> Any:
        return naive_loss(drafter, training_context(target, target_params, trace.batch), params, trace, key)

    found = {}
    for name, loss in {"ours": ours, "naive": naive}.items():
        gradient = jax.jit(jax.grad(loss, has_aux=True))
        compiled = gradient.lower(params, target_params, trace, jax.random.key(0), jnp.int32(0)).compile()
        found[f"{name}_mb"] = temporaries(compiled) / 2**20
    print(f"EAGLE-3's gradient: temporaries of {found['ours_mb']:.0f} MB, naively {found['naive_mb']:.0f} MB", flush=True)
    return found | {"ours_over_naive": found["ours_mb"] / found["naive_mb"]}


if __name__ == "__main__":
    with mistakes_end_the_program():
        main(command_line("bench_train", Bench, __doc__))
