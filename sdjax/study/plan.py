"""A decode loop on machines that are not here: what the TPU compiler says of it. All figures are of one chip.

A case is lowered and compiled whole, as `generate` calls it; what is read of the program is one step, the loop's body.
"""

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp

from sdjax.core.cache import Cache
from sdjax.core.sampling import Warp
from sdjax.decode.generate import run
from sdjax.decode.place import params_shardings, state_shardings
from sdjax.decode.prefill import prefill
from sdjax.decode.schedule import Schedule
from sdjax.decode.state import Loop, Params
from sdjax.drafters.base import Drafter
from sdjax.mesh.ahead import Compiled, abstract, compile_ahead, tpu_devices
from sdjax.mesh.chips import chip_of
from sdjax.mesh.hlo import Instruction
from sdjax.mesh.layout import DECODE, Layout, Rules, make_mesh, within
from sdjax.targets.decoder import Decoder
from sdjax.verify.base import Rule
from sdjax.verify.walk import Walk

SCOPES = ("propose", "schedule", "judge", "observe")
UNNAMED = "drafter or rule"
STEPS = 1024  # whose records the state has room for


@dataclass(frozen=True)
class Case:
    """One program on one machine: `data` groups of chips that share `batch` sequences, each with `context` cache rows.

    `fits` is a promise: with a tenth of the memory to spare.
    """

    topology: str
    drafter: Drafter
    batch: int = 1
    context: int = 4096
    data: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    rule: Rule = field(default_factory=Walk)
    schedule: Schedule | None = None
    pack: tuple[int, ...] = ()
    fits: bool = True


@dataclass(frozen=True)
class Placed:
    """A case ready to be lowered: the loop, where its arrays live, and their abstract selves."""

    loop: Loop
    layout: Layout
    params: Params
    state: Any


def place(target: Decoder, case: Case, rules: Rules = DECODE, devices: Any = None) -> Placed:
    """Everything that lowering needs; makes no array. `devices` default to those of the case's topology."""
    devices = tpu_devices(case.topology) if devices is None else devices
    layout = Layout(make_mesh(data=case.data, model=len(devices) // case.data, devices=devices), rules)
    warp = Warp(case.temperature, case.top_k, case.top_p)
    loop = Loop(target, case.drafter, case.rule, warp, schedule=case.schedule, pack=case.pack)
    state = jax.eval_shape(lambda: loop.empty(case.batch, case.context, STEPS))
    specs = Params(target.specs(), case.drafter.specs(target))
    return Placed(
        loop=loop,
        layout=layout,
        params=abstract(specs, params_shardings(layout, loop)),
        state=abstract(state, state_shardings(layout, loop, state)),
    )


def compile_loop(placed: Placed) -> Compiled:
    """The whole loop of `generate`, as it is called there."""
    with within(placed.layout):
        return compile_ahead(run, placed.loop, placed.params, placed.state, jax.ShapeDtypeStruct((), jnp.int32), loop=True)


def compile_prefill(placed: Placed) -> Compiled:
    """The other program of `generate`: prompts in chunks; what is read of it is one chunk."""
    lengths = jax.ShapeDtypeStruct(placed.state.p.shape, jnp.int32)
    with within(placed.layout):
        return compile_ahead(prefill, placed.loop, placed.params, placed.state, lengths, loop=True)


def report(case: Case, placed: Placed, compiled: Compiled) -> dict[str, Any]:
    """What the compiler says, as JSON data. Of a program that does not fit, its size is all there is."""
    chip = chip_of(case.topology)
    found = {
        "drafter": type(case.drafter).__name__,
        "rule": type(case.rule).__name__,
        "nodes": case.drafter.nodes,
        "chips": placed.layout.mesh.size,
        "mesh": dict(placed.layout.mesh.shape),
        **{key: getattr(case, key) for key in ("topology", "batch", "context", "temperature", "top_k", "top_p", "fits")},
        "compiler": compiler(),
        "hbm": chip.hbm,
        "memory": asdict(compiled.memory),
        "parts": parts(placed),
        "seconds_to_compile": compiled.seconds_to_compile,
    }
    if not compiled.fits:
        return found
    return found | {
        "flops": compiled.flops,
        "bytes": compiled.bytes,
        "collectives": collectives_of(compiled),
        "written_back": written_back(placed, compiled),
        "cycles": compiled.program.cycles,
        "step_seconds": compiled.seconds(chip),
    }


def parts(placed: Placed) -> dict[str, int]:
    """Bytes on one chip of what goes into the loop."""
    held = {
        "target": placed.params.target,
        "drafter": placed.params.drafter,
        "target's cache": placed.state.cache,
        "drafter's state": placed.state.drafter,
    }
    return {name: sum(map(size_on_chip, jax.tree.leaves(tree))) for name, tree in held.items()}


def size_on_chip(x: Any) -> int:
    """Bytes of a placed array on one chip."""
    return math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize


def collectives_of(compiled: Compiled) -> list[dict[str, Any]]:
    """Counted by kind, size, and the part of the step that they belong to; `looped` ones stand in a loop of that part."""
    found = Counter((scope_of(i), i.op.removesuffix("-start"), i.bytes, i.looped) for i in compiled.program.collectives)
    names = "scope", "kind", "bytes", "looped"
    return [dict(zip(names, key, strict=True)) | {"count": n} for key, n in sorted(found.items())]


def scope_of(exchange: Instruction) -> str:
    """One of SCOPES by its name; else the target's, which has no loops: what stands in one has lost its name."""
    named = next((scope for scope in SCOPES if scope in exchange.scope.split("/")), None)
    return named or (UNNAMED if exchange.looped else "target")


def caches(placed: Placed) -> list[Any]:
    """Keys and values of every layer, the target's and the drafter's."""
    is_cache = lambda x: isinstance(x, Cache)
    state = placed.state.cache, placed.state.drafter
    return jax.tree.leaves([x.layers for x in jax.tree.leaves(state, is_leaf=is_cache) if is_cache(x)])


def cache_sizes(placed: Placed) -> set[int]:
    """Elements of each of them on one chip."""
    return {math.prod(x.sharding.shard_shape(x.shape)) for x in caches(placed)}


def written_back(placed: Placed, compiled: Compiled) -> int:
    """Bytes of caches that are changed in a core's memory and go back to HBM whole, in one step."""
    return sum(i.shapes[0].bytes for size in cache_sizes(placed) for i in compiled.program.written_back(size))


def compiler() -> str:
    """Whose answers these are."""
    return f"libtpu {version('libtpu')}, jax {version('jax')}"
