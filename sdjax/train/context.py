"""What a loss may read while training: the target and the batch, with no cache behind them."""

from typing import Any

import jax.numpy as jnp

from sdjax.core.sampling import Warp
from sdjax.core.types import Batch, Context
from sdjax.targets.decoder import Decoder


def training_context(target: Decoder, params: Any, batch: Batch) -> Context:
    """The context of a loss: tokens are the batch's, the anchor is nowhere."""
    rows = batch.tokens.shape[0]
    zeros = jnp.zeros(rows, jnp.int32)
    return Context(
        params, target.empty_cache(rows, 1), batch.tokens, zeros, zeros.astype(jnp.uint32), target=target, warp=Warp()
    )
