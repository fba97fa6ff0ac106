"""One optimiser step: the loss of a batch, its gradient, the update. The target's weights are read, never donated."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int, Key

from sdjax.core.types import Batch
from sdjax.drafters.base import Trainable
from sdjax.targets.decoder import Decoder
from sdjax.targets.packed import trace_of
from sdjax.train.context import training_context
from sdjax.train.optimiser import Optimiser

Metrics = dict[str, Float[Array, ""]]
# loss(params, target_params, batch, key) -> (scalar, metrics)
Loss = Callable[[Any, Any, Batch, Key[Array, ""]], tuple[Float[Array, ""], Metrics]]


@struct.dataclass
class TrainState:
    """What training changes; a checkpoint holds all of it."""

    params: Any
    optimiser: Any
    step: Int[Array, ""]
    key: Key[Array, ""]


def begin(params: Any, optimiser: Optimiser, seed: int) -> TrainState:
    """The state before the first step."""
    return TrainState(params, optimiser.build().init(params), jnp.int32(0), jax.random.key(seed))


def drafter_loss(drafter: Trainable, target: Decoder) -> Loss:
    """The family's own loss on the frozen target's states, which are made anew inside the step."""

    def loss(params: Any, target_params: Any, batch: Batch, key: Key[Array, ""]) -> tuple[Float[Array, ""], Metrics]:
        trace = jax.lax.stop_gradient(trace_of(target, target_params, batch, drafter.taps))
        return drafter.loss(training_context(target, target_params, batch), params, trace, key)

    return loss


@partial(jax.jit, static_argnames=("loss", "optimiser"), donate_argnames="state")
def train_step(
    loss: Loss, optimiser: Optimiser, state: TrainState, target_params: Any, batch: Batch
) -> tuple[TrainState, Metrics]:
    """One update; `loss` must be one object throughout a run, or each call compiles anew."""
    key = jax.random.fold_in(state.key, state.step)
    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, target_params, batch, key)
    updates, inner = optimiser.build().update(gradient, state.optimiser, state.params)
    metrics = metrics | {"loss": value, "gradient_norm": optax.tree.norm(gradient)}
    params = optax.apply_updates(state.params, updates)
    return state.replace(params=params, optimiser=inner, step=state.step + 1), metrics
