"""Hydra++ for the tiny world's target: a layer that sums up the past, and heads learnt from the target's law.

    python -m experiments.train --config configs/train/hydra_plus_tiny.py

Two blocks a head instead of the published four, and no dropout: the text never comes twice.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.core.types import Law
from sdjax.drafters.hydra import Hydra, HydraPlus
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.trees.tree import Tree


def get_config() -> TrainConfig:
    return TrainConfig(
        name="hydra_plus_tiny",
        target=TargetConfig(name="tiny"),
        drafter=HydraPlus(Hydra(Tree.chain(3), layers=2, law=Law.IID, text=0.0, teacher=1.0)),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
