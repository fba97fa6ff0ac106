"""Domino for Qwen3-8B on a pod, with SpecForge's settings (arXiv:2605.29707).

    python -m experiments.train --config configs/train/domino_qwen3_8b.py

A GRU 1024 wide and 256 numbers behind DFlash's layers, blocks of sixteen, 256 anchors; the uncorrected logits hand over to the
corrected ones along the whole run. Texts, rows and optimiser are those of dflash_qwen3_8b.py.
"""

from dataclasses import replace

from configs.train import dflash_qwen3_8b
from experiments.train_config import TrainConfig
from sdjax.drafters.block import Block, spread_taps


def get_config() -> TrainConfig:
    config = dflash_qwen3_8b.get_config()
    drafter = Block.domino(spread_taps(36), mask_token=151_669, base_steps=config.optimiser.steps, rank=256)
    return replace(config, name="domino_qwen3_8b", drafter=drafter)
