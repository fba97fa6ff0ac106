"""DSpark for SmolLM2-135M: three slots corrected by a Markov head of rank 32, with a confidence (arXiv:2607.05147).

    python -m experiments.train --config configs/train/dspark_smollm2.py

Three layers and the released losses; there with five layers, seven slots and rank 256.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import block, training
from experiments.train_config import TrainConfig
from sdjax.drafters.block import Block


def get_config() -> TrainConfig:
    return training("dspark_smollm2", block(Block.dspark, rank=32), learning_rate=1e-3)
