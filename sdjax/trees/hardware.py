"""Sequoia's hardware-aware choice of size and depth: Speedup(n, d) = G(n, d) / (t(n) + d·c) (arXiv:2402.12374, §3.3).

G: expected tokens of the best tree of n nodes, d deep; t(n): time to verify n tokens; c: time of a draft step; times
in plain decoding steps.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from sdjax.core.checks import as_integer
from sdjax.trees.acceptance import check_rates
from sdjax.trees.sequoia import capacity, expected_curve, sequoia_tree
from sdjax.trees.tree import Tree


@dataclass(frozen=True)
class CostCurve:
    """verify[i] is the time of a pass over tokens[i] tokens, `draft` that of a draft step; a plain step takes 1.

    Of a machine whose chips are `groups` groups, each of which runs a part of a batch, tokens are those of one group.
    """

    tokens: tuple[int, ...]
    verify: tuple[float, ...]
    draft: float
    groups: int = 1

    def __post_init__(self):
        if len(self.tokens) != len(self.verify) or not self.tokens:
            raise ValueError(f"the cost curve has {len(self.tokens)} widths and {len(self.verify)} times; give one for each")
        if list(self.tokens) != sorted(set(self.tokens)) or self.tokens[0] < 1:
            raise ValueError(f"the cost curve's widths are {self.tokens}; they must increase from 1 or more tokens")
        if min(self.verify) <= 0 or self.draft < 0 or not np.isfinite([*self.verify, self.draft]).all():
            raise ValueError(f"times must be positive (draft ≥ 0) and finite; got verify {self.verify}, draft {self.draft}")
        if as_integer(self.groups, "groups") < 1:
            raise ValueError(f"groups is {self.groups}; a machine's chips are one group or more")

    @classmethod
    def modelled(cls, knee: float, draft: float, most: int = 1024) -> "CostCurve":
        """A roofline: passes of up to `knee` tokens cost the same (memory-bound), wider ones grow in proportion."""
        tokens = tuple(range(1, most + 1))
        return cls(tokens, tuple(max(1.0, n / knee) for n in tokens), draft)

    @classmethod
    def read(cls, path: Path) -> "CostCurve":
        """From JSON: {"tokens": [1, 2, ..], "verify": [1.0, ..], "draft": c}, and "data", the number of groups (else 1)."""
        data = json.loads(Path(path).read_text())
        lacking = {"tokens", "verify", "draft"} - set(data)
        if lacking:
            raise ValueError(f"{path} lacks {sorted(lacking)}; a cost curve has tokens, verify and draft")
        return cls(tuple(data["tokens"]), tuple(data["verify"]), data["draft"], data.get("data", 1))

    def verify_time(self, tokens: int) -> float:
        """t(n), linear between measured widths; ValueError outside of them."""
        if not self.tokens[0] <= tokens <= self.tokens[-1]:
            raise ValueError(f"the cost curve covers {self.tokens[0]} to {self.tokens[-1]} tokens, not {tokens}; measure wider")
        return float(np.interp(tokens, self.tokens, self.verify))

    def speedup(self, expected: float, size: int, depth: int) -> float:
        """Against plain decoding: `expected` tokens for one pass over `size` tokens and `depth` draft steps."""
        return expected / (self.verify_time(size) + depth * self.draft)


@dataclass(frozen=True)
class Choice:
    """A size and a depth with what they promise; size 1 says: do not speculate."""

    size: int
    depth: int
    expected: float
    speedup: float


def choices(
    rates: ArrayLike, costs: CostCurve, sizes: Iterable[int] | None = None, depths: Iterable[int] | None = None
) -> list[Choice]:
    """Every (size, depth) that can be built, best first; plain decoding is always among them.

    `sizes` default to the measured widths, `depths` to all that were measured (with one vector for every depth: 32).
    """
    rates = check_rates(rates)
    deepest = 32 if rates.ndim == 1 else len(rates)
    sizes = sorted(set(costs.tokens if sizes is None else sizes))
    found = [Choice(1, 0, 1.0, 1.0)]
    for depth in sorted(set(range(1, deepest + 1) if depths is None else depths)):
        fitting = [n for n in sizes if depth < n <= capacity(rates.shape[-1], depth, n)]
        if fitting:
            curve = expected_curve(fitting[-1], rates, depth)
            found += [Choice(n, depth, float(curve[n - 1]), costs.speedup(float(curve[n - 1]), n, depth)) for n in fitting]
    return sorted(found, key=lambda choice: (-choice.speedup, choice.size, choice.depth))


def choose_tree(
    rates: ArrayLike, costs: CostCurve, sizes: Iterable[int] | None = None, depths: Iterable[int] | None = None
) -> tuple[Choice, Tree]:
    """The best choice and its tree."""
    best = choices(rates, costs, sizes, depths)[0]
    return best, sequoia_tree(best.size, rates, best.depth)
