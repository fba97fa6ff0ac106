"""Multi-token prediction as in Gloeckle et al. 2024 (arXiv:2404.19737): heads and trunk learn together, from scratch.

    python -m experiments.train --config configs/train/gloeckle_joint_tiny.py

All heads weigh alike, the target's own among them (§2). Twice the steps of the drafters whose target is there already.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.gloeckle import Gloeckle
from sdjax.train.joint import Joint
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.train.tiny_world import TARGET
from sdjax.trees.tree import Tree


def get_config() -> TrainConfig:
    return TrainConfig(
        name="gloeckle_joint_tiny",
        target=TargetConfig(name="tiny"),
        drafter=Gloeckle(layers=TARGET.layers, tree=Tree.chain(3)),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=600, warmup=30),
        joint=Joint(weights=((0, 1.0),)),
        from_scratch=True,
        cadence=Cadence(save_every=100, eval_every=100),
    )
