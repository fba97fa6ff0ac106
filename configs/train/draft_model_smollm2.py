"""A draft model for SmolLM2-135M: its own first two layers, distilled from its law.

    python -m experiments.train --config configs/train/draft_model_smollm2.py

Forward KL (Zhou et al. 2023, arXiv:2310.08461). The embedding stays the target's, and so does the head: its rows for
the commonest tokens, read at each step.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from dataclasses import replace

from configs.smollm2 import CHAIN, TARGET, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.drafters.draft_model import DraftModel


def get_config() -> TrainConfig:
    drafter = DraftModel(replace(TARGET, layers=2), length=CHAIN.depth, head=VOCABULARY)
    return training("draft_model_smollm2", drafter, learning_rate=1e-3, frozen=("drafter.embed",))
