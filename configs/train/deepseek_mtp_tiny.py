"""A multi-token prediction module for the tiny world's frozen target, unrolled on its own output (arXiv:2509.18362).

    python -m experiments.train --config configs/train/deepseek_mtp_tiny.py

The module starts from the target's last layer; three steps, of weights 0.6^k, as in FastMTP.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.deepseek_mtp import DeepSeekMTP
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.trees.tree import Tree


def get_config() -> TrainConfig:
    return TrainConfig(
        name="deepseek_mtp_tiny",
        target=TargetConfig(name="tiny"),
        drafter=DeepSeekMTP(modules=1, tree=Tree.chain(3), steps=3, decay=0.6),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
