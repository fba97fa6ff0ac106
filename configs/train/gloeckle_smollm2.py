"""Multi-token prediction heads (Gloeckle et al. 2024, arXiv:2404.19737) on SmolLM2-135M's frozen trunk.

    python -m experiments.train --config configs/train/gloeckle_smollm2.py

Three heads start from the last layer. They share the target's rows for its commonest tokens, read once a draft.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, TARGET, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.drafters.gloeckle import Gloeckle


def get_config() -> TrainConfig:
    drafter = Gloeckle(TARGET.layers, heads=CHAIN.depth, tree=CHAIN, head=VOCABULARY)
    return training("gloeckle_smollm2", drafter, learning_rate=5e-4)
