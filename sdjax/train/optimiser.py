"""The optimiser of a run, from one frozen config (optax does the work)."""

from dataclasses import dataclass
from typing import Literal

import optax


@dataclass(frozen=True)
class Optimiser:
    """AdamW with a clipped gradient and a warmed-up schedule; `steps` counts optimiser steps, not micro-batches."""

    learning_rate: float = 1e-3
    steps: int = 1000
    warmup: int = 50
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    final_fraction: float = 0.0
    b1: float = 0.9
    b2: float = 0.95
    weight_decay: float = 0.0
    clip: float = 1.0

    def __post_init__(self):
        if not 0 <= self.warmup < self.steps:
            raise ValueError(f"warmup is {self.warmup} of {self.steps} steps; it must be at least 0 and below steps")
        if self.learning_rate <= 0 or self.clip <= 0:
            raise ValueError(f"learning_rate ({self.learning_rate}) and clip ({self.clip}) must be positive")

    def rate(self) -> optax.Schedule:
        """Linear warm-up to `learning_rate`, then down to `final_fraction` of it."""
        rest, end = self.steps - self.warmup, self.learning_rate * self.final_fraction
        down = {
            "cosine": optax.cosine_decay_schedule(self.learning_rate, rest, self.final_fraction),
            "linear": optax.linear_schedule(self.learning_rate, end, rest),
            "constant": optax.constant_schedule(self.learning_rate),
        }[self.schedule]
        return optax.join_schedules([optax.linear_schedule(0.0, self.learning_rate, self.warmup), down], [self.warmup])

    def build(self) -> optax.GradientTransformation:
        adam = optax.adamw(self.rate(), self.b1, self.b2, weight_decay=self.weight_decay)
        return optax.chain(optax.clip_by_global_norm(self.clip), adam)
