"""SpecDiff-2 for SmolLM2-135M (Sandler et al. 2025, arXiv:2511.00606): a diffusion model that starts as its first two layers.

    python -m experiments.train --config configs/train/specdiff2_smollm2.py

The paper aligns a pretrained one of 7B by streaks alone; here both losses are minimised from the start. Texts, token budget
and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.drafters.masked_diffusion import MaskedDiffusion
from sdjax.drafters.specdiff2 import SpecDiff2


def get_config() -> TrainConfig:
    model = MaskedDiffusion(CHAIN.depth, layers=2, head=VOCABULARY, anchors=128)
    return training("specdiff2_smollm2", SpecDiff2(model, drafts=4), learning_rate=1e-3)
