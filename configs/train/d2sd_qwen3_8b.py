"""D²SD for Qwen3-8B on a pod: two blocks of sixteen, the second behind four places (arXiv:2606.04446).

    python -m experiments.train --config configs/train/d2sd_qwen3_8b.py

Texts, rows and optimiser are those of dflash_qwen3_8b.py, with prefixes drawn ∝ 0.9^l for the second block.
"""

from dataclasses import replace

from configs.train import dflash_qwen3_8b
from experiments.train_config import TrainConfig
from sdjax.drafters.block import spread_taps
from sdjax.drafters.dual_block import DualBlock


def get_config() -> TrainConfig:
    drafter = DualBlock.d2sd(spread_taps(36), mask_token=151_669)
    return replace(dflash_qwen3_8b.get_config(), name="d2sd_qwen3_8b", drafter=drafter)
