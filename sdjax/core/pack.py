"""Rows of a batch that really run: dense layers take them as one flat array, attention takes them back in their places."""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int


@struct.dataclass
class Pack:
    """P of the B·T rows of a batch: `rows` are their places in the flattened batch, `places` is the inverse.

    Padding repeats the batch's last row; a row that does not run has the place P. A packed array is [1, P, ...], so that
    whatever takes [B, T, ...] row by row takes it, too.
    """

    rows: Int[Array, " P"]
    places: Int[Array, "B T"]

    @classmethod
    def of(cls, wanted: Bool[Array, "B T"], width: int) -> "Pack":
        """The wanted rows, in order; `width` must hold them all."""
        flat = wanted.reshape(-1)
        rows = jnp.nonzero(flat, size=width, fill_value=wanted.size - 1)[0].astype(jnp.int32)
        return cls(rows, jnp.where(flat, jnp.cumsum(flat) - 1, width).reshape(wanted.shape))

    def take(self, x: Array) -> Array:
        """[B, T, ...] to [1, P, ...]."""
        return x.reshape(-1, *x.shape[2:])[self.rows][None]

    def spread(self, x: Array) -> Array:
        """[1, P, ...] to [B, T, ...]: zeros in rows that did not run."""
        return x[0].at[self.places].get(mode="fill", fill_value=0)


def widths_of(pack: tuple[int, ...], rows: int) -> Int[np.ndarray, " n"]:
    """The numbers of rows that a pass over at most `rows` is compiled for: those of `pack` that are fewer, and all."""
    return np.array([*(width for width in pack if width < rows), rows], np.int32)


def holding(count: Int[Array, "..."], widths: Int[np.ndarray, " n"]) -> Int[Array, "..."]:
    """Which is the least width that holds `count` rows."""
    return jnp.searchsorted(jnp.asarray(widths), count)
