"""Where every array lives: from the logical axes that a `Spec` carries, by one table, to the axes of a mesh.

A mesh has the axes data (sequences), fsdp (training: parameters split, gathered where used) and model (heads, ffw and
vocabulary). All of them are Auto: shardings are given for what goes in and comes out, the compiler finds the rest.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from sdjax.core.cache import Cache
from sdjax.core.spec import Spec

MESH_AXES = ("data", "fsdp", "model")
TINY = 0.05  # a drafter below this share of its target's bytes is not worth a collective


@dataclass(frozen=True)
class Rules:
    """The mesh axes that each logical axis is split over; one that is mapped to () never is."""

    table: tuple[tuple[str, tuple[str, ...]], ...]

    def __post_init__(self):
        for name, axes in self.table:
            for axis in axes:
                if axis not in MESH_AXES:
                    raise ValueError(f"the rule for {name!r} names the mesh axis {axis!r}; a mesh has {', '.join(MESH_AXES)}")
        if len(self.names) != len(set(self.names)):
            raise ValueError(f"a logical axis has two rules: {', '.join(sorted(self.names))}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.table)

    def axes(self, name: str | None) -> tuple[str, ...]:
        """The mesh axes of one logical axis; ValueError for a name that the table lacks."""
        if name is None:
            return ()
        if name not in self.names:
            raise ValueError(f"no rule for the logical axis {name!r}; the table has {', '.join(self.names)}: add it there")
        return dict(self.table)[name]

    def having(self, **changes: tuple[str, ...]) -> "Rules":
        """The table with some of its rules changed."""
        for name in changes:
            self.axes(name)
        return Rules(tuple((name, changes.get(name, axes)) for name, axes in self.table))

    def without(self, axis: str, but: str) -> "Rules":
        """The table with nothing split over one mesh axis, `but` for one logical axis."""
        kept = lambda name, axes: axes if name == but else tuple(other for other in axes if other != axis)
        return Rules(tuple((name, kept(name, axes)) for name, axes in self.table))


DECODE = Rules(
    (
        ("batch", ("data", "fsdp")),
        ("vocab", ("model",)),
        ("embed", ()),
        ("heads", ("model",)),
        ("kv_heads", ("model",)),
        ("ffw", ("model",)),
        ("experts", ("model",)),
        ("tap", ()),
    )
)
TRAIN = DECODE.having(embed=("fsdp",))


def make_mesh(data: int = 1, fsdp: int = 1, model: int = 1, devices: Any = None) -> Mesh:
    """A mesh of data × fsdp × model devices (default: those of this process group), neighbours along `model`."""
    devices = jax.devices() if devices is None else devices
    shape = data, fsdp, model
    if math.prod(shape) != len(devices):
        raise ValueError(f"a mesh of {data} × {fsdp} × {model} takes {math.prod(shape)} devices, but there are {len(devices)}")
    grid = create_device_mesh(shape, devices, allow_split_physical_axes=True)  # a torus 4 × 4 × 4 has no axis of 8 chips
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * 3)


@dataclass(frozen=True)
class Layout:
    """A mesh and the rules table for it: hashable, so that it may be static."""

    mesh: Mesh
    rules: Rules = DECODE

    def sharding(self, shape: tuple[int, ...], axes: tuple[str | None, ...], grain: tuple[int, ...] = ()) -> NamedSharding:
        """Splits each dimension by its rule, in multiples of its grain; one that does not divide is not split.

        A mesh axis serves the first dimension that asks for it. Where there is nothing to split, compilers keep to no rule.
        """
        if 0 in shape:
            return NamedSharding(self.mesh, PartitionSpec())
        parts: list[tuple[str, ...] | None] = []
        free = [axis for axis in self.mesh.axis_names if self.mesh.shape[axis] > 1]
        for size, name, unit in zip(shape, axes, grain or (1,) * len(shape), strict=True):
            wanted = tuple(axis for axis in self.rules.axes(name) if axis in free)
            divides = size % (unit * math.prod(self.mesh.shape[axis] for axis in wanted)) == 0
            parts.append(wanted if wanted and divides else None)
            free = [axis for axis in free if axis not in (parts[-1] or ())]
        return NamedSharding(self.mesh, PartitionSpec(*parts))

    def params(self, specs: Any) -> Any:
        """The sharding of every leaf of an abstract parameter tree."""
        return jax.tree.map(lambda spec: self.sharding(spec.shape, spec.axes, spec.grain), specs)

    def state(self, state: Any) -> Any:
        """That of what a loop carries: caches by sequence and kv head, all else by sequence, scalars everywhere."""
        rows = lambda x: self.sharding(x.shape, ("batch", *(None,) * (x.ndim - 1))[: x.ndim])
        heads = lambda x: self.sharding(x.shape, ("batch", "kv_heads", None, None))

        def of(x: Any) -> Any:
            return x.replace(layers=jax.tree.map(heads, x.layers), length=rows(x.length)) if isinstance(x, Cache) else rows(x)

        return jax.tree.map(of, state, is_leaf=lambda x: isinstance(x, Cache))

    def decoding(self) -> "Layout":
        """That in which a training run decodes: chips that split parameters among them as `fsdp` go on to do so, as `model`.

        By the rules of decoding alone they would each have the whole target, which need not fit.
        """
        grid = self.mesh.devices.reshape(self.mesh.shape["data"], 1, -1)
        return Layout(Mesh(grid, MESH_AXES, axis_types=self.mesh.axis_types), DECODE)

    def for_drafter(self, specs: Any, target_specs: Any) -> "Layout":
        """The target's own layout, or for a tiny drafter one in which only sequences are split."""
        if size_of(specs) >= TINY * size_of(target_specs):
            return self
        whole = {name: () for name in self.rules.names if name != "batch"}
        return replace(self, rules=self.rules.having(**whole))


def within(layout: Layout | None) -> AbstractContextManager:
    """Sets the layout's mesh, if there is one: by it `core.whole` and `core.flash` tell how arrays are split.

    Whatever compiles or runs decoding on the layout does so within: in and out of it are two programs.
    """
    return nullcontext() if layout is None else jax.set_mesh(layout.mesh)


def size_of(specs: Any) -> int:
    """Bytes of an abstract parameter tree."""
    leaves = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, Spec))
    return sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in leaves)
