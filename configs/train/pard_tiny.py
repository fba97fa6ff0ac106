"""PARD for the tiny world's target: a one-layer model that drafts three tokens in one pass (arXiv:2504.18583).

    python -m experiments.train --config configs/train/pard_tiny.py

The mask is a byte that no text has. Trained on the texts alone.
"""

from dataclasses import replace

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.pard import Pard
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.train.tiny_world import TARGET


def get_config() -> TrainConfig:
    model = replace(TARGET, width=64, layers=1, heads=2, kv_heads=1, ffw=128)
    return TrainConfig(
        name="pard_tiny",
        target=TargetConfig(name="tiny"),
        drafter=Pard(model, length=3, mask_token=255),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
