"""JetSpec for Qwen3-8B on a pod: causal slots, learnt from the target's law, a tree of 128 (arXiv:2606.18394).

    python -m experiments.train --config configs/train/jetspec_qwen3_8b.py

Texts, rows and optimiser are those of dflash_qwen3_8b.py: the paper's own are not known to us.
"""

from dataclasses import replace

from configs.train import dflash_qwen3_8b
from experiments.train_config import TrainConfig
from sdjax.drafters.block import spread_taps
from sdjax.drafters.block_tree import BlockTree


def get_config() -> TrainConfig:
    drafter = BlockTree.jetspec(spread_taps(36), mask_token=151_669)
    return replace(dflash_qwen3_8b.get_config(), name="jetspec_qwen3_8b", drafter=drafter)
