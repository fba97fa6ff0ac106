"""One optimiser step: the loss of a batch, its gradient, the update. The target's weights are read, never donated."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Int, Key

from sdjax.core.types import Batch, Trace
from sdjax.drafters.base import Trainable
from sdjax.targets.decoder import Decoder
from sdjax.targets.packed import trace_of
from sdjax.train.context import training_context
from sdjax.train.optimiser import Optimiser
from sdjax.train.partition import Learnt, is_float, masters, merge, split, working

Metrics = dict[str, Float[Array, ""]]
Value = tuple[Float[Array, ""], Metrics]
# loss(params, target_params, batch, key, step) -> (scalar, metrics)
Loss = Callable[[Any, Any, Any, Key[Array, ""], Int[Array, ""]], Value]


@struct.dataclass
class TrainState:
    """What training changes; a checkpoint holds all of it. `learnt` says which leaves of `params` those are, `matrices`
    which of them muon may orthogonalise.

    `ema` is the running average of what is learnt, None where none is kept.
    """

    params: Any
    optimiser: Any
    step: Int[Array, ""]
    key: Key[Array, ""]
    ema: Any = None
    learnt: Learnt = struct.field(pytree_node=False, default=())
    matrices: tuple[bool, ...] = struct.field(pytree_node=False, default=())

    @property
    def averaged(self) -> Any:
        """The parameters to decode with: the average where one is kept."""
        return self.params if self.ema is None else merge(self.ema, split(self.params, self.learnt)[1])


def begin(
    params: Any, optimiser: Optimiser, seed: int, learnt: Learnt | None = None, matrices: tuple[bool, ...] | None = None
) -> TrainState:
    """The state before the first step, of copies.

    Without `learnt`, all that is not an integer is learnt; without `matrices`, all that has two dimensions is one.
    """
    leaves = jax.tree.leaves(params)
    learnt = tuple(is_float(leaf) for leaf in leaves) if learnt is None else learnt
    matrices = tuple(leaf.ndim == 2 for leaf in leaves) if matrices is None else matrices
    params = masters(params, learnt)
    own, _ = split(params, learnt)
    ema = jax.tree.map(jnp.copy, own) if optimiser.ema else None
    inner = transformation(optimiser, params, learnt, matrices).init(own)
    return TrainState(params, inner, jnp.int32(0), jax.random.key(seed), ema, learnt, matrices)


def transformation(
    optimiser: Optimiser, params: Any, learnt: Learnt, matrices: tuple[bool, ...]
) -> optax.GradientTransformation:
    """The optimiser's, of what is learnt of the parameters."""
    return optimiser.build(split(jax.tree.unflatten(jax.tree.structure(params), matrices), learnt)[0])


@cache
def drafter_loss(drafter: Trainable, target: Decoder) -> Loss:
    """The family's own loss on the frozen target's states: made anew inside the step, unless the batch comes with them."""

    def loss(params: Any, target_params: Any, batch: Batch | Trace, key: Key[Array, ""], step: Int[Array, ""]) -> Value:
        params = working(drafter.specs(target), params)
        trace = widened(batch, target) if isinstance(batch, Trace) else trace_of(target, target_params, batch, drafter.taps)
        ctx = training_context(target, target_params, trace.batch, step)
        return drafter.loss(ctx, params, lax.stop_gradient(trace), key)

    return loss


def widened(trace: Trace, target: Decoder) -> Trace:
    """Cached states in the target's dtype."""
    features, hidden = (x.astype(target.dtype) for x in (trace.features, trace.hidden))
    return trace.replace(features=features, hidden=hidden)


def supervised(batch: Batch | Trace) -> Float[Array, ""]:
    """The tokens that are learnt from and have one before them in their document: the labels of next-token losses."""
    return batch.ahead(1)[1].sum()


def update(
    loss: Loss, optimiser: Optimiser, state: TrainState, target_params: Any, batch: Batch | Trace
) -> tuple[TrainState, Metrics]:
    """One update, not compiled."""
    own, rest = split(state.params, state.learnt)

    def of_part(own: Any, batch: Batch, key: Key[Array, ""]) -> Value:
        return loss(merge(own, rest), target_params, batch, key, state.step)

    key = jax.random.fold_in(state.key, state.step)
    gradient_of = jax.value_and_grad(of_part, has_aux=True)
    (value, metrics), gradient = accumulate(partial(gradient_of, own), batch, key, optimiser.micro_batches)
    transform = transformation(optimiser, state.params, state.learnt, state.matrices)
    updates, inner = transform.update(gradient, state.optimiser, own)
    metrics = metrics | {"loss": value, "gradient_norm": optax.tree.norm(gradient), "supervised": supervised(batch)}
    own = optax.apply_updates(own, updates)
    ema = optax.incremental_update(own, state.ema, 1 - optimiser.ema) if optimiser.ema else None
    return state.replace(params=merge(own, rest), optimiser=inner, step=state.step + 1, ema=ema), metrics


train_step = jax.jit(update, static_argnames=("loss", "optimiser"), donate_argnames="state")
"""`update`, compiled; `loss` must be one object throughout a run, or each call compiles anew."""


def accumulate(gradient_of: Callable[[Any, Any], Any], batch: Batch | Trace, key: Key[Array, ""], parts: int) -> Any:
    """gradient_of(batch, key), run on `parts` of the batch's rows one after the other.

    Each part counts by its supervised tokens: a mean over them becomes the whole batch's. Means over tokens further ahead
    do so where the parts are supervised alike.
    """
    if parts == 1:
        return gradient_of(batch, key)
    rows = jax.tree.leaves(batch)[0].shape[0]
    if rows % parts:
        raise ValueError(f"a batch of {rows} rows cannot be run in {parts} micro-batches; make rows a multiple of them")
    batches = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(rows // parts, parts, *x.shape[1:]), 0, 1), batch)
    total = jnp.maximum(supervised(batch), 1)

    def one(sums: Any, part: tuple[Batch, Key[Array, ""]]) -> tuple[Any, None]:
        share = supervised(part[0]) / total
        return jax.tree.map(lambda sum, x: sum + share * x, sums, gradient_of(*part)), None

    keys = jax.random.split(key, parts)
    shapes = jax.eval_shape(gradient_of, jax.tree.map(lambda x: x[0], batches), keys[0])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return lax.scan(one, zeros, (batches, keys))[0]
