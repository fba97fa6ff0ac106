"""A training step on machines that are not here: what the TPU compiler says of it. All figures are of one chip.

Parameters may be gathered here: over `fsdp` they are split at rest and whole where a layer needs them (`train.place`). What
is promised is memory to spare, for the copies that held-out decoding takes, too, and a state that is updated in place.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from sdjax.core.types import Batch
from sdjax.decode.place import params_shardings
from sdjax.decode.state import Loop, Params
from sdjax.drafters.base import Trainable
from sdjax.mesh.ahead import Compiled, abstract, compile_ahead, tpu_devices
from sdjax.mesh.chips import chip_of
from sdjax.mesh.layout import TRAIN, Layout, make_mesh
from sdjax.study.plan import compiler, size_on_chip
from sdjax.study.promises import full, kept_twice
from sdjax.targets.decoder import Decoder
from sdjax.train.optimiser import Optimiser
from sdjax.train.place import batch_sharding, sharded_step, state_shardings
from sdjax.train.recipe import Recipe
from sdjax.train.step import TrainState
from sdjax.verify.walk import Walk


@dataclass(frozen=True)
class TrainCase:
    """An optimiser step on `rows` packed texts of `length` tokens; `fsdp` and `model` chips split the parameters.

    The target is frozen. `fits` is a promise: with a tenth of the memory to spare.
    """

    topology: str
    drafter: Trainable
    rows: int
    length: int
    fsdp: int = 1
    model: int = 1
    optimiser: Optimiser = field(default_factory=Optimiser)
    fits: bool = True


def compile_step(target: Decoder, case: TrainCase) -> tuple[Layout, TrainState, Compiled]:
    """The layout, the state as it is placed, and the compiled step of `train.place`."""
    devices = tpu_devices(case.topology)
    data = len(devices) // (case.fsdp * case.model)
    layout = Layout(make_mesh(data, case.fsdp, case.model, devices), TRAIN)
    recipe = Recipe(target, case.drafter, case.optimiser)
    shapes = lambda specs: jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), specs)
    of_target = shapes(target.specs())
    state = jax.eval_shape(lambda t, d: recipe.begin(t, d, 0), of_target, shapes(case.drafter.specs(target)))
    state = abstract(state, state_shardings(layout, recipe, state))
    rows: Any = jax.ShapeDtypeStruct((case.rows, case.length), jnp.int32, sharding=batch_sharding(layout))
    learnt: Any = jax.ShapeDtypeStruct(rows.shape, jnp.bool_, sharding=rows.sharding)
    step = sharded_step(layout, recipe, state)
    return (
        layout,
        state,
        compile_ahead(step, state, abstract(of_target, layout.params(target.specs())), Batch(rows, rows, rows, learnt)),
    )


def examine_step(target: Decoder, case: TrainCase) -> dict[str, Any]:
    """What the compiler says, as JSON data, and the promises that are broken. Of a program that does not fit, its size."""
    layout, state, compiled = compile_step(target, case)
    chip = chip_of(case.topology)
    found = {
        "drafter": type(case.drafter).__name__,
        "mesh": dict(layout.mesh.shape),
        **{key: getattr(case, key) for key in ("topology", "rows", "length", "fits")},
        "compiler": compiler(),
        "hbm": chip.hbm,
        "memory": asdict(compiled.memory),
        "seconds_to_compile": compiled.seconds_to_compile,
        "faults": full(case.topology, case.fits, compiled.memory.total, compiled.fits),
    }
    if not compiled.fits:
        return found
    evaluation = compiled.memory.arguments + copies(target, case, layout)
    found["evaluation"] = {"total": evaluation}
    found["faults"] += kept_twice(state, compiled)
    found["faults"] += [f"held-out decoding: {fault}" for fault in full(case.topology, case.fits, evaluation)]
    return found | {
        "flops": compiled.flops,
        "exchanged": exchanged(compiled),
        "cycles": compiled.program.cycles,
        "step_seconds": compiled.seconds(chip),
    }


def copies(target: Decoder, case: TrainCase, layout: Layout) -> int:
    """Bytes on one chip of target and drafter as held-out prompts are decoded with them (`train.evaluate`)."""
    placed = params_shardings(layout.decoding(), Loop(target, case.drafter, Walk()))
    held = abstract(Params(target.specs(), case.drafter.specs(target)), placed)
    return sum(map(size_on_chip, jax.tree.leaves(held)))


def exchanged(compiled: Compiled) -> list[dict[str, Any]]:
    """Exchanges between chips by kind: how many, and their bytes; those in a loop are counted once."""
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for i in compiled.program.collectives:
        kind = i.op.removesuffix("-start")
        count[kind] += 1
        size[kind] += i.bytes
    return [{"kind": kind, "count": count[kind], "bytes": size[kind]} for kind in sorted(count)]
