"""Hydra for the tiny world's target: Medusa's heads, told the drafted path (Ankner et al. 2024, arXiv:2402.05109).

    python -m experiments.train --config configs/train/hydra_tiny.py

Learnt from the text.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.core.types import Law
from sdjax.drafters.hydra import Hydra
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.trees.tree import Tree


def get_config() -> TrainConfig:
    return TrainConfig(
        name="hydra_tiny",
        target=TargetConfig(name="tiny"),
        drafter=Hydra(Tree.chain(3), law=Law.IID),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
