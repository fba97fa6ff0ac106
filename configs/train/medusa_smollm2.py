"""Medusa-1 for SmolLM2-135M: three heads on its last state (Cai et al. 2024, arXiv:2401.10774).

    python -m experiments.train --config configs/train/medusa_smollm2.py

One residual block a head, decay 0.8, as in the paper; the vocabulary matrix is shared, and the target's rows.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.drafters.medusa import Medusa


def get_config() -> TrainConfig:
    drafter = Medusa(CHAIN, head=VOCABULARY)
    return training("medusa_smollm2", drafter, learning_rate=2e-3)
