"""Domino for SmolLM2-135M: DFlash's layers, and a GRU over the drafted tokens that corrects (arXiv:2605.29707).

    python -m experiments.train --config configs/train/domino_smollm2.py

Three layers, a GRU 256 wide, 32 numbers before the vocabulary; SpecForge has five, 1024 and 256, and blocks of sixteen.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import STEPS, block, training
from experiments.train_config import TrainConfig
from sdjax.drafters.block import Block


def get_config() -> TrainConfig:
    return training("domino_smollm2", block(Block.domino, base_steps=STEPS, gru=256, rank=32), learning_rate=1e-3)
