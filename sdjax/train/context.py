"""What a loss may read while training: the target and the batch, with no cache behind them."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from sdjax.core.sampling import Warp
from sdjax.core.types import Batch, Context
from sdjax.targets.decoder import Decoder


def training_context(target: Decoder, params: Any, batch: Batch, step: Int[Array, ""] | int = 0) -> Context:
    """The context of a loss at an optimiser step: tokens are the batch's, the anchor is nowhere."""
    rows = batch.tokens.shape[0]
    zeros = jnp.zeros(rows, jnp.int32)
    cache, seed = target.empty_cache(rows, 1), zeros.astype(jnp.uint32)
    return Context(params, cache, batch.tokens, zeros, seed, target=target, warp=Warp(), step=step)
