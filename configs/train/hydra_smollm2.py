"""Hydra for SmolLM2-135M: Medusa's heads, told the drafted path (Ankner et al. 2024, arXiv:2402.05109).

    python -m experiments.train --config configs/train/hydra_smollm2.py

One block a head, learnt from the texts, as the released code's defaults have it.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.core.types import Law
from sdjax.drafters.hydra import Hydra


def get_config() -> TrainConfig:
    drafter = Hydra(CHAIN, head=VOCABULARY, law=Law.IID)
    return training("hydra_smollm2", drafter, learning_rate=1e-3)
