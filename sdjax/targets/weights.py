"""From named arrays in a file to a decoder's parameters and back: the part that every checkpoint format shares."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sdjax.core.spec import Spec
from sdjax.targets.decoder import Decoder

SHOWN = 8  # faults listed by an error before it only counts


def weight_names(target: Decoder, table: Mapping[str, str]) -> Any:
    """The tree of `target.specs()` with each leaf's name in the file; `table` maps our name to theirs, `{}` the layer."""
    specs = target.specs()
    layers = [{ours: table[ours].format(i) for ours in layer} for i, layer in enumerate(specs["layers"])]
    return {ours: table[ours] for ours in specs if ours != "layers"} | {"layers": layers}


def check_weights(target: Decoder, names: Any, shapes: Mapping[str, tuple[int, ...]], source: Any) -> None:
    """Raises ValueError naming each weight that is missing, unexpected or of a wrong shape."""
    want = dict(zip(jax.tree.leaves(names), (spec.shape for spec in jax.tree.leaves(target.specs())), strict=True))
    faults = [f"missing {name} {list(shape)}" for name, shape in want.items() if name not in shapes]
    faults += [f"unexpected {name} {list(shape)}" for name, shape in shapes.items() if name not in want]
    faults += [
        f"{name} has shape {list(shapes[name])}, expected {list(shape)}"
        for name, shape in want.items()
        if name in shapes and tuple(shapes[name]) != shape
    ]
    if faults:
        raise ValueError(f"{source}: weights do not fit the model that its configuration describes: {listed(faults)}")


def read_weights(target: Decoder, names: Any, read: Callable[[str], np.ndarray], source: Any) -> Any:
    """Parameters in the types of `target`, converted one after another: one tensor more than the model is ever held."""

    def convert(name: str, spec: Spec) -> jax.Array:
        array = np.asarray(read(name))
        if not (np.isfinite(array.min()) and np.isfinite(array.max())):
            raise ValueError(f"{source}: {name} holds NaN or infinity; the file is damaged, fetch or write it again")
        return jnp.asarray(np.array(array, spec.dtype))  # a copy: the array may be a view of a mapped file

    return jax.tree.map(convert, names, target.specs())


def listed(faults: Iterable[str]) -> str:
    """Faults in one line, the first few in full."""
    faults = list(faults)
    more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    return "; ".join(faults[:SHOWN]) + more
