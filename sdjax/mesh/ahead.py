"""Compiling for machines that are not here: libtpu's compiler runs on any CPU and answers for any topology.

Nothing is executed: all figures are the compiler's, none is measured.
"""

import os
import re
import time
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies

from sdjax.mesh.chips import Chip
from sdjax.mesh.hlo import Instruction, Program, read_program

OVER = re.compile(r"(?:Used (?=\S+ of \S+ hbm)|HLO temporaries \()([\d.]+)([KMGT])\b")  # two ways of saying how much is needed
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Memory:
    """Bytes of HBM on one chip: what goes in, what comes out of it in place, and what is needed beside."""

    arguments: int
    aliased: int
    temporary: int
    total: int


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of one program, for one chip; `memory.total` is all that is known of one that is too large.

    `outside` are the exchanges between chips that stand around the loop that `program` is the body of.
    """

    memory: Memory
    fits: bool
    flops: float
    bytes: float
    program: Program
    lower_seconds: float
    compile_seconds: float
    output_shardings: Any
    outside: tuple[Instruction, ...] = ()

    @property
    def seconds_to_compile(self) -> float:
        """Lowering included."""
        return round(self.lower_seconds + self.compile_seconds, 1)

    def seconds(self, chip: Chip) -> float:
        """The longer of the compiler's cycles and of reading every argument from HBM once (weights and caches)."""
        return max(self.program.cycles / chip.clock, self.memory.arguments / chip.bandwidth)


def tpu_devices(topology: str) -> Any:
    """The devices of a topology such as v5e:2x4; ValueError without libtpu, or for a shape that does not exist."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no metadata server is asked what machine this is
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no TPU is held: several processes may compile at once
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    except Exception as error:  # of several kinds, from inside libtpu
        raise ValueError(
            f"no topology {topology!r}: {error}; is libtpu installed (the tpu extra), and does the shape exist?"
        ) from error


def abstract(tree: Any, shardings: Any) -> Any:
    """Shapes without arrays, placed: what a program is lowered for."""
    return jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree, shardings)


def compile_ahead(function: Any, *arguments: Any, loop: bool = False) -> Compiled:
    """Lowers and compiles a jitted function for the devices that its abstract arguments are placed on.

    With `loop`, what is read of the program is the body of its loop. FLOPs and bytes count a loop's body once, too.
    """
    begin = time.perf_counter()
    lowered = function.lower(*arguments)
    lower_seconds, begin = time.perf_counter() - begin, time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return too_large(error, lower_seconds, time.perf_counter() - begin)
    compile_seconds = time.perf_counter() - begin
    text = compiled.as_text()
    around = [i for i in read_program(text).collectives if not i.looped] if loop else []
    stats, cost = compiled.memory_analysis(), compiled.cost_analysis()
    total = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes + stats.temp_size_in_bytes
    return Compiled(
        memory=Memory(stats.argument_size_in_bytes, stats.alias_size_in_bytes, stats.temp_size_in_bytes, total),
        fits=True,
        flops=cost["flops"],
        bytes=cost["bytes accessed"],
        program=read_program(text, loop),
        lower_seconds=lower_seconds,
        compile_seconds=compile_seconds,
        output_shardings=compiled.output_shardings,
        outside=tuple(around),
    )


def too_large(error: Exception, lower_seconds: float, compile_seconds: float) -> Compiled:
    """What the refusal of a program that does not fit says: its size. Any other failure is raised again."""
    said = OVER.search(str(error))
    if said is None:
        raise error
    total = int(float(said[1]) * UNITS[said[2]])
    return Compiled(Memory(0, 0, 0, total), False, 0.0, 0.0, Program((), "", 0), lower_seconds, compile_seconds, None)
