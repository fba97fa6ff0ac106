"""DeepSeek-V3's multi-token prediction (arXiv:2412.19437): modules and target learn together, from scratch.

    python -m experiments.train --config configs/train/deepseek_mtp_joint_tiny.py

Three modules, one a drafted token; their loss weighs 0.3, and 0.1 in the last third, as in DeepSeek-V3 (which has one
module). Twice the steps of the drafters whose target is there already.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.deepseek_mtp import DeepSeekMTP
from sdjax.train.joint import Joint
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.trees.tree import Tree


def get_config() -> TrainConfig:
    return TrainConfig(
        name="deepseek_mtp_joint_tiny",
        target=TargetConfig(name="tiny"),
        drafter=DeepSeekMTP(modules=3, tree=Tree.chain(3), steps=3, decay=1.0),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=600, warmup=30),
        joint=Joint(weights=((0, 0.3), (400, 0.1))),
        from_scratch=True,
        cadence=Cadence(save_every=100, eval_every=100),
    )
