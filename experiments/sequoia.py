"""Chooses the size and depth of a Sequoia tree from measured acceptance and a cost curve, and prints the tree.

    python -m experiments.sequoia --acceptance runs/acceptance.json --costs runs/costs.json

The acceptance file comes from experiments.acceptance, the cost curve from experiments.costs: {"tokens": [1, 2, ..],
"verify": [1.0, ..], "draft": c}, times in steps of plain decoding. Without --costs a roofline stands in: passes of up to
--knee tokens cost the same, wider ones grow in proportion. The last line is one JSON object {"size", "depth",
"expected", "speedup", "parents"}; size 1 says that nothing beats plain decoding.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.launch import command_line, mistakes_end_the_program
from sdjax.trees.acceptance import check_rates, isotonic
from sdjax.trees.hardware import Choice, CostCurve, choices
from sdjax.trees.sequoia import sequoia_tree
from sdjax.trees.tree import Tree


@dataclass(frozen=True)
class Search:
    """What is known, and what may be built."""

    acceptance: Path
    """JSON with `rates` for each depth and `pooled` over them"""
    costs: Path | None = None
    """JSON with the cost curve; None: a roofline"""
    knee: float = 64.0
    """the roofline's: tokens up to which a pass costs no more than for one"""
    draft: float = 0.1
    """the roofline's: a draft step, in steps of plain decoding"""
    per_depth: bool = False
    """a vector for each depth, no deeper than was measured; off: one for all"""
    smooth: bool = True
    """makes each vector non-increasing (isotonic regression): a measured tail is noise"""
    sizes: tuple[int, ...] = ()
    """sizes to consider, the anchor included; none: those of the cost curve"""
    depths: tuple[int, ...] = ()
    """depths to consider; none: all"""


def main(search: Search) -> dict[str, Any]:
    """Searches, prints and returns what was found; raises ValueError for bad rates or costs."""
    rates = read_rates(search)
    curve = CostCurve.read(search.costs) if search.costs else CostCurve.modelled(search.knee, search.draft, most=512)
    sizes = search.sizes or (curve.tokens if search.costs else tuple(2**i for i in range(10)))
    found = choices(rates, curve, sizes, search.depths or None)
    show(found)
    best = found[0]
    tree = sequoia_tree(best.size, rates, best.depth)
    print_tree(tree)
    answer = asdict(best) | {"parents": tree.parents}
    print(json.dumps(answer))
    return answer


def read_rates(search: Search) -> np.ndarray:
    """The rates of the acceptance file, smoothed if asked."""
    if not search.acceptance.is_file():
        raise ValueError(f"--acceptance: {search.acceptance} is not there; make it with python -m experiments.acceptance")
    data, name = json.loads(search.acceptance.read_text()), "rates" if search.per_depth else "pooled"
    if name not in data:
        raise ValueError(f"--acceptance: {search.acceptance} has no {name!r}; it has {', '.join(data)}")
    return isotonic(data[name]) if search.smooth else check_rates(data[name])


def show(found: list[Choice]) -> None:
    """The best depth for each size."""
    print("  size  depth  tokens  speed-up")
    for size in sorted({choice.size for choice in found}):
        best = next(choice for choice in found if choice.size == size)
        mark = "  ←" if best == found[0] else ""
        print(f"{best.size:6d}  {best.depth:5d}  {best.expected:6.2f}  {best.speedup:8.2f}{mark}")


def print_tree(tree: Tree) -> None:
    """The ranks of every node, a line for each depth; | parts the children of different nodes."""
    if tree.depth == 0:
        print("nothing beats plain decoding: no tree")
    for depth, level in enumerate(tree.levels[1:], 1):
        parents = dict.fromkeys(tree.parents[node] for node in level)
        groups = [" ".join(str(tree.ranks[child]) for child in tree.children[parent]) for parent in parents]
        print(f"depth {depth}: {len(level)} nodes: {' | '.join(groups)}")


if __name__ == "__main__":
    with mistakes_end_the_program():
        main(command_line("sequoia", Search, __doc__))
