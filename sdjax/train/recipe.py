"""What is trained, and how: everything static about a run."""

from dataclasses import dataclass, field
from typing import Any

from sdjax.decode.state import Params
from sdjax.drafters.base import Trainable
from sdjax.targets.decoder import Decoder
from sdjax.train.joint import Joint, training_loss
from sdjax.train.optimiser import Optimiser
from sdjax.train.partition import learnt_of, matrices_of, working
from sdjax.train.step import Loss, TrainState, begin


@dataclass(frozen=True)
class Cadence:
    """How often what happens, in optimiser steps."""

    log_every: int = 20
    """Steps of a window: figures are read, checked and written."""
    save_every: int = 500
    """Writes a checkpoint."""
    eval_every: int = 500
    """Decodes the held-out prompts, and writes a checkpoint."""
    keep: int = 2
    """The newest checkpoints that are kept, beside the best by τ."""
    patience: int = 0
    """Stops after so many evaluations without a new best τ; 0: never."""

    def __post_init__(self):
        for name in ("log_every", "save_every", "eval_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.patience < 0:
            raise ValueError(f"patience is {self.patience}; it must be at least 0 (0: never stops early)")


@dataclass(frozen=True)
class Recipe:
    """A drafter of a target, and what is learnt of the two: without `joint` the target is frozen."""

    target: Decoder
    drafter: Trainable
    optimiser: Optimiser = field(default_factory=Optimiser)
    joint: Joint | None = None
    frozen: tuple[str, ...] = ()
    """Globs over parameters that are not learnt either, such as "drafter.layers.*"."""
    cadence: Cadence = field(default_factory=Cadence)

    def __post_init__(self):
        if self.joint is None and (self.optimiser.target_rate, self.optimiser.target_from) != (1.0, 0):
            raise ValueError("target_rate and target_from are about a target that is trained; give joint, or leave them out")

    @property
    def specs(self) -> Params:
        """Of what a run holds: the target's part is None where it is frozen."""
        return Params(self.target.specs() if self.joint else None, self.drafter.specs(self.target))

    @property
    def loss(self) -> Loss:
        return training_loss(self.drafter, self.target, self.joint, self.optimiser)

    def begin(self, target_params: Any, drafter_params: Any, seed: int) -> TrainState:
        """The state before the first step."""
        params = Params(target_params if self.joint else None, drafter_params)
        return begin(params, self.optimiser, seed, learnt_of(self.specs, self.frozen), matrices_of(self.specs))

    def decodable(self, state: TrainState, target_params: Any) -> Params:
        """What decoding runs on: averages where they are kept, and the target's own parameters where it is frozen."""
        found = working(self.specs, state.averaged)
        return found if self.joint else found.replace(target=target_params)
