"""Medusa-2 for the tiny world: three heads first, then heads and target together (Cai et al. 2024, §2.2.2).

    python -m experiments.train --config configs/train/medusa2_tiny.py

The heads' loss weighs 0.2, risen as a sine over the joint stage, and the target learns at a quarter of their rate: both the
paper's. Plain decoding with the tuned target is the baseline then.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.medusa import Medusa
from sdjax.train.joint import Joint
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.trees.tree import Tree


def get_config() -> TrainConfig:
    return TrainConfig(
        name="medusa2_tiny",
        target=TargetConfig(name="tiny"),
        drafter=Medusa(Tree.chain(3)),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20, target_rate=0.25, target_from=100),
        joint=Joint(weights=((0, 0.2),), ramp=200),
        cadence=Cadence(save_every=100, eval_every=100),
    )
