"""The optimiser of a run, from one frozen config (optax does the work)."""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, muon

from sdjax.decode.state import Params

MUON_RMS = 0.2  # the updates' root mean square, so that Adam's learning rate serves matrices too (Liu et al. 2025)


@dataclass(frozen=True)
class Optimiser:
    """AdamW with a clipped gradient and a warmed-up schedule."""

    learning_rate: float = 1e-3
    """The rate after warm-up, the highest."""
    steps: int = 1000
    """Length of the run, in updates: micro-batches are not counted."""
    warmup: int = 50
    """Steps in which the rate rises from 0, linearly."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the rate falls from then to the last step."""
    final_fraction: float = 0.0
    """What is left of the highest rate at the end; "constant" does not read it."""
    b1: float = 0.9
    """Adam's decay of the gradient's mean, a step."""
    b2: float = 0.95
    """Adam's decay of the squared gradient's mean, a step."""
    weight_decay: float = 0.0
    """Share of every trained weight that a step takes away, times the rate."""
    clip: float = 1.0
    """Highest norm of the gradient, of all trained weights together; a longer one is shortened to it."""
    method: Literal["adamw", "muon"] = "adamw"
    """muon: orthogonalised momentum for matrices (Jordan et al. 2024), AdamW for vectors, stacks of them and vocabularies'
    tables."""
    micro_batches: int = 1
    """Parts that each batch is run in, one after the other, for memory; the update is the whole batch's, as far as its
    parts are supervised alike."""
    ema: float = 0.0
    """Decay of the parameters' running average, which is then what is decoded and kept; 0: none."""
    target_rate: float = 1.0
    """How large the target's updates are, where it is trained too; the drafter's are 1."""
    target_from: int = 0
    """The step before which the target stays as it is."""

    def __post_init__(self):
        if not 0 <= self.warmup < self.steps:
            raise ValueError(f"warmup is {self.warmup} of {self.steps} steps; it must be at least 0 and below steps")
        if self.learning_rate <= 0 or self.clip <= 0:
            raise ValueError(f"learning_rate ({self.learning_rate}) and clip ({self.clip}) must be positive")
        if self.micro_batches < 1 or not 0 <= self.ema < 1:
            raise ValueError(f"micro_batches is {self.micro_batches} and ema {self.ema}; they must be ≥ 1 and in [0, 1)")
        if self.target_rate < 0 or self.target_from < 0:
            raise ValueError(f"target_rate ({self.target_rate}) and target_from ({self.target_from}) must be at least 0")

    def rate(self) -> optax.Schedule:
        """Linear warm-up to `learning_rate`, then down to `final_fraction` of it."""
        rest, end = self.steps - self.warmup, self.learning_rate * self.final_fraction
        down = {
            "cosine": optax.cosine_decay_schedule(self.learning_rate, rest, self.final_fraction),
            "linear": optax.linear_schedule(self.learning_rate, end, rest),
            "constant": optax.constant_schedule(self.learning_rate),
        }[self.schedule]
        return optax.join_schedules([optax.linear_schedule(0.0, self.learning_rate, self.warmup), down], [self.warmup])

    def build(self, matrices: Any) -> optax.GradientTransformation:
        """Of parameters of which `matrices`, bools in a tree like theirs, says whether they are linear maps."""
        update = self.adamw() if self.method == "adamw" else self.muon(matrices)
        parts = [optax.clip_by_global_norm(self.clip), update]
        if (self.target_rate, self.target_from) != (1.0, 0):
            parts.append(scale_target(self.target_rate, self.target_from))
        return optax.chain(*parts)

    def adamw(self) -> optax.GradientTransformation:
        return optax.adamw(self.rate(), self.b1, self.b2, weight_decay=self.weight_decay)

    def muon(self, matrices: Any) -> optax.GradientTransformation:
        return muon(
            self.rate(),
            weight_decay=self.weight_decay,
            adam_b1=self.b1,
            adam_b2=self.b2,
            adam_weight_decay=self.weight_decay,
            muon_weight_dimension_numbers=jax.tree.map(lambda yes: MuonDimensionNumbers() if yes else None, matrices),
            consistent_rms=MUON_RMS,
        )


def scale_target(rate: float, start: int) -> optax.GradientTransformation:
    """Multiplies the updates of `Params.target` by `rate` from step `start` on, by 0 before."""

    def update(updates: Params, state: optax.ScaleByScheduleState, params: Any = None) -> tuple[Params, Any]:
        scale = jnp.where(state.count >= start, rate, 0.0)
        scaled = updates.replace(target=jax.tree.map(lambda x: scale * x, updates.target))
        return scaled, optax.ScaleByScheduleState(state.count + 1)

    return optax.GradientTransformation(lambda _: optax.ScaleByScheduleState(jnp.int32(0)), update)
