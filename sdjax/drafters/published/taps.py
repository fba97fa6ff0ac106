"""The states that a head reads, in the three ways of counting them.

Ours names the residual stream behind layer i by i; the same state is the input of layer i + 1 (EAGLE, vLLM, speculators,
SGLang), the output of layer i (SpecForge), and entry i + 1 of transformers' `hidden_states`, whose last entry is normed.
"""

from collections.abc import Sequence
from typing import Any, Literal

from sdjax.drafters.eagle3 import published_taps
from sdjax.targets.decoder import Tap

Counting = Literal["input", "output", "hidden_states"]


def taps_from(ids: Sequence[int], counting: Counting, layers: int) -> tuple[Tap, ...]:
    """Published ids as ours; ValueError for one that the target lacks, or that stands twice."""
    first, last = (0, layers - 1) if counting == "output" else (0, layers)
    for i in as_list(ids):
        if isinstance(i, bool) or not isinstance(i, int) or not first <= i <= last:
            raise ValueError(f"layer id {i!r} is none of a target with {layers} layers: they run from {first} to {last}")
    if len(set(ids)) < len(ids) or not ids:
        raise ValueError(f"layer ids are {list(ids)}; there must be at least one, and none twice")
    if counting == "output":
        return tuple(ids)
    if counting == "hidden_states" and layers in ids:
        return tuple("final" if i == layers else from_input(i) for i in ids)
    return tuple(map(from_input, ids))


def as_list(ids: Any) -> list[Any]:
    """A config's ids; ValueError where they are no list."""
    if not isinstance(ids, list | tuple):
        raise ValueError(f"layer ids are {ids!r}; they must be a list")
    return list(ids)


def ids_of(taps: Sequence[Tap], counting: Counting, layers: int) -> list[int]:
    """Our taps as published ids; ValueError for one that the counting has no number for."""
    numbers: dict[Tap, int] = {"embed": 0} if counting != "output" else {}
    shift = 0 if counting == "output" else 1
    numbers |= {i: i + shift for i in range(layers)}
    if counting == "hidden_states":
        del numbers[layers - 1]  # transformers norms its last entry
        numbers["final"] = layers
    lacking = [tap for tap in taps if tap not in numbers]
    if lacking:
        raise ValueError(f"the taps {lacking} have no number among the {counting} ids of a target with {layers} layers")
    return [numbers[tap] for tap in taps]


def from_input(i: int) -> Tap:
    return i - 1 if i else "embed"


def default_taps(layers: int, notes: list[str]) -> tuple[Tap, ...]:
    """Those of the released code, where a config names none."""
    taps = published_taps(layers)
    notes.append(f"no layer ids are given: the released code's, inputs of layers {ids_of(taps, 'input', layers)}")
    return taps
