"""P-EAGLE for Qwen3-8B on a pod: four layers, chains of masks kept by 0.7^d (arXiv:2602.01469).

    python -m experiments.train --config configs/train/peagle_qwen3_8b.py

Texts, taps, draft vocabulary, rows and optimiser are those of eagle3_qwen3_8b.py; eight drafts in one pass.
"""

from dataclasses import replace

from configs.train import eagle3_qwen3_8b
from experiments.train_config import TrainConfig
from sdjax.drafters.peagle import PEagle


def get_config() -> TrainConfig:
    config = eagle3_qwen3_8b.get_config()
    drafter = PEagle(config.drafter.taps, length=8, layers=4, sampled=True, head=config.drafter.head)
    return replace(config, name="peagle_qwen3_8b", drafter=drafter)
