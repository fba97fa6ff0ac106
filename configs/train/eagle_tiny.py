"""EAGLE-1 for the tiny world's target: one layer that continues its last states (arXiv:2401.15077).

    python -m experiments.train --config configs/train/eagle_tiny.py

The loss is the paper's: the next state by SmoothL1, and a tenth of the cross-entropy with the target's law.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.core.types import Law
from sdjax.drafters.eagle import Eagle
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.trees.tree import Tree


def get_config() -> TrainConfig:
    return TrainConfig(
        name="eagle_tiny",
        target=TargetConfig(name="tiny"),
        drafter=Eagle(Tree.chain(3), law=Law.IID),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
