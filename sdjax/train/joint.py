"""Training the target beside its drafter: Medusa-2, multi-token prediction from scratch, DeepSeek's modules.

The drafter's gradient reaches the target through the states it reads and through the target's embedding and head.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from sdjax.core.types import Batch, Trace
from sdjax.decode.state import Params
from sdjax.drafters.base import Trainable
from sdjax.drafters.losses import cross_entropy, flatten, forward_kl, in_chunks, weighted_mean
from sdjax.targets.decoder import Decoder
from sdjax.targets.packed import trace_of
from sdjax.train.context import training_context
from sdjax.train.optimiser import Optimiser
from sdjax.train.partition import working
from sdjax.train.step import Loss, Value, drafter_loss


@dataclass(frozen=True)
class Joint:
    """The loss is the target's own plus weight · the drafter's.

    Before `Optimiser.target_from` the drafter learns alone (Medusa-2's first stage), and `ramp` counts from there.
    """

    weights: tuple[tuple[int, float], ...] = ((0, 0.2),)
    """(step, weight): the drafter's weight from that step on."""
    ramp: int = 0
    """Steps in which the weight rises as sin(π/2 · step / ramp), as in Medusa's code; 0: it is there at once."""
    objective: Literal["text", "self-distillation"] = "text"
    """The target's own loss: cross-entropy of the text, or KL from its untuned self (Medusa, §2.3.2)."""

    def __post_init__(self):
        steps = [step for step, _ in self.weights]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)) or any(weight < 0 for _, weight in self.weights):
            raise ValueError(f"weights is {self.weights}; give (step, weight ≥ 0) pairs with rising steps, the first being 0")
        if self.ramp < 0:
            raise ValueError(f"ramp is {self.ramp}; it must be at least 0")

    def weight(self, step: Int[Array, ""], start: int) -> Float[Array, ""]:
        """The drafter's weight, in a joint stage that begins at `start`."""
        starts, weights = (jnp.asarray(column) for column in zip(*self.weights, strict=True))
        weight = weights[jnp.searchsorted(starts, step, side="right") - 1]
        risen = jnp.clip((step - start) / self.ramp, 0, 1) if self.ramp else 1.0
        return weight * jnp.sin(jnp.pi / 2 * risen)


@cache
def training_loss(drafter: Trainable, target: Decoder, joint: Joint | None, optimiser: Optimiser) -> Loss:
    """The loss of `Params(target, drafter)`; without `joint` the target is None there, and frozen.

    The step is given the untuned target's parameters beside them.
    """
    if joint is None:
        alone = drafter_loss(drafter, target)
        return lambda params, untuned, batch, key, step: alone(params.drafter, untuned, batch, key, step)
    start = optimiser.target_from

    def loss(params: Params, untuned: Any, batch: Batch, key: Key[Array, ""], step: Int[Array, ""]) -> Value:
        tuned, own = working(target.specs(), params.target), working(drafter.specs(target), params.drafter)
        if start:
            tuned = jax.tree.map(lambda x: jnp.where(step < start, lax.stop_gradient(x), x), tuned)
        trace = trace_of(target, tuned, batch, drafter.taps)
        drafted, metrics = drafter.loss(training_context(target, tuned, batch, step), own, trace, key)
        ours = target_loss(joint, target, tuned, untuned, trace)
        both = ours + joint.weight(step, start) * drafted
        return jnp.where(step < start, drafted, both), metrics | {"target_loss": ours, "drafter_loss": drafted}

    return loss


def target_loss(joint: Joint, target: Decoder, tuned: Any, untuned: Any, trace: Trace) -> Float[Array, ""]:
    """The target's own loss, a mean over supervised tokens."""
    labels, weight = trace.ahead(1)
    if joint.objective == "text":
        of_rows = lambda rows: cross_entropy(target.unembed(tuned, rows[0]), rows[1])
        loss = in_chunks(of_rows, (flatten(trace.hidden), flatten(labels)), flatten(weight))
    else:
        before = lax.stop_gradient(trace_of(target, untuned, trace.batch).hidden)
        of_rows = lambda rows: forward_kl(target.unembed(tuned, rows[0]), target.unembed(untuned, rows[1]))
        loss = in_chunks(of_rows, (flatten(trace.hidden), flatten(before)), flatten(weight))
    return weighted_mean(loss, flatten(weight))
