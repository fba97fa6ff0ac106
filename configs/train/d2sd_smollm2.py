"""D²SD for SmolLM2-135M: DFlash, and a second block that redrafts behind two of its places (arXiv:2606.04446).

    python -m experiments.train --config configs/train/d2sd_smollm2.py

Three layers in either block and three drafts, left in two places: nine nodes are verified. As published, five layers,
fifteen drafts, four places.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import block, training
from experiments.train_config import TrainConfig
from sdjax.drafters.dual_block import DualBlock


def get_config() -> TrainConfig:
    return training("d2sd_smollm2", block(DualBlock.d2sd, branches=2), learning_rate=1e-3)
