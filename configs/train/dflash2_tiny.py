"""DFlash with DFlash 2's selector in the tiny world: slots choose among their eight likeliest bytes (inco.ai/blog/dflash2).

    python -m experiments.train --config configs/train/dflash2_tiny.py

The embedding and both layers are tapped; the mask is a byte that no text has.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.block import Block
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence


def get_config() -> TrainConfig:
    return TrainConfig(
        name="dflash2_tiny",
        target=TargetConfig(name="tiny"),
        drafter=Block.dflash2(("embed", 0, 1), mask_token=255, length=3, layers=2, rank=32, candidates=8, anchors=32),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
