"""DFlash for SmolLM2-135M: three masks filled in at once behind the target's states (arXiv:2602.06036).

    python -m experiments.train --config configs/train/dflash_smollm2.py

Three layers, drafts are argmaxes, the loss is the text's alone, as published; there with five layers and fifteen masks.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import block, training
from experiments.train_config import TrainConfig
from sdjax.drafters.block import Block


def get_config() -> TrainConfig:
    return training("dflash_smollm2", block(Block.dflash), learning_rate=1e-3)
