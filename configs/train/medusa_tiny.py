"""Medusa-1 for the tiny world's target: three heads on its last state, the target frozen.

    python -m experiments.train --config configs/train/medusa_tiny.py

Heads as in Cai et al. 2024 (arXiv:2401.10774), each a residual block under the target's own matrix.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.medusa import Medusa
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.trees.tree import Tree


def get_config() -> TrainConfig:
    return TrainConfig(
        name="medusa_tiny",
        target=TargetConfig(name="tiny"),
        drafter=Medusa(Tree.chain(3)),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
