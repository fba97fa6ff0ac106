"""Reading a compiled program's text: its collectives, its copies, and the cycles that the compiler expects.

A loop's body is written down once, so what stands in one is counted once and marked `looped`; its cycles count as often
as it runs, where its condition is a counter below a constant, else once. What the root does not reach is left out.
"""

import math
import re
from collections import defaultdict
from dataclasses import dataclass

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")
WIDTH = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}  # else 4 bytes

HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\(")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^}]*)\})?")
CALLED = re.compile(r"(?:body|condition|to_apply|calls)=%?([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
SCOPE = re.compile(r'op_name="([^"]*)"')
CHANNEL = re.compile(r"channel_id=(\d+)")
BODY = re.compile(r"body=%?([\w.\-]+)")
CONDITION = re.compile(r"condition=%?([\w.\-]+)")
BELOW = re.compile(r"^\s+ROOT .* compare\(%?[\w.\-]+, %?([\w.\-]+)\), direction=LT")
NUMBER = re.compile(r"constant\((\d+)\)")


Lines = dict[str, list[tuple[re.Match, str]]]  # the instructions of each computation


@dataclass(frozen=True)
class Shape:
    """An array as it is laid out; `near` marks one that stays in the core's own memory, not in HBM."""

    dtype: str
    dims: tuple[int, ...]
    near: bool

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return self.size * WIDTH.get(self.dtype, 4)


@dataclass(frozen=True)
class Instruction:
    """One line: its operation, the arrays it makes, the named scopes it came from, what it runs in, and its channel, if any."""

    op: str
    shapes: tuple[Shape, ...]
    scope: str
    computation: str
    looped: bool
    cycles: int
    channel: str = ""

    @property
    def results(self) -> tuple[Shape, ...]:
        """What an exchange makes: several arrays where the compiler has joined exchanges. Of one that begins here and ends
        elsewhere, what it is given comes first, and behind a permute's result marks of its state; an all-reduce
        writes its result alone.
        """
        if self.op == "collective-permute-start":
            return self.shapes[1:2]
        if self.op.endswith("-start") and self.op != "all-reduce-start":
            return self.shapes[len(self.shapes) // 2 :]
        return self.shapes

    @property
    def bytes(self) -> int:
        """Of what it makes."""
        return sum(shape.bytes for shape in self.results)


@dataclass(frozen=True)
class Program:
    """A compiled program's instructions; `root` is the computation of interest: the entry, or the body of its loop.

    `cycles` are those of the root, one instruction after the other; transfers have no estimate.
    """

    instructions: tuple[Instruction, ...]
    root: str
    cycles: int

    @property
    def collectives(self) -> list[Instruction]:
        """Every exchange between devices, once each: one that runs beside other work is written down in all parts of it."""
        found = [i for i in self.instructions if i.op.removesuffix("-start") in KINDS]
        return list({i.channel or number: i for number, i in enumerate(found)}.values())

    def copies(self, size: int) -> list[Instruction]:
        """Copies of an array of `size` elements from HBM to HBM."""
        moved = (i for i in self.instructions if i.op in ("copy", "copy-start") and i.shapes[0].size == size)
        return [i for i in moved if not any(shape.near for shape in i.shapes[:2])]

    def written_back(self, size: int) -> list[Instruction]:
        """Arrays of `size` elements that were changed in the core's memory and go back to HBM whole."""
        moved = (i for i in self.instructions if i.op == "copy-start" and i.shapes[0].size == size)
        return [i for i in moved if i.shapes[1].near and not i.shapes[0].near]


def read_program(text: str, loop: bool = False) -> Program:
    """From `compiled.as_text()`; with `loop`, the root is the body of the largest loop in the entry."""
    lines: Lines = defaultdict(list)
    root, current = "", ""
    for line in text.splitlines():
        if header := HEADER.match(line):
            current = header[2]
            root = current if header[1] else root
        elif found := LINE.match(line):
            lines[current].append((found, line))
    if loop:
        bodies = [name for found, line in lines[root] if found[3] == "while" for name in called(line)]
        if not bodies:
            raise ValueError("the program's entry has no loop; read it without loop=True")
        root = max(bodies, key=lambda name: len(lines[name]))
    inside = reached(lines, {root})
    looped = reached(lines, {b for name in inside for m, line in lines[name] if m[3] == "while" for b in called(line)})
    made = [instruction(m, line, name, name in looped) for name in lines if name in inside for m, line in lines[name]]
    return Program(tuple(made), root, cycles_of(lines, root))


def cycles_of(lines: Lines, name: str) -> int:
    """A computation's cycles with those of its loops and of its longest branches."""
    total = 0
    for found, line in lines[name]:
        stated = CYCLES.search(line)
        total += int(stated[1]) if stated else 0
        if found[3] == "while" and (body := BODY.search(line)):
            total += trips(lines, line) * cycles_of(lines, body[1])
        elif found[3] in ("conditional", "call"):
            total += max((cycles_of(lines, inner) for inner in called(line)), default=0)
    return total


def trips(lines: Lines, loop: str) -> int:
    """How often a loop's body runs: a counter from 0 below a constant, as `scan` has it; 1 where that is not seen."""
    condition = CONDITION.search(loop)
    inside = lines[condition[1]] if condition else []
    limits = [below[1] for _, line in inside if (below := BELOW.match(line))]
    numbers = [NUMBER.search(line) for found, line in inside if limits and found[1] == limits[0]]
    return int(numbers[0][1]) if numbers and numbers[0] else 1


def called(line: str) -> list[str]:
    """The computations that an instruction calls."""
    return CALLED.findall(line) + branches(line)


def branches(line: str) -> list[str]:
    """Those of which one runs."""
    return [name.strip().lstrip("%") for found in BRANCHES.findall(line) for name in found.split(",")]


def reached(lines: Lines, start: set[str]) -> set[str]:
    """`start` and all that is called from there; of branches, of which one runs, the one with the most exchanges."""
    seen, open_ = set(start), list(start)
    while open_:
        for _, line in lines.get(open_.pop(), ()):
            ways = branches(line)
            most = [max(ways, key=lambda name: exchanges(lines, name))] if ways else []
            new = {*CALLED.findall(line), *most} - seen
            seen |= new
            open_ += new
    return seen


def exchanges(lines: Lines, name: str) -> int:
    """How many stand in a computation and in what it calls."""
    inside = reached(lines, {name})
    return sum(m[3].removesuffix("-start") in KINDS for name in inside for m, _ in lines.get(name, ()))


def instruction(match: re.Match, line: str, computation: str, looped: bool) -> Instruction:
    """One parsed line."""
    shapes = tuple(
        Shape(dtype, tuple(map(int, filter(None, dims.split(",")))), "S(1)" in layout)
        for dtype, dims, layout in ARRAY.findall(match[2])
    )
    cycles, scope, channel = CYCLES.search(line), SCOPE.search(line), CHANNEL.search(line)
    return Instruction(
        op=match[3],
        shapes=shapes,
        scope=scope[1] if scope else "",
        computation=computation,
        looped=looped,
        cycles=int(cycles[1]) if cycles else 0,
        channel=channel[1] if channel else "",
    )
