"""EAGLE-1 for SmolLM2-135M (Li et al. 2024, arXiv:2401.15077); EAGLE-2 is a dynamic tree on the same weights.

    python -m experiments.train --config configs/train/eagle_smollm2.py

The paper's loss and noise; cross-entropy is over the draft vocabulary.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.core.types import Law
from sdjax.drafters.eagle import Eagle


def get_config() -> TrainConfig:
    drafter = Eagle(CHAIN, law=Law.IID, head=VOCABULARY)
    return training("eagle_smollm2", drafter, learning_rate=1e-3)
