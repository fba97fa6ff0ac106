"""D²SD for the tiny world's target: DFlash, and a second block that redrafts behind two of its places (arXiv:2606.04446).

    python -m experiments.train --config configs/train/d2sd_tiny.py

Both blocks learn in one run. The embedding and both layers are tapped; the mask is a byte that no text has.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.dual_block import DualBlock
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence


def get_config() -> TrainConfig:
    return TrainConfig(
        name="d2sd_tiny",
        target=TargetConfig(name="tiny"),
        drafter=DualBlock.d2sd(("embed", 0, 1), mask_token=255, length=3, branches=2, layers=2, anchors=32),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
