"""PARD for SmolLM2-135M: its own first two layers, adapted to draft in one pass (An et al. 2025, arXiv:2504.18583).

    python -m experiments.train --config configs/train/pard_smollm2.py

The embedding stays the target's, and so does the head: its rows for the commonest tokens, read at each step; the mask is a
vector of its own. Drafts are drawn at temperature 1, as those of all drafters here. The loss is the tokens' alone, as
published; PARD-2's is `text=0.1, soft=1.0`.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from dataclasses import replace

from configs.smollm2 import CHAIN, TARGET, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.drafters.pard import Pard


def get_config() -> TrainConfig:
    drafter = Pard(replace(TARGET, layers=2), CHAIN.depth, sampled=True, head=VOCABULARY)
    return training("pard_smollm2", drafter, learning_rate=1e-3, frozen=("drafter.embed",))
