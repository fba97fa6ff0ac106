"""JetSpec for SmolLM2-135M: causal slots, learnt from the target's law, drafted as a tree (arXiv:2606.18394).

    python -m experiments.train --config configs/train/jetspec_smollm2.py

Two layers instead of five, and a tree of 16 nodes instead of 128 and more, for the CPU's sake; the mask is a learnt vector.
Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, TARGET, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.drafters.block_tree import BlockTree
from sdjax.drafters.eagle3 import published_taps


def get_config() -> TrainConfig:
    drafter = BlockTree.jetspec(
        published_taps(TARGET.layers), None, CHAIN.depth, nodes=16, layers=2, head=VOCABULARY, anchors=128
    )
    return training("jetspec_smollm2", drafter, learning_rate=1e-3)
