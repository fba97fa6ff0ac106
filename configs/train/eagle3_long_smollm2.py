"""EAGLE-3 for SmolLM2-135M on four times the tokens that drafters are compared at: what more training is worth.

    python -m experiments.train --config configs/train/eagle3_long_smollm2.py

The texts are read 3.3 times. All else is as in eagle3_smollm2.py.
"""

from configs.smollm2 import CHAIN, STEPS, eagle3, training
from experiments.train_config import TrainConfig
from sdjax.core.types import Law


def get_config() -> TrainConfig:
    return training("eagle3_long_smollm2", eagle3(CHAIN, Law.IID), learning_rate=1e-3, steps=4 * STEPS)
