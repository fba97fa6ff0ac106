"""Compiles decoding for TPUs that are not here, and says what their compiler answers: memory, collectives, time of a step.

    python -m experiments.aot                                                                      every case of configs/aot
    python -m experiments.aot --config configs/aot/llama31_8b.py --topology v5e:2x4 --case plain   some of one
    python -m experiments.aot --config configs/aot/llama31_8b.py --curve v5e:2x4                   what wider passes cost
    python -m experiments.aot --table                                                              the table alone

Needs libtpu (pip install sdjax[tpu]) and no TPU. Each case is one JSON file in docs/scale/; every call writes the table
in docs/scale.md anew from all of them. Leaves with exit code 1 where a case breaks a promise (`faults`).
"""

import json
import math
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax.sharding import NamedSharding, PartitionSpec

from experiments.config import config_files, find_config, load_file
from experiments.launch import ROOT, mistakes_end_the_program, package_version
from sdjax.core.cache import Cache
from sdjax.core.sampling import Warp
from sdjax.decode.generate import run
from sdjax.decode.place import params_shardings, state_shardings
from sdjax.decode.state import Loop, Params
from sdjax.drafters.base import Drafter
from sdjax.mesh.ahead import Compiled, abstract, compile_ahead, tpu_devices
from sdjax.mesh.chips import GIB, chip_of
from sdjax.mesh.hlo import Instruction
from sdjax.mesh.layout import DECODE, Layout, Rules, make_mesh
from sdjax.study.runs import write_json
from sdjax.targets.decoder import Decoder, causal_mask
from sdjax.verify.base import Rule
from sdjax.verify.walk import Walk

FREE = 0.10  # of HBM, in cases that are marked to fit
SCOPES = ("propose", "judge", "observe")
UNNAMED = "drafter or rule"
SHALLOW = (2, 4)  # layers that are compiled for a curve
RESULTS = ROOT / "docs" / "scale"
COLUMNS = (
    "target",
    "case",
    "machine (data×model)",
    "drafter and nodes",
    "batch × context",
    "HBM of a chip",
    "fits",
    "GFLOP",
    "GB touched",
    "ms a step",
    "s to compile",
)
HEAD = """# Decoding at scale: what the TPU compiler says

Written by `python -m experiments.aot` (configs in `configs/aot`), from the files in `docs/scale/`. **Every figure here is
the compiler's estimate (libtpu, ahead of time, on a machine without a TPU). None was measured on hardware.**

All figures are those of one chip. Memory is exact: it is what the program allocates. FLOPs and bytes are those of one
draft-verify step; a loop inside of it is counted once. A step's time is the longer of two: the cycles that the compiler
expects of its instructions, which leave out transfers between chips, those from HBM that run beside, and the inner loops;
and reading weights and caches from HBM once. It is a lower bound more than a forecast.
"""
COLLECTIVES = """## Exchanges between chips, one step

Counted in the compiled text by part of the step (the target's pass, propose, judge, observe; in a loop the compiler
forgets which of the last three it was); those in an inner loop are
counted once, however often it runs.
"""
CURVES = """## What a wider pass costs

t(n) / t(1) for one sequence with 4,096 cache rows, and c, a step of the draft model, in plain steps: estimates from programs
of two depths (all layers are alike). `sdjax.trees.hardware.CostCurve.read` takes these files.
"""


@dataclass(frozen=True)
class Case:
    """One program on one machine: `data` groups of chips that share `batch` sequences, each with `context` cache rows."""

    topology: str
    drafter: Drafter
    batch: int = 1
    context: int = 4096
    data: int = 1
    temperature: float = 0.0
    rule: Rule = field(default_factory=Walk)
    fits: bool = True


@dataclass(frozen=True)
class AotConfig:
    """A target, a smaller model whose step prices a draft, and the cases that are compiled."""

    name: str
    target: Decoder
    draft: Decoder
    cases: dict[str, Case]


@dataclass(frozen=True)
class Given:
    """What the command line says."""

    config: str | None = None
    """a file in configs/aot; all of them where none is given"""
    topology: str | None = None
    """only cases on this one"""
    case: str | None = None
    """only the case of this name"""
    curve: str | None = None
    """instead of cases: the verify-cost curve on this topology, one sequence"""
    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    """tokens of the curve's passes"""
    table: bool = False
    """compile nothing, write the table"""
    out: Path = RESULTS


@dataclass(frozen=True)
class Placed:
    """A case ready to be lowered: the loop, where its arrays live, and their abstract selves."""

    loop: Loop
    layout: Layout
    params: Params
    state: Any


def place(target: Decoder, case: Case, rules: Rules = DECODE, devices: Any = None) -> Placed:
    """Everything that lowering needs; makes no array."""
    devices = tpu_devices(case.topology) if devices is None else devices
    layout = Layout(make_mesh(data=case.data, model=len(devices) // case.data, devices=devices), rules)
    loop = Loop(target, case.drafter, case.rule, Warp(case.temperature))
    state = jax.eval_shape(lambda: loop.empty(case.batch, case.context, 1024))
    specs = Params(target.specs(), case.drafter.specs(target))
    return Placed(
        loop=loop,
        layout=layout,
        params=abstract(specs, params_shardings(layout, loop)),
        state=abstract(state, state_shardings(layout, loop, state)),
    )


def compile_loop(placed: Placed) -> Compiled:
    """The whole loop of `generate`, as it is called there; what is read of it is one step, its body."""
    return compile_ahead(run, placed.loop, placed.params, placed.state, jax.ShapeDtypeStruct((), jnp.int32), loop=True)


def collectives_of(compiled: Compiled) -> list[dict[str, Any]]:
    """Counted by kind, size, and the part of the step that they belong to; `looped` ones stand in a loop of that part."""
    found = Counter(
        (scope_of(i), i.op.removesuffix("-start"), max(s.bytes for s in i.shapes), i.looped)
        for i in compiled.program.collectives
    )
    names = "scope", "kind", "bytes", "looped"
    return [dict(zip(names, key, strict=True)) | {"count": n} for key, n in sorted(found.items())]


def scope_of(exchange: Instruction) -> str:
    """Propose, judge or observe by its name; else the target's, which has no loops: what stands in one has lost its name."""
    named = next((scope for scope in SCOPES if scope in exchange.scope.split("/")), None)
    return named or (UNNAMED if exchange.looped else "target")


def whole_sizes(placed: Placed) -> set[tuple[int, str]]:
    """Sizes and types of all arrays that are split, once gathered along some of their axes or all."""
    sizes = set()
    for x in jax.tree.leaves((placed.params, placed.state.cache.layers, placed.state.drafter)):
        axes = [axis for part in x.sharding.spec if part for axis in ((part,) if isinstance(part, str) else part)]
        ways = [placed.layout.mesh.shape[axis] for axis in axes]
        held = math.prod(x.sharding.shard_shape(x.shape))
        if ways and x.ndim > 1:
            sizes |= {(x.size, short(x.dtype))} | {(held * way, short(x.dtype)) for way in ways}
    return sizes


def short(dtype: Any) -> str:
    """XLA's name of a type."""
    return {"bfloat16": "bf16", "float32": "f32", "int32": "s32", "uint32": "u32", "bool": "pred"}[str(jnp.dtype(dtype))]


def gathered(placed: Placed, compiled: Compiled) -> list[str]:
    """Faults: a parameter, a cache or an array of the vocabulary's size that is moved between chips within a step."""
    sizes, vocab, faults = whole_sizes(placed), placed.loop.target.vocab, []
    for i in compiled.program.collectives:
        for s in i.shapes:
            wide = any(dim >= vocab for dim in s.dims)
            if wide or ("reduce" not in i.op and (s.size, s.dtype) in sizes):
                faults.append(f"{i.op} of {s.dtype}{list(s.dims)} in {scope_of(i)}")
    return sorted(set(faults))


def copied(placed: Placed, compiled: Compiled) -> list[str]:
    """Faults: a cache that is copied in HBM, or a state that is not updated in place."""
    copies = {shape: compiled.program.copies(math.prod(shape)) for shape in cache_shapes(placed)}
    faults = [f"{len(found)} copies of a cache {list(shape)}" for shape, found in copies.items() if found]
    held = sum(size_on_chip(x) for x in jax.tree.leaves(placed.state))
    if compiled.memory.aliased < 0.95 * held:
        faults.append(f"only {compiled.memory.aliased:,} of the state's {held:,} bytes are updated in place")
    return faults


def cache_shapes(placed: Placed) -> set[tuple[int, ...]]:
    """Those of the target's caches, on one chip."""
    return {x.sharding.shard_shape(x.shape) for x in jax.tree.leaves(placed.state.cache.layers)}


def size_on_chip(x: Any) -> int:
    """Bytes of a placed array on one chip."""
    return math.prod(x.sharding.shard_shape(x.shape)) * jnp.dtype(x.dtype).itemsize


def too_many_reductions(placed: Placed, compiled: Compiled) -> list[str]:
    """Faults: more all-reduces in the target's own pass than two a layer and four."""
    found = [i for i in compiled.program.collectives if scope_of(i) == "target" and "reduce" in i.op]
    most = 2 * placed.loop.target.layers + 4
    return [f"{len(found)} all-reduces in the target's pass; {most} are promised"] if len(found) > most else []


def too_full(case: Case, compiled: Compiled) -> list[str]:
    """Faults: less than a tenth of HBM left where the case is marked to fit."""
    hbm = chip_of(case.topology).hbm
    free = 1 - compiled.memory.total / hbm
    if not case.fits or (compiled.fits and free >= FREE):
        return []
    return [f"{compiled.memory.total / GIB:.1f} GiB of {hbm / GIB:.0f}: {free:.0%} are left, {FREE:.0%} are promised"]


def moved(placed: Placed, compiled: Compiled) -> list[str]:
    """Faults: parts of the state that come out of the loop elsewhere than they went in, so that the next call recompiles."""
    stays = lambda x, after: after.is_equivalent_to(x.sharding, x.ndim)
    kept = jax.tree.leaves(jax.tree.map(stays, placed.state, compiled.output_shardings))
    return [] if all(kept) else [f"{kept.count(False)} arrays of the state change their place"]


def examine(config: AotConfig, name: str, rules: Rules = DECODE) -> dict[str, Any]:
    """Compiles one case; everything that the compiler says of it, for one chip."""
    case = config.cases[name]
    placed = place(config.target, case, rules)
    compiled = compile_loop(placed)
    report = {
        "case": name,
        "target": config.name,
        "drafter": type(case.drafter).__name__,
        "nodes": case.drafter.nodes,
        "chips": placed.layout.mesh.size,
        "mesh": dict(placed.layout.mesh.shape),
        **{key: getattr(case, key) for key in ("topology", "batch", "context", "temperature", "fits")},
        "compiler": compiler(),
        "hbm": chip_of(case.topology).hbm,
        "memory": asdict(compiled.memory),
        "seconds_to_compile": round(compiled.lower_seconds + compiled.compile_seconds, 1),
    }
    faults = too_full(case, compiled)
    if not compiled.fits:
        return report | {"faults": faults}
    for find in (copied, moved, gathered, too_many_reductions):
        faults += find(placed, compiled)
    return report | {
        "flops": compiled.flops,
        "bytes": compiled.bytes,
        "collectives": collectives_of(compiled),
        "caches_written_back": sum(len(compiled.program.written_back(math.prod(shape))) for shape in cache_shapes(placed)),
        "cycles": compiled.program.cycles,
        "step_seconds": compiled.seconds(chip_of(case.topology)),
        "faults": faults,
    }


def pass_over(target: Decoder, params: Any, cache: Cache, tokens: Any) -> tuple[Any, Any]:
    """A verify pass over a chain behind the cache: the target's choices, and the rows that it would commit."""
    positions = cache.length[:, None] + jnp.arange(tokens.shape[1])
    out = target.forward(params, target.embed(params, tokens), positions, cache, causal_mask(tokens.shape[1]))
    return jnp.argmax(target.unembed(params, out.hidden), -1), out.staged


def pass_seconds(target: Decoder, topology: str, tokens: int, context: int) -> float:
    """The compiler's estimate for one pass of one sequence. All layers are alike: two depths are compiled, and the line
    through them is followed to the model's own."""
    chip, devices = chip_of(topology), tpu_devices(topology)
    layout = Layout(make_mesh(model=len(devices), devices=devices))
    found = []
    for layers in SHALLOW:
        model = target.truncate(layers)
        cache = jax.eval_shape(partial(model.empty_cache, 1, context))
        compiled = compile_ahead(
            jax.jit(pass_over, static_argnums=0),
            model,
            abstract(model.specs(), layout.params(model.specs())),
            abstract(cache, layout.state(cache)),
            jax.ShapeDtypeStruct((1, tokens), jnp.int32, sharding=NamedSharding(layout.mesh, PartitionSpec())),
        )
        found.append(np.array([compiled.program.cycles / chip.clock, compiled.memory.arguments / chip.bandwidth]))
    one_layer = (found[1] - found[0]) / (SHALLOW[1] - SHALLOW[0])
    return float(max(found[0] + one_layer * (target.layers - SHALLOW[0])))


def curve(config: AotConfig, topology: str, widths: tuple[int, ...], context: int = 4096) -> dict[str, Any]:
    """t(n) / t(1) and the price of a draft step, as `trees.hardware.CostCurve` reads them."""
    times = [pass_seconds(config.target, topology, n, context) for n in widths]
    return {
        "tokens": list(widths),
        "verify": [t / times[0] for t in times],
        "draft": pass_seconds(config.draft, topology, 1, context) / times[0],
        "seconds": times,
        "target": config.name,
        "topology": topology,
        "context": context,
        "compiler": compiler(),
        "estimate": "the TPU compiler's cycles, or reading weights and cache once if that takes longer; not measured",
    }


def compiler() -> str:
    return f"libtpu {package_version('libtpu')}, jax {package_version('jax')}"


def main(given: Given) -> int:
    """Compiles what was asked for, writes files and table, and returns how many faults were found."""
    given.out.mkdir(parents=True, exist_ok=True)
    faults = sum(of_config(config, given) for config in configs(given))
    (given.out.parent / f"{given.out.name}.md").write_text(page(given.out), encoding="utf-8")
    return faults


def configs(given: Given) -> list[AotConfig]:
    """Those that were asked for."""
    if given.table:
        return []
    paths = config_files("aot") if given.config is None else [find_config(given.config)]
    return [load_file(path).get_config() for path in paths]


def of_config(config: AotConfig, given: Given) -> int:
    """Its curve, or its cases; the number of faults."""
    if given.curve is None:
        return sum(compiled_and_written(config, name, given.out) for name in chosen(config, given))
    found = curve(config, given.curve, given.widths)
    write_json(given.out / f"curve-{config.name}-{given.curve.replace(':', '-')}.json", found)
    return 0


def compiled_and_written(config: AotConfig, name: str, folder: Path) -> int:
    """One case: its file, its line on the screen, and how many faults it has."""
    report = examine(config, name)
    write_json(folder / f"{config.name}-{name}.json", report)
    print(" · ".join(cells(report)), flush=True)
    for fault in report["faults"]:
        print(f"  fault: {fault}")
    return len(report["faults"])


def chosen(config: AotConfig, given: Given) -> list[str]:
    """The cases that were asked for; ValueError where there are none."""
    names = [
        name for name, case in config.cases.items() if given.case in (None, name) and given.topology in (None, case.topology)
    ]
    if not names and given.config is not None:
        raise ValueError(
            f"no case {given.case or ''} on {given.topology or 'any machine'}; there are {', '.join(config.cases)}"
        )
    return names


def page(folder: Path) -> str:
    """docs/scale.md from the files of a folder."""
    read = lambda pattern: [json.loads(path.read_text()) for path in sorted(folder.glob(pattern))]
    reports, curves = [r for r in read("*.json") if "case" in r], read("curve-*.json")
    lines = [HEAD, "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cells(r)) + " |" for r in reports]
    lines += ["", COLLECTIVES, *(f"- {r['target']} {r['case']}: {exchanged(r)}" for r in reports if "collectives" in r)]
    if curves:
        lines += ["", CURVES, "| target | machine | c | " + " | ".join(f"t({n})" for n in curves[0]["tokens"]) + " |"]
        lines += ["|" + "---|" * (3 + len(curves[0]["tokens"]))]
        lines += [
            f"| {c['target']} | {c['topology']} | {c['draft']:.2f} | " + " | ".join(f"{t:.2f}" for t in c["verify"]) + " |"
            for c in curves
        ]
    return "\n".join(lines) + "\n"


def cells(report: dict[str, Any]) -> list[str]:
    """A case as a row of the table."""
    memory, hbm = report["memory"]["total"], report["hbm"]
    machine = f"{report['topology']} ({report['mesh']['data']}×{report['mesh']['model']})"
    work = f"{report['drafter']} {report['nodes']}, T={report['temperature']:g}"
    load = f"{report['batch']} × {report['context']:,}"
    row = [report["target"], report["case"], machine, work, load, f"{memory / GIB:.1f} of {hbm / GIB:.0f} GiB"]
    if "collectives" not in report:
        return [*row, f"no: {(memory - hbm) / GIB:.1f} GiB too much", "", "", "", f"{report['seconds_to_compile']:.0f}"]
    return [
        *row,
        f"{1 - memory / hbm:.0%} free",
        f"{report['flops'] / 1e9:.1f}",
        f"{report['bytes'] / 1e9:.2f}",
        f"{report['step_seconds'] * 1e3:.2f}",
        f"{report['seconds_to_compile']:.0f}",
    ]


def exchanged(report: dict[str, Any]) -> str:
    """A case's collectives in words, part by part."""
    parts = []
    for scope in ("target", *SCOPES, UNNAMED):
        here = [c for c in report["collectives"] if c["scope"] == scope]
        words = [f"{c['count']} {c['kind']} of {c['bytes']:,} B{' in a loop' if c['looped'] else ''}" for c in here]
        parts += [f"{scope}: {', '.join(words)}"] if words else []
    return "; ".join(parts) or "none"


if __name__ == "__main__":
    with mistakes_end_the_program():
        sys.exit(1 if main(tyro.cli(Given, description=__doc__)) else 0)
