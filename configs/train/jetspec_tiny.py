"""JetSpec for the tiny world's target: causal slots, learnt from the target's law, drafted as a tree (arXiv:2606.18394).

    python -m experiments.train --config configs/train/jetspec_tiny.py

The embedding and both layers are tapped; the mask is a byte that no text has. The tree has fifteen drafts, of up to
seven tokens at a slot.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.block_tree import BlockTree
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence


def get_config() -> TrainConfig:
    return TrainConfig(
        name="jetspec_tiny",
        target=TargetConfig(name="tiny"),
        drafter=BlockTree.jetspec(("embed", 0, 1), mask_token=255, length=3, nodes=16, layers=2, anchors=32),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=4e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
