"""EAGLE-3 for the tiny world's target: its embedding and both its layers are tapped (arXiv:2503.01840).

    python -m experiments.train --config configs/train/eagle3_tiny.py

Training unrolls the three steps that are drafted.
Expect a τ of about 3.2 at temperature 0 and 1.6 at 1; a draft is three tokens long.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.core.types import Law
from sdjax.drafters.eagle3 import Eagle3
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.trees.tree import Tree


def get_config() -> TrainConfig:
    return TrainConfig(
        name="eagle3_tiny",
        target=TargetConfig(name="tiny"),
        drafter=Eagle3(("embed", 0, 1), Tree.chain(3), law=Law.IID, steps=3),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
