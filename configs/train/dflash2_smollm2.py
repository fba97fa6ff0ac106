"""DFlash with DFlash 2's selector for SmolLM2-135M: each slot chooses among its 16 likeliest tokens (inco.ai/blog/dflash2).

    python -m experiments.train --config configs/train/dflash2_smollm2.py

Three layers and rank 32; as published five and 256, and convolutions around sublayers, which are left out here.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import block, training
from experiments.train_config import TrainConfig
from sdjax.drafters.block import Block


def get_config() -> TrainConfig:
    return training("dflash2_smollm2", block(Block.dflash2, rank=32), learning_rate=1e-3)
