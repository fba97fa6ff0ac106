"""docs/scale.md, written from the files that experiments.aot leaves: one row a case, its collectives, the curves."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.aot_config import Given, configs, curve_name
from sdjax.mesh.chips import GIB
from sdjax.study.plan import SCOPES, UNNAMED

HEAD = """# Decoding at scale: what the TPU compiler says

Written by `python -m experiments.aot` (configs in `configs/aot`), from the files in `docs/scale/` and
`experiments/tables/`. **Every figure here is the compiler's estimate (libtpu, ahead of time, on a machine without
a TPU). None was measured on hardware.**

All figures are those of one chip. Memory is what the compiler lets programs have, and what the two programs of `generate`
allocate, the decode loop and prefill (a chunk of 128 tokens a sequence behind as many cache rows); while caches grow, by
doubling, the smaller ones are there beside them, which is seen to fit, too. FLOPs and bytes are those of one draft-verify step;
a loop inside of it is counted once. A step's time is the longer of two: the cycles that the compiler expects of its
instructions, a draft's loops as often as they run, without transfers between chips and those from HBM that run beside; and
reading weights and caches from HBM once. It is a lower bound more than a forecast, and changes of the code that compute the
same have moved one by a tenth. Every case is asked to keep what `sdjax.study.promises` says: no parameter, cache or array of
the vocabulary's size moves between chips, no cache is copied, the state is updated in place, the target's pass has at most two
exchanges a layer and four more, and where a case fits, a tenth of the memory is free. Prefill keeps to the same, but for its
exchanges, which are not counted, and a drafter's small state, which is put back where it leaves it elsewhere. Where kv heads do
not divide over the chips of a group, each has the whole cache; XLA splits it while the loop runs, and makes it whole again
behind it, once a call. "Written back" are caches of few rows that the compiler brings into the core's memory to be read,
changes there, and writes to HBM whole beside other work: at most a fifth of what a step reads.
"""
COLUMNS = (
    "target",
    "case",
    "machine (data×model)",
    "drafter and nodes",
    "batch × context",
    "HBM of a chip: loop / prefill",
    "fits",
    "GFLOP",
    "GB touched",
    "MB written back",
    "ms a step",
    "s to compile",
)
COLLECTIVES = """## Exchanges between chips, one step

Counted in the compiled text by part of the step (the target's pass, propose, schedule, judge, observe; in a loop the compiler
forgets which of those behind the first it was); those in an inner loop are counted once, however often it runs.
"""
STEPS = """## A training step

The frozen target's states are made in the step. Parameters are split at rest over fsdp and gathered where they are needed;
exchanges in a loop are counted once, however often it runs. Beside a step's memory stands that of held-out decoding, which
takes its own copies of target and drafter, split over all chips of a group.
"""
STEP_COLUMNS = (
    "target",
    "case",
    "machine (data×fsdp×model)",
    "drafter",
    "rows × length",
    "HBM of a chip: step / decoding",
    "fits",
    "GFLOP",
    "ms a step",
    "exchanges",
    "s to compile",
)
CURVES = """## What a wider pass costs

t(n) / t(1) for one sequence in each group of chips, with 4,096 cache rows, and c, a step of the draft model, in plain steps:
estimates from programs of two depths (all layers are alike). `python -m experiments.sequoia --costs
experiments/tables/verify_cost/FILE` chooses a tree by one.
"""

ATTENTION = """## Attention over a long cache

Microseconds for one kv head, four query heads and one sequence (`experiments.aot --only attention`): `core.attention`, the
default; JAX's `dot_product_attention` for cache and staged rows, merged by log-sum-exp; the kernel of `core.flash` for the
committed part, by its final schedule; and reading the cache's rows once, which none can beat. For one token XLA is near that
bound where the cache is long (a short one costs little anyhow), and JAX's own form is nowhere much faster than the default: no
switch for either. Wide passes are bound by the softmax of their scores; there `--target.flash` (`Decoder(flash=True)`) takes
the kernel, on chips that hold one kv head each (with more, XLA lays caches out otherwise, and would turn them around in each
step). It is not the default: no kernel of ours has run on a TPU, and estimates of a whole step leave a kernel's cycles out, so
that the cases and curves above are XLA's own form.
"""
ATTENTION_COLUMNS = ("chip", "tokens", "cache rows", "default", "JAX's own", "kernel", "reading the cache")


def page(given: Given) -> str:
    """The whole page."""
    reports, costs, attention = read(given.reports), read(given.curves), read(given.attention)
    cases, steps = ([r for r in reports if ("rows" in r) is training] for training in (False, True))
    parts = [HEAD, table(COLUMNS, map(cells, cases)), COLLECTIVES]
    parts.append("\n".join(f"- {r['target']} {r['case']}: {exchanged(r)}" for r in cases if "collectives" in r) + "\n")
    broken = [f"- **{r['target']} {r['case']}: {fault}**" for r in reports for fault in r["faults"]]
    parts.insert(1, "\n".join(broken or ["No case breaks a promise."]) + "\n")
    if lacking := not_compiled(given):
        parts.insert(2, f"Named in `configs/aot`, and not compiled yet: {', '.join(lacking)}.\n")
    if steps:
        parts += [STEPS, table(STEP_COLUMNS, map(step_cells, steps))]
    if costs:
        columns = ["target", "machine", "c", *(f"t({n})" for n in costs[0]["tokens"])]
        parts += [CURVES, table(columns, map(curve_cells, costs))]
    if attention:
        rows = [attention_cells(found["topology"], cell) for found in attention for cell in found["cells"]]
        parts += [ATTENTION, table(ATTENTION_COLUMNS, rows)]
    return "\n".join(parts)


def not_compiled(given: Given) -> list[str]:
    """Cases and curves without a file."""
    every = configs(replace(given, config=None))
    cases = [(given.reports, f"{config.name}-{case}") for config in every for case in (*config.cases, *config.steps)]
    curves = [(given.curves, curve_name(config, topology)) for config in every for topology in config.curves]
    return [name for folder, name in cases + curves if not (folder / f"{name}.json").exists()]


def read(folder: Path) -> list[dict[str, Any]]:
    """Every JSON file of a folder, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def table(columns: Sequence[str], rows: Any) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def cells(found: dict[str, Any]) -> list[str]:
    """A case of decoding as a row."""
    machine = f"{found['topology']} ({found['mesh']['data']}×{found['mesh']['model']})"
    law = f"T={found['temperature']:g}"
    law += f", top-k {found['top_k']}, top-p {found['top_p']:g}" if found["top_k"] else ""
    work = f"{found['drafter']} {found['nodes']}, {found['rule']}, {law}"
    row = [found["target"], found["case"], machine, work, f"{found['batch']} × {found['context']:,}", *memory(found)]
    if "flops" not in found:
        return [*row, "", "", "", "", f"{found['seconds_to_compile']:.0f}"]
    moved = [f"{found['bytes'] / 1e9:.2f}", f"{found['written_back'] / 1e6:,.0f}"]
    figures = [f"{found['flops'] / 1e9:.1f}", *moved, f"{found['step_seconds'] * 1e3:.2f}"]
    seconds = found["seconds_to_compile"] + found["prefill"]["seconds_to_compile"]
    return [*row, *figures, f"{seconds:.0f}"]


def step_cells(found: dict[str, Any]) -> list[str]:
    """A training step as a row."""
    machine = f"{found['topology']} ({'×'.join(str(found['mesh'][axis]) for axis in ('data', 'fsdp', 'model'))})"
    load = f"{found['rows']} × {found['length']:,}"
    row = [found["target"], found["case"], machine, found["drafter"], load, *memory(found)]
    if "flops" not in found:
        return [*row, "", "", "", f"{found['seconds_to_compile']:.0f}"]
    exchanges = ", ".join(f"{e['count']} {e['kind']} ({e['bytes'] / 1e6:,.0f} MB)" for e in found["exchanged"])
    figures = [f"{found['flops'] / 1e9:,.0f}", f"{found['step_seconds'] * 1e3:,.0f}", exchanges or "none"]
    return [*row, *figures, f"{found['seconds_to_compile']:.0f}"]


def memory(found: dict[str, Any]) -> list[str]:
    """What a program needs of a chip, and whether there is as much."""
    totals = [found["memory"]["total"], *(found[other]["total"] for other in ("prefill", "evaluation") if other in found)]
    most, hbm = max(totals), found["hbm"]
    fits = f"{1 - most / hbm:.0%} free" if "flops" in found else f"no: {(most - hbm) / GIB:.1f} GiB too much"
    return [f"{' / '.join(f'{total / GIB:.1f}' for total in totals)} of {hbm / GIB:.2f} GiB", fits]


def exchanged(found: dict[str, Any]) -> str:
    """A case's collectives in words, part by part."""
    parts = []
    for scope in ("target", *SCOPES, UNNAMED):
        here = [c for c in found["collectives"] if c["scope"] == scope]
        words = [f"{c['count']} {c['kind']} of {c['bytes']:,} B{' in a loop' if c['looped'] else ''}" for c in here]
        parts += [f"{scope}: {', '.join(words)}"] if words else []
    return "; ".join(parts) or "none"


def curve_cells(cost: dict[str, Any]) -> list[str]:
    """A curve as a row."""
    machine = f"{cost['topology']}, {cost['data']} group{'s' * (cost['data'] > 1)}"
    return [cost["target"], machine, f"{cost['draft']:.2f}", *(f"{t:.2f}" for t in cost["verify"])]


def attention_cells(topology: str, cell: dict[str, Any]) -> list[str]:
    """A width and a length as a row."""
    names = "attend", "dot_product_attention", "kernel", "reading"
    times = [f"{cell[name]:.1f}" if name in cell else "" for name in names]
    return [topology.partition(":")[0], str(cell["tokens"]), f"{cell['rows']:,}", *times]


if __name__ == "__main__":
    sys.exit("error: this is no program; python -m experiments.aot --only page writes docs/scale.md anew")
