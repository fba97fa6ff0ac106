"""Multi-token prediction heads (Gloeckle et al. 2024, arXiv:2404.19737) on the tiny world's frozen trunk.

    python -m experiments.train --config configs/train/gloeckle_tiny.py

Three heads beside the target's last layer, from which they start.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.gloeckle import Gloeckle
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.train.tiny_world import TARGET
from sdjax.trees.tree import Tree


def get_config() -> TrainConfig:
    return TrainConfig(
        name="gloeckle_tiny",
        target=TargetConfig(name="tiny"),
        drafter=Gloeckle(layers=TARGET.layers, tree=Tree.chain(3)),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
