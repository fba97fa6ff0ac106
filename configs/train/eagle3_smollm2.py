"""EAGLE-3 for SmolLM2-135M (Li et al. 2025, arXiv:2503.01840), taps behind layers 1, 14 and 26.

    python -m experiments.train --config configs/train/eagle3_smollm2.py

Three unrolled steps for the CPU's sake, as `speculators` has them; the paper's are seven. The head stays the
target's rows, and the layer starts as the target's last: the token budget is small.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, eagle3, training
from experiments.train_config import TrainConfig
from sdjax.core.types import Law


def get_config() -> TrainConfig:
    return training("eagle3_smollm2", eagle3(CHAIN, Law.IID), learning_rate=1e-3)
