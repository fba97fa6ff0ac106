"""A multi-token prediction module for SmolLM2-135M, unrolled on its own output (FastMTP, arXiv:2509.18362).

    python -m experiments.train --config configs/train/deepseek_mtp_smollm2.py

The trunk is frozen and the module starts from the last layer; three steps of weights 0.6^k, as in the paper.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.drafters.deepseek_mtp import DeepSeekMTP


def get_config() -> TrainConfig:
    drafter = DeepSeekMTP(modules=1, tree=CHAIN, head=VOCABULARY, steps=3, decay=0.6)
    return training("deepseek_mtp_smollm2", drafter, learning_rate=5e-4)
