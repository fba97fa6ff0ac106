"""P-EAGLE for SmolLM2-135M (Hui et al. 2026, arXiv:2602.01469), taps behind layers 1, 14 and 26.

    python -m experiments.train --config configs/train/peagle_smollm2.py

Two layers for the CPU's sake, 17 MB in bfloat16; the paper's are four. The head stays the target's rows, and the layers
start as the target's last: the token budget is small.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, TARGET, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.drafters.eagle3 import published_taps
from sdjax.drafters.peagle import PEagle


def get_config() -> TrainConfig:
    taps = published_taps(TARGET.layers)
    drafter = PEagle(taps, CHAIN.depth, layers=2, sampled=True, head=VOCABULARY, start="target")
    return training("peagle_smollm2", drafter, learning_rate=1e-3)
