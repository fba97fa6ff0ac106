"""JetSpec for SmolLM2-135M: causal slots, learnt from the target's law, drafted as a tree (arXiv:2606.18394).

    python -m experiments.train --config configs/train/jetspec_smollm2.py

Three layers and a tree of 16 nodes, three deep; as published five, and 128 or more, fifteen deep.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import block, training
from experiments.train_config import TrainConfig
from sdjax.drafters.block_tree import BlockTree


def get_config() -> TrainConfig:
    return training("jetspec_smollm2", block(BlockTree.jetspec, nodes=16), learning_rate=1e-3)
