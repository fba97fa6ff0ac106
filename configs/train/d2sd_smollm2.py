"""D²SD for SmolLM2-135M: DFlash, and a second block that redrafts behind two of its places (arXiv:2606.04446).

    python -m experiments.train --config configs/train/d2sd_smollm2.py

Two layers each instead of five, three drafts instead of fifteen, for the CPU's sake: nine nodes are verified. The masks are
learnt vectors. Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, TARGET, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.drafters.dual_block import DualBlock
from sdjax.drafters.eagle3 import published_taps


def get_config() -> TrainConfig:
    drafter = DualBlock.d2sd(
        published_taps(TARGET.layers), None, CHAIN.depth, branches=2, layers=2, head=VOCABULARY, anchors=128
    )
    return training("d2sd_smollm2", drafter, learning_rate=1e-3)
