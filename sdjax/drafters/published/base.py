"""What published layouts share: tensors under other people's names, and a config that is read to the last setting.

What a config leaves open is decided by a rule and reported in `notes`; what contradicts the tensors, or the target, is a
ValueError that names it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sdjax.drafters.head import DraftHead
from sdjax.targets.decoder import Decoder
from sdjax.targets.huggingface import NAMES
from sdjax.targets.weights import listed

Tensors = dict[str, np.ndarray]
Config = dict[str, Any]

IN_LAYER = "model.layers.{}."
LAYER = {ours: name.removeprefix(IN_LAYER) for ours, name in NAMES.items() if name.startswith(IN_LAYER)}
SAME = 0.01  # of a matrix's norm: what bfloat16 or an 8-bit target may differ from the copy that a folder carries


class Exported(NamedTuple):
    """A folder to be; `notes` say what the layout cannot hold, and what stands in its place."""

    tensors: Tensors
    config: Config
    notes: list[str]


class Imported(NamedTuple):
    """A drafter with its parameters; `notes` say what the folder left open, and how it was decided."""

    drafter: Any
    params: Any
    notes: list[str]


@dataclass(frozen=True)
class Layout:
    """A way to publish drafters. `claims` tells its folders by tensor names and config; `owns` its tensors in them, which may
    hold a whole target besides.

    write(drafter, params, target, target_params) and read(tensors, config, target, target_params) are pure.
    """

    name: str
    claims: Callable[[Collection[str], Mapping[str, Any]], bool]
    write: Callable[[Any, Any, Decoder, Any], Exported]
    read: Callable[[Tensors, Config, Decoder, Any], Imported]
    file: str = "model.safetensors"
    owns: Callable[[str, Mapping[str, Any]], bool] = lambda name, config: True


def layer_names(layer: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """The published name of each part of a decoder layer."""
    return {ours: f"{prefix}{LAYER[ours]}" for ours in layer}


def named(names: Any, params: Any) -> Tensors:
    """The leaves of `params` by the names at the same places of `names`."""
    jax.tree.map(lambda name, leaf: None, names, params)  # the same structure, or an error that shows where not
    return dict(zip(jax.tree.leaves(names), map(np.asarray, jax.tree.leaves(params)), strict=True))


def take(names: Any, specs: Any, tensors: Mapping[str, np.ndarray], layout: str) -> Any:
    """Parameters for `specs`; ValueError naming each tensor that is missing, unexpected, misshapen, or not finite."""
    wanted = dict(zip(jax.tree.leaves(names), jax.tree.leaves(specs), strict=True))
    faults = [f"missing {name} {list(spec.shape)}" for name, spec in wanted.items() if name not in tensors]
    faults += [f"unexpected {name} {list(found.shape)}" for name, found in tensors.items() if name not in wanted]
    for name, spec in wanted.items():
        if name not in tensors:
            continue
        found = tensors[name]
        if found.shape != spec.shape:
            faults.append(f"{name} has shape {list(found.shape)}, expected {list(spec.shape)}")
        elif not jnp.issubdtype(found.dtype, jnp.floating):
            faults.append(f"{name} is stored as {found.dtype}; weights are floats")
        elif not np.isfinite(found.astype(np.float32)).all():
            faults.append(f"{name} holds NaN or infinity")
    if faults:
        raise ValueError(f"the tensors are not those of a {layout} folder with this config: {listed(faults)}")
    return jax.tree.map(lambda name, spec: jnp.asarray(tensors[name]).astype(spec.dtype), names, specs)


def drop_copy(tensors: Tensors, name: str, own: Any, notes: list[str]) -> Tensors:
    """Leaves out a tensor that the target has itself; ValueError where it is another."""
    if name not in tensors:
        return tensors
    if not is_copy(tensors[name], own):
        raise ValueError(f"{name} is not the target's; a drafter with a matrix of its own in that place is not supported")
    notes.append(f"{name} left out: it is the target's")
    return {other: found for other, found in tensors.items() if other != name}


def is_copy(found: np.ndarray, own: Any) -> bool:
    """Whether a matrix is the target's, up to rounding."""
    a, b = found.astype(np.float32), np.asarray(own, np.float32)
    return a.shape == b.shape and bool(np.linalg.norm(a - b) <= SAME * np.linalg.norm(b))


def all_equal(leaves: Sequence[Any]) -> bool:
    """Whether parameter trees hold the same numbers."""
    same = lambda tree: jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), leaves[0], tree))
    return all(map(same, leaves[1:]))


def need_class(drafter: Any, kinds: type | tuple[type, ...], layout: str) -> None:
    """Raises ValueError for a drafter of a family that the layout does not hold."""
    if not isinstance(drafter, kinds):
        known = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise ValueError(f"the layout {layout!r} holds {known}, not {type(drafter).__name__}")


def need_no_bias(head: DraftHead, layout: str) -> None:
    """Raises ValueError for a bias on the logits, where the layout's readers know none."""
    if head.bias:
        raise ValueError(
            f"the head has a bias on its logits; the layout {layout!r} has no place for it, and would draft otherwise"
        )
