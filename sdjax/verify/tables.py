"""Models small enough to write down: the laws p and q of the next token behind every prefix.

As JSON: {"p": {"": [.5, .2, .3], "0": [...], "00": [...], ...}, "q": {"": [...], ...}, "unit": 1}. A key is the
prefix, its tokens joined by "" (or by "," where the vocabulary needs two digits). p goes one level deeper than q: the
depth of the draft is the number of levels of q. "unit" divides every number: 10 lets a file speak in tenths.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Tables:
    """p[d] and q[d] hold the laws behind every prefix of d tokens: [V] * d + [V], float64, plus any axes of models."""

    p: tuple[Float[np.ndarray, "..."], ...]
    q: tuple[Float[np.ndarray, "..."], ...]

    @property
    def vocab(self) -> int:
        return self.p[0].shape[0]

    @property
    def depth(self) -> int:
        """How deep a draft can be judged."""
        return min(len(self.p) - 1, len(self.q))

    @property
    def models(self) -> tuple[int, ...]:
        """The trailing axes: () for one model."""
        return self.p[0].shape[1:]

    def model(self, index: int) -> "Tables":
        """One model of a batch."""
        return Tables(tuple(x[..., index] for x in self.p), tuple(x[..., index] for x in self.q))

    def check(self) -> "Tables":
        """Itself; raises ValueError for a row that is no law."""
        for name, levels in (("p", self.p), ("q", self.q)):
            for depth, rows in enumerate(levels):
                total = rows.sum(depth)
                bad = np.argwhere(~((np.abs(total - 1) < 1e-9) & (rows.min(depth) >= 0)))
                if len(bad):
                    prefix = "".join(map(str, bad[0][:depth]))
                    raise ValueError(f"{name}({prefix}) is no law: its entries must be ≥ 0 and sum to 1")
        return self


def stack(models: Sequence[Tables]) -> Tables:
    """A batch of models: one trailing axis."""
    pile = lambda levels: tuple(np.stack(rows, -1) for rows in levels)
    return Tables(pile(zip(*(m.p for m in models), strict=True)), pile(zip(*(m.q for m in models), strict=True)))


def random_tables(
    rng: np.random.Generator, vocab: int, depth: int, models: tuple[int, ...] = (), zeros: float = 0.0, sharpness: float = 1.0
) -> Tables:
    """Dirichlet rows, each entry struck out with probability `zeros` (never a whole row)."""

    def level(size: int) -> np.ndarray:
        mass = rng.gamma(1 / sharpness, size=(vocab,) * (size + 1) + models) + 1e-3
        keep = rng.random(mass.shape) >= zeros
        spared = rng.integers(vocab, size=(*mass.shape[:size], 1, *models))
        ids = np.arange(vocab).reshape((-1,) + (1,) * len(models))
        mass = np.where(keep | (ids == spared), mass, 0)
        return mass / mass.sum(size, keepdims=True)

    return Tables(tuple(level(d) for d in range(depth + 1)), tuple(level(d) for d in range(depth)))


def read_tables(path: str | Path) -> Tables:
    """One model from a JSON file; raises ValueError that names what is wrong with it."""
    try:
        data = json.loads(Path(path).read_text())
        unit, named = data.get("unit", 1), {name: data[name] for name in ("p", "q")}
    except (json.JSONDecodeError, AttributeError, KeyError) as error:
        raise ValueError(f'{path} is not a file of tables: it needs an object with "p" and "q" ({error})') from error
    return Tables(*(levels(str(path), name, rows, unit) for name, rows in named.items())).check()


def levels(path: str, name: str, rows: dict[str, Sequence[float]], unit: float) -> tuple[np.ndarray, ...]:
    """The rows of one law, level by level: every prefix shorter than the longest must be there."""
    laws = {prefix_of(path, name, key): np.asarray(row, np.float64) / unit for key, row in rows.items()}
    if () not in laws:
        raise ValueError(f'{path}: {name} lacks the empty prefix ""')
    vocab = len(laws[()])
    for prefix, row in laws.items():
        if row.shape != (vocab,):
            raise ValueError(f"{path}: {name}({show(prefix)}) has {row.size} entries, but {name}() has {vocab}")
        if not math.isclose(row.sum(), 1, abs_tol=1e-9) or row.min() < 0:
            raise ValueError(f"{path}: {name}({show(prefix)}) sums to {row.sum():.6g}; entries must be ≥ 0 and sum to 1")
    found = []
    for depth in range(max(map(len, laws)) + 1):
        missing = [prefix for prefix in product(range(vocab), repeat=depth) if prefix not in laws]
        if missing:
            raise ValueError(f"{path}: {name} lacks the prefix {show(missing[0])}")
        found.append(np.reshape([laws[prefix] for prefix in product(range(vocab), repeat=depth)], (vocab,) * (depth + 1)))
    return tuple(found)


def prefix_of(path: str, name: str, key: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, key.split(",") if "," in key else key))
    except ValueError as error:
        raise ValueError(f"{path}: {name} has the key {key!r}; a prefix is digits, or numbers with commas") from error


def show(prefix: Sequence[int]) -> str:
    return ",".join(map(str, prefix)) if any(token > 9 for token in prefix) else "".join(map(str, prefix))
