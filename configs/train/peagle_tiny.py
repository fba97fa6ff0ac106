"""P-EAGLE for the tiny world's target: its embedding and both its layers are tapped (arXiv:2602.01469).

    python -m experiments.train --config configs/train/peagle_tiny.py

Two layers draft three tokens in one pass; the mask starts as a byte that no text has.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.peagle import PEagle
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence


def get_config() -> TrainConfig:
    return TrainConfig(
        name="peagle_tiny",
        target=TargetConfig(name="tiny"),
        drafter=PEagle(("embed", 0, 1), length=3, layers=2, mask_token=255),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
