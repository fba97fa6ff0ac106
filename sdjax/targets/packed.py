"""A decoder on packed texts: what training runs, with no cache behind it."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from sdjax.core.types import Batch, Trace
from sdjax.targets.decoder import Decoder, Tap


def packed_mask(batch: Batch) -> Bool[Array, "B T T"]:
    """Each token sees itself and those before it in its own document: packed rows equal unpacked ones."""
    place = jnp.arange(batch.tokens.shape[1])
    same = batch.segments[:, :, None] == batch.segments[:, None, :]
    return same & (place[:, None] >= place)


def trace_of(model: Decoder, params: Any, batch: Batch, taps: Sequence[Tap] = ()) -> Trace:
    """The model's tapped and final states on a batch, with gradients to its parameters."""
    nothing = model.empty_cache(batch.tokens.shape[0], 1)
    x = model.embed(params, batch.tokens)
    out = model.forward(params, x, batch.positions, nothing, packed_mask(batch), taps=taps)
    return Trace(batch, out.features, out.hidden)
