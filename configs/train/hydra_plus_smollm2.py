"""Hydra++ for SmolLM2-135M: a prefix layer, and heads learnt from the target's law (arXiv:2402.05109).

    python -m experiments.train --config configs/train/hydra_plus_smollm2.py

Four blocks a head, the teacher's loss alone, dropout 0.2, as published.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.core.types import Law
from sdjax.drafters.hydra import Hydra, HydraPlus


def get_config() -> TrainConfig:
    drafter = HydraPlus(Hydra(CHAIN, layers=4, head=VOCABULARY, law=Law.IID, text=0.0, teacher=1.0, dropout=0.2))
    return training("hydra_plus_smollm2", drafter, learning_rate=1e-3)
