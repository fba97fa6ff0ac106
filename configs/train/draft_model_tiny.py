"""A one-layer draft model for the tiny world's target, distilled from the target's law.

    python -m experiments.train --config configs/train/draft_model_tiny.py

Trains the target first, where it is not there yet, and then the drafter.
Expect a τ of about 2.4 at temperature 0 and 1.4 at 1; a draft is three tokens long.
"""

from dataclasses import replace

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.draft_model import DraftModel
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.train.tiny_world import TARGET


def get_config() -> TrainConfig:
    model = replace(TARGET, width=64, layers=1, heads=2, kv_heads=1, ffw=128)
    return TrainConfig(
        name="draft_model_tiny",
        target=TargetConfig(name="tiny"),
        drafter=DraftModel(model, length=3),
        rows=16,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
