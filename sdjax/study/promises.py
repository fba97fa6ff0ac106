"""What a compiled decode loop must keep to on a mesh; each function returns the faults it finds, in words.

Within a step nothing as large as a parameter, a cache or the vocabulary moves between chips, no cache is copied, the state
is updated in place, and the target's own pass has two exchanges a layer, of whatever kind, and at most four more. A case
that is marked to fit leaves a tenth of the memory free.
"""

import math
from collections import Counter
from typing import Any

import jax

from sdjax.mesh.ahead import Compiled
from sdjax.mesh.chips import GIB, chip_of
from sdjax.mesh.layout import DECODE, Rules
from sdjax.study.plan import (
    Case,
    Placed,
    cache_sizes,
    caches,
    compile_loop,
    compile_prefill,
    place,
    report,
    scope_of,
    size_on_chip,
    written_back,
)
from sdjax.targets.decoder import Decoder

FREE = 0.10  # of HBM, in cases that are marked to fit
IN_PLACE = 0.95  # of the state's bytes
WRITTEN_BACK = 0.20  # of the bytes of weights and caches, which a step reads
FLOATS = ("bf16", "f32")  # in either of which a weight may move


def examine(target: Decoder, case: Case, rules: Rules = DECODE) -> dict[str, Any]:
    """Compiles a case, its decode loop and, where that fits, its prefill: `plan.report`, and the promises they break."""
    placed = place(target, case, rules)
    compiled = compile_loop(placed)
    found = report(case, placed, compiled) | {"faults": broken(case, placed, compiled)}
    if not compiled.fits:
        return found
    begun = compile_prefill(placed)
    found["prefill"] = {"total": begun.memory.total, "seconds_to_compile": begun.seconds_to_compile}
    found["faults"] += [f"prefill: {fault}" for fault in broken_at_prefill(case, placed, begun)]
    return found


def broken(case: Case, placed: Placed, compiled: Compiled) -> list[str]:
    """All faults of a case's decode loop."""
    faults = full(case.topology, case.fits, compiled.memory.total, compiled.fits)
    if not compiled.fits:
        return faults
    faults += kept_twice(placed.state, compiled)
    faults += [f"caches that grow: {fault}" for fault in full(case.topology, case.fits, grown(placed, compiled))]
    for find in (copied, rewritten, moved, gathered, too_many_exchanges):
        faults += find(placed, compiled)
    return faults


def broken_at_prefill(case: Case, placed: Placed, compiled: Compiled) -> list[str]:
    """Those of its prefill, a wide pass: a drafter's small state it may leave elsewhere (`decode.place.put_back`)."""
    faults = full(case.topology, case.fits, compiled.memory.total, compiled.fits)
    if not compiled.fits:
        return faults
    return faults + kept_twice(placed.state.cache, compiled) + copied(placed, compiled) + gathered(placed, compiled)


def gathered(placed: Placed, compiled: Compiled) -> list[str]:
    """A parameter, a cache or an array of the vocabulary's size that is moved between chips, in a step or around the loop.

    A cache that every chip has whole, for its heads do not divide, may be split while the loop runs: each chip then reads what
    its queries ask for, and behind the loop, once a call, the cache is made whole again.
    What a step asks for and no step changes, the compiler moves once, before the loop: then it is whole on every chip. The law
    of a smaller draft vocabulary does move, once for each node that has children: a rule needs it beside the target's.
    """
    parts, wholes = split_sizes(placed)
    kept, faults = {without_ones(x.sharding.shard_shape(x.shape)) for x in caches(placed)}, []
    inside = [(i, scope_of(i), wholes) for i in compiled.program.collectives]
    around = [(i, "front of the loop", wholes - unsplit_caches(placed)) for i in compiled.outside]
    for i, where, made in [*inside, *around]:
        # What is summed is made where it is summed: an activation, even if it has a weight's size, but not a cache's shape.
        sizes = set() if "reduce" in i.op else parts | made if "permute" in i.op else made
        for s in i.shapes:
            summed = "reduce" in i.op and without_ones(s.dims) in kept
            if summed or is_vocabulary(s.dims, placed.loop.target) or (s.size in sizes and s.dtype in FLOATS):
                faults.append(f"{i.op} of {s.dtype}{list(s.dims)} in {where}")
        joined = sum(s.size for s in i.results)
        if "all-to-all" in i.op and joined in parts:
            faults.append(f"{i.op} of {joined:,} elements in {where}")
    return sorted(set(faults))


def unsplit_caches(placed: Placed) -> set[int]:
    """Elements on one chip of caches of which it has all heads."""
    heads_whole = lambda x: x.sharding.shard_shape(x.shape)[1] == x.shape[1]
    return {math.prod(x.sharding.shard_shape(x.shape)) for x in caches(placed) if heads_whole(x)}


def is_vocabulary(dims: tuple[int, ...], target: Decoder) -> bool:
    """Whether an array has a number for each token, be it in blocks; an activation, of the model's width, has not."""
    runs = {math.prod(dims[i:j]) for j in range(1, len(dims) + 1) for i in range(j)}
    return max(dims, default=0) >= target.vocab or (target.vocab in runs and dims[-1] != target.width)


def without_ones(dims: tuple[int, ...]) -> tuple[int, ...]:
    """A shape, but for dimensions of one."""
    return tuple(dim for dim in dims if dim > 1)


def split_sizes(placed: Placed) -> tuple[set[int], set[int]]:
    """Elements of parameters and caches that are split: of a chip's own part, and once gathered along some axes or all.

    Of caches what a chip has is itself a whole: one that is not split along heads can be made of parts of them.
    """
    parts, wholes = set(), cache_sizes(placed)
    for x in jax.tree.leaves((placed.params, caches(placed))):
        axes = [axis for part in x.sharding.spec if part for axis in ((part,) if isinstance(part, str) else part)]
        ways = [placed.layout.mesh.shape[axis] for axis in axes]
        held = math.prod(x.sharding.shard_shape(x.shape))
        if ways and x.ndim > 1:
            parts.add(held)
            wholes |= {x.size, *(held * way for way in ways)}
    return parts, wholes


def copied(placed: Placed, compiled: Compiled) -> list[str]:
    """A cache that is copied in HBM."""
    found = sorted({i.shapes[0].dims for size in cache_sizes(placed) for i in compiled.program.copies(size)})
    return [f"copies of a cache {list(dims)}" for dims in found]


def rewritten(placed: Placed, compiled: Compiled) -> list[str]:
    """Caches that go back to HBM whole, of those that the compiler has brought into the core's memory to be read and changed.

    It does so with small ones, beside other work; were they many, committing a few rows would cost as much as reading all.
    """
    size = written_back(placed, compiled)
    if size <= WRITTEN_BACK * compiled.memory.arguments:
        return []
    return [f"{size:,} bytes of caches are written back whole; {compiled.memory.arguments:,} of weights and caches are read"]


def kept_twice(state: Any, compiled: Compiled) -> list[str]:
    """A state, of a loop or of training, that is not updated in place: its donation came to nothing."""
    held = sum(size_on_chip(x) for x in jax.tree.leaves(state) if math.prod(x.shape))
    if compiled.memory.aliased >= IN_PLACE * held:
        return []
    return [f"only {compiled.memory.aliased:,} of the state's {held:,} bytes are updated in place"]


def too_many_exchanges(placed: Placed, compiled: Compiled) -> list[str]:
    """More exchanges in the target's own pass than two a layer and four.

    An all-reduce that is written in halves, or in steps around a ring, counts as often as chips talk.
    """
    found = Counter(i.op.removesuffix("-start") for i in compiled.program.collectives if scope_of(i) == "target")
    most = 2 * placed.loop.target.layers + 4
    words = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))
    return [f"{words} in the target's pass; {most} exchanges are promised"] if found.total() > most else []


def grown(placed: Placed, compiled: Compiled) -> int:
    """Bytes on one chip while caches of half as many rows grow to what they are: they are there, too."""
    return compiled.memory.arguments + sum(map(size_on_chip, caches(placed))) // 2


def full(topology: str, promised: bool, total: int, fits: bool = True) -> list[str]:
    """Less than a tenth of a chip's HBM left by `total` bytes where that is promised."""
    hbm = chip_of(topology).hbm
    free = 1 - total / hbm
    if not promised or (fits and free >= FREE):
        return []
    return [f"{total / GIB:.1f} GiB of {hbm / GIB:.2f}: {free:.0%} are left, {FREE:.0%} are promised"]


def moved(placed: Placed, compiled: Compiled) -> list[str]:
    """Parts of the state that come out of the loop elsewhere than they went in, so that the next call recompiles."""
    stays = lambda x, after: after.is_equivalent_to(x.sharding, x.ndim)
    kept = jax.tree.leaves(jax.tree.map(stays, placed.state, compiled.output_shardings))
    return [] if all(kept) else [f"{kept.count(False)} arrays of the state change their place"]
