"""Domino for the tiny world's target: a GRU over the drafted tokens corrects the slots (arXiv:2605.29707).

    python -m experiments.train --config configs/train/domino_tiny.py

The embedding and both layers are tapped; the mask is a byte that no text has. The uncorrected logits' loss hands over to
the corrected ones' until the last step.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.block import Block
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence


def get_config() -> TrainConfig:
    return TrainConfig(
        name="domino_tiny",
        target=TargetConfig(name="tiny"),
        drafter=Block.domino(("embed", 0, 1), mask_token=255, base_steps=300, length=3, layers=2, gru=64, rank=32, anchors=32),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
